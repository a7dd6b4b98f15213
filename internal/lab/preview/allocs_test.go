//go:build !race

package preview

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
)

// Recording allocates nothing on the deciding path: neither what is taken nor what is not.
func TestRecordingAllocatesNothing(t *testing.T) {
	w := newWorld(t,
		`limits: [{ name: a, per: [user], allow: 5/min }, { name: b, per: [header.x-api-key], allow: 5/min }]`, Options{})
	r := weir.Request{Attributes: rule.Pairs{{Name: "user", Value: "ada"}, {Name: "path", Value: "/"},
		{Name: "header.x-api-key", Value: "k"}}, Hits: 1}
	var d weir.Decision
	for range 100 { // beyond the limit, and until all buffers have grown
		w.askInto(&r, &d)
		w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
		w.limiter.Phases().Answered(&r, &d, weir.Answer{Status: 200})
	}
	w.recorder.drain()
	for name, level := range map[string]uint32{"taken": 0, "left out": strata - 1} {
		w.recorder.level.Store(level)
		if n := testing.AllocsPerRun(100, func() {
			w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
			w.recorder.answered(&r, &d, weir.Answer{Status: 200})
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkDecided measures what the hook costs a decision: of a client that is taken, of one that
// is not, and in a flood.
func BenchmarkDecided(b *testing.B) {
	w := newWorld(b, `limits: [{ name: a, per: [user], allow: 5/min }]`, Options{})
	r := weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/api/x"}, {Name: "user", Value: "ada"},
		{Name: "ip", Value: "192.0.2.1"}}, Hits: 1}
	var d weir.Decision
	for range 10 {
		w.askInto(&r, &d)
	}
	b.Run("taken", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
			if i%512 == 0 {
				for k := range w.recorder.stage {
					w.recorder.stage[k].buf = w.recorder.stage[k].buf[:0]
				}
			}
		}
	})
	b.Run("left out", func(b *testing.B) {
		w.recorder.level.Store(strata - 1)
		for b.Loop() {
			w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
		}
	})
	b.Run("flood", func(b *testing.B) {
		w.recorder.closed.Store(true)
		for b.Loop() {
			w.recorder.Decided(&r, &d, observe.Facts{Outcome: observe.Unclear})
		}
	})
}

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
	w := newWorld(b, rules, Options{Bytes: 64 << 20, Fresh: true})
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
