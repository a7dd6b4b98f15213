package gather

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// A client that is followed by its decisions is judged as the Collector judges its keys: the same
// episodes of all rules together, the same fill, and the same answers.
func TestConduct(t *testing.T) {
	for seed := range uint64(20) {
		b := newBench(t, Options{Known: []string{"user"}}, `
domain: shop
limits:
  - { name: search, per: [user], when: { path: /search }, allow: [5/min, 40/hour], algorithm: fixed_window }
  - { name: login, per: [user, ip], when: { path: /login }, allow: 2/min, ban: { after: 8, within: 1m, for: 2m } }
  - { name: burst, per: [user], algorithm: token_bucket, allow: { rate: 9/min, burst: 6 } }
  - { name: trial, per: [user], allow: 1/min, on_limit: shadow }
`)
		random := rand.New(rand.NewPCG(seed, 3))
		var c Conduct
		admitted, well := 0, 0
		ask := func(path, ip string) {
			q := weir.Request{Attributes: rule.Pairs{{Name: "user", Value: "ada"}, {Name: "path", Value: path},
				{Name: "ip", Value: ip}}}
			allowed := b.send(q)
			c.Decided(&q, &b.d)
			if allowed {
				status := []int{200, 302, 404, 429, 503}[random.IntN(5)]
				c.Answered(status)
				switch status {
				case 200, 302:
					well++
					fallthrough
				case 404:
					admitted++
				}
			}
			b.gather(true) // each time, so that nothing is thinned
		}
		for range 300 {
			step := []time.Duration{10, 10, 100, 500, 500, 3_000, 5_000, 40_000}[random.IntN(8)] * time.Millisecond
			if random.IntN(40) == 0 {
				step = 12 * time.Minute // longer than a client is waited for
			}
			b.µs.Add(step.Microseconds())
			ask([]string{"/search", "/login", "/"}[random.IntN(3)], []string{"192.0.2.1", "192.0.2.2"}[random.IntN(2)])
		}
		// Who does not come back has given up.
		b.µs.Add(24 * time.Hour.Microseconds() / 4)
		for _, path := range []string{"/search", "/login"} {
			ask(path, "192.0.2.1")
			ask(path, "192.0.2.2")
		}
		b.gather(true)
		s := b.Snapshot(snapshot.Want{Over: snapshot.JudgedOver(b.time()), Samples: true})
		var live insight.Episodes
		fill := 0.0
		for i := range s.Rules {
			f := s.Facts(i)
			if f.Rule == "trial" {
				continue // it tells nobody to come back
			}
			for _, k := range f.RefusedSample {
				live.Add(&k.Episodes)
				fill = max(fill, k.Fill)
			}
		}
		k := c.Facts()
		if k.Episodes != live || live.Early == 0 || live.Obeyed == 0 {
			t.Errorf("seed %d: episodes %+v, of the keys %+v", seed, k.Episodes, live)
		}
		if d := k.Fill - fill; d > 1e-5 || d < -1e-5 || fill <= 1 {
			t.Errorf("seed %d: it asked for %v of its limits, by its keys for %v", seed, k.Fill, fill)
		}
		if k.OK != float64(well)/float64(admitted) || k.Refused == 0 {
			t.Errorf("seed %d: %+v; %d of %d answers speak for it", seed, k, well, admitted)
		}
	}
}

// Of a client that is refused at ever new keys, few are followed at once, and what it does is told.
func TestConductIsBounded(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits: [{ name: item, per: [user, path], allow: 1/min, algorithm: fixed_window }]")
	var c Conduct
	ask := func(i int) {
		q := weir.Request{Attributes: rule.Pairs{{Name: "user", Value: "ada"},
			{Name: "path", Value: "/" + string(rune('a'+i))}}}
		b.send(q)
		c.Decided(&q, &b.d)
	}
	const keys = 3 * mostFollowed
	for i := range keys {
		ask(i)
		ask(i)
		if len(c.open) > mostFollowed || len(c.full) > mostFollowed {
			t.Fatalf("%d keys, %d windows", len(c.open), len(c.full))
		}
	}
	b.µs.Add(time.Minute.Microseconds())
	for i := range keys {
		ask(i)
	}
	if k := c.Facts(); k.Refused != keys || k.Episodes != (insight.Episodes{Obeyed: mostFollowed}) || len(c.open) > 0 {
		t.Errorf("%+v, %d open", k, len(c.open))
	}
}

// What an answer says of a client: nothing, if it says something of the service.
func TestAnsweredWell(t *testing.T) {
	for status, want := range map[int][2]bool{
		0: {}, 101: {}, 200: {true, true}, 204: {true, true}, 304: {true, true}, 399: {true, true},
		400: {false, true}, 404: {false, true}, 429: {}, 499: {false, true}, 500: {}, 503: {}, 999: {},
	} {
		if well, tells := judge.AnsweredWell(status); well != want[0] || tells != want[1] {
			t.Errorf("%d: %t, %t", status, well, tells)
		}
	}
}
