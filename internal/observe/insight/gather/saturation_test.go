package gather

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// A rush makes the rule that let it through a loose one if the service answers it with failures, or
// if a load signal shows it. The same rush without these does not.
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
		{name: "a crowd, answers fail", crowd: true, fail: 10, verdict: insight.LooseCrowd, signal: "answers"},
		{name: "a crowd, cpu", crowd: true, cpu: true, verdict: insight.LooseCrowd, signal: "cpu"},
		{name: "one client, borne", few: true, fail: 3},
		{name: "one client, answers fail", few: true, fail: 10, verdict: insight.LooseFew, signal: "answers"},
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
				b.limiter.Phases().Answered(&r, &b.d, weir.Answer{Status: status})
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
				if v.Verdict == insight.LooseCrowd || v.Verdict == insight.LooseFew {
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

// In a rush, a rule in shadow is judged by what it would have refused: requests that it would
// refuse when enforced do not count as let through. Several nodes together judge alike.
func TestRushInShadow(t *testing.T) {
	for _, c := range []struct {
		name, rule string
		loose      bool
	}{
		{"refuses a third", "allow: 2/min", false},
		{"would refuse a third", "allow: 2/min, on_limit: shadow", false},
		{"refuses nobody", "allow: 20/min", true},
		{"would refuse nobody", "allow: 20/min, on_limit: shadow", true},
	} {
		rush := false
		b := newBench(t, Options{Saturated: func() (string, bool) { return "cpu", rush }},
			"domain: shop\nlimits: [{name: each, per: [user], algorithm: fixed_window, "+c.rule+"}]")
		for minute := range 19 {
			clients := 20
			if rush = minute >= 15; rush {
				clients = 200
			}
			for range 3 {
				for i := range clients {
					b.ask(fmt.Sprint("u", i))
					b.gather(false)
				}
			}
			b.pass(time.Minute)
		}
		verdicts := b.rule("each").Verdicts
		if is := slices.ContainsFunc(verdicts, func(v insight.Verdict) bool {
			return v.Verdict == insight.LooseCrowd
		}); is != c.loose {
			t.Errorf("%s: %+v", c.name, verdicts)
		}
		s := b.Snapshot(snapshot.Want{Samples: true, Over: time.Hour})
		f := snapshot.Merge(s, s).Facts(0)
		refused, met := uint64(0), uint64(0)
		for _, m := range f.Minutes {
			refused, met = refused+m.Refused, met+m.Met
			if m.Admitted != m.Met-m.Refused {
				t.Errorf("%s: %+v", c.name, m)
			}
		}
		if refused != max(f.Refused, f.WouldRefuse) || met != 2*19*60+2*4*540 {
			t.Errorf("%s: %d of %d refused in the minutes, %d or %d in all", c.name, refused, met, f.Refused,
				f.WouldRefuse)
		}
	}
}
