//go:build !race

package preview

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/rule"
)

// BenchmarkPreview replays a million recorded requests through two sets of rules, in this process
// and in one of its own:
//
//	go test ./internal/lab/preview -run xxx -bench Preview -benchtime 3x
func BenchmarkPreview(b *testing.B) {
	const requests = 1_000_000
	rules := `limits:
  - { name: login, when: { path: /login, method: POST }, per: [ip], allow: 5/min }
  - { name: search, when: { path: "/search/**" }, per: ["user|ip"], allow: 20/min }
  - { name: api, per: [user], allow: [60/min, 1000/hour] }
`
	w := newWorld(b, rules, record.Options{Bytes: 64 << 20, Fresh: true})
	random := rand.New(rand.NewPCG(5, 6))
	var d weir.Decision
	for range requests {
		w.now += 7200_000_000 / requests
		a := rule.Pairs{{Name: "path", Value: "/api/items"}, {Name: "method", Value: "GET"},
			{Name: "ip", Value: fmt.Sprint("198.51.", int(random.ExpFloat64()*2), ".", random.IntN(250))}}
		switch random.IntN(10) {
		case 0:
			a[0].Value, a[1].Value = "/login", "POST"
		case 1, 2, 3:
			a[0].Value = fmt.Sprint("/search/", random.IntN(200))
		}
		if random.IntN(2) == 0 {
			a = append(a, rule.Pair{Name: "user", Value: fmt.Sprint("user-", int(random.ExpFloat64()*60))})
		}
		w.askInto(&weir.Request{Attributes: a}, &d)
	}
	s := w.recorder.Stats()
	b.ReportMetric(float64(s.Bytes)/requests, "B/request")
	then := insight.PreviewQuery{Files: map[string]string{"shop.yaml": `limits:
  - { name: login, when: { path: /login, method: POST }, per: [ip], allow: 3/min }
  - { name: search, when: { path: "/search/**" }, per: ["user|ip"], allow: 10/min }
  - { name: api, per: [user], allow: [60/min, 1000/hour] }
`}}
	for name, p := range map[string]*Preview{"here": w.preview, "apart": w.apart} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				began := time.Now()
				res, err := p.Run(b.Context(), then)
				if err != nil {
					b.Fatal(err)
				}
				if res.Requests != requests || res.Sampled != 1 || res.Now.Refused == 0 ||
					res.Then.Refused <= res.Now.Refused {
					b.Fatalf("%+v", res)
				}
				b.ReportMetric(time.Since(began).Seconds(), "s/preview")
			}
		})
	}
}
