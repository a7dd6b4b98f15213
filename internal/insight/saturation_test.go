package insight

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// A rush that the service answers with failures, and one that a load signal tells of, makes the
// rule that let it through a loose one; the same rush that the service bears does not.
func TestRush(t *testing.T) {
	for _, c := range []struct {
		name       string
		crowd, few bool
		fail       int // of a hundred answers, in the rush
		cpu        bool
		verdict    string
		signal     string
	}{
		{name: "a crowd, borne", crowd: true, fail: 3},
		{name: "a crowd, answers fail", crowd: true, fail: 10, verdict: LooseCrowd, signal: "answers"},
		{name: "a crowd, cpu", crowd: true, cpu: true, verdict: LooseCrowd, signal: "cpu"},
		{name: "one client, borne", few: true, fail: 3},
		{name: "one client, answers fail", few: true, fail: 10, verdict: LooseFew, signal: "answers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			rush := false
			b := newBench(t, Options{Saturated: func() (string, bool) { return "cpu", c.cpu && rush }},
				"domain: shop\nlimits: [{name: each, per: [user], allow: 5000/min}]")
			answers := 0
			ask := func(user string) {
				r := weir.Request{Attributes: rule.Pairs{{Name: "user", Value: user}}}
				if !b.send(r) {
					t.Fatal("refused")
				}
				status := 200
				if answers++; rush && answers%100 < c.fail {
					status = 503
				}
				b.limiter.Answered(&r, &b.d, weir.Answer{Status: status})
				b.gather(false)
			}
			minute := func() {
				clients := 20
				if rush && c.crowd {
					clients = 200
				}
				for i := range clients {
					ask(fmt.Sprint("u", i))
					ask(fmt.Sprint("u", i))
				}
				if rush && c.few {
					for range 2000 {
						ask("one")
					}
				}
				b.pass(time.Minute)
			}
			for range 15 {
				minute()
			}
			rush = true
			for range 4 {
				minute()
			}
			rush = false
			minute()
			verdict := ""
			for _, v := range b.rule("each").Verdicts {
				if v.Verdict == LooseCrowd || v.Verdict == LooseFew {
					verdict = v.Verdict
				}
			}
			if verdict != c.verdict {
				t.Errorf("verdict %q, want %q: %+v", verdict, c.verdict, b.rule("each").Verdicts)
			}
			o, err := b.Overview(t.Context(), "", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			signal, events := "", 0
			for _, e := range o.Events {
				if e.Kind == "saturated" {
					signal, events = e.Signal, events+1
					if long := e.Until - e.T; long < 170 || long > 260 {
						t.Errorf("saturated for %d s", long)
					}
				}
			}
			if signal != c.signal || events > 1 {
				t.Errorf("%d events, signal %q, want %q", events, signal, c.signal)
			}
		})
	}
}
