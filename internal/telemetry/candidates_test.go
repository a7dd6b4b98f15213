package telemetry

import (
	"fmt"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"testing"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

const candidateRules = `
domain: shop
limits:
  - name: live
    when: { kind: both }
    per: [user]
    allow: 2/min
    algorithm: sliding_log
  - name: tighter
    per: [user]
    allow: [1/min, 100/hour]
    algorithm: sliding_log
    on_limit: shadow
  - name: looser
    when: { kind: both }
    per: [user]
    allow: 3/min
    algorithm: sliding_log
    on_limit: shadow
  - name: plain
    allow: 1000/min
`

func candidatesByName(m *Metrics) map[string]Candidate {
	out := map[string]Candidate{}
	for _, c := range m.Candidates("") {
		out[c.Limit] = c
	}
	return out
}

func TestCandidates(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, candidateRules)
	for range 4 {
		decide(t, l, "shop", 1, rule.Map{"user": "ada", "kind": "both"}) // live: 2 pass, 2 refused; tighter passes 1, looser 3
	}
	decide(t, l, "shop", 1, rule.Map{"user": "bob"})
	decide(t, l, "shop", 1, rule.Map{"user": "bob"})
	decide(t, l, "shop", 0, rule.Map{"user": "bob"}) // peeks and refunds do not count
	decide(t, l, "shop", -1, rule.Map{"user": "eve"})
	got := candidatesByName(m)
	if len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	tight, loose := got["tighter"], got["looser"]
	// The candidate's windows are one verdict.
	if tight.WouldRefuse != 2 || tight.BothRefuse != 2 || tight.BothAdmit != 2 || tight.WouldAdmit != 0 || tight.KeysRefused != 2 ||
		math.Abs(tight.Share-2.0/6) > 1e-9 || tight.Enforce != 0 || tight.Domain != "shop" || tight.Since.IsZero() {
		t.Errorf("tighter: %+v", tight)
	}
	if loose.WouldRefuse != 0 || loose.BothRefuse != 1 || loose.BothAdmit != 2 || loose.WouldAdmit != 1 || loose.KeysRefused != 1 || loose.Share != 0 {
		t.Errorf("looser: %+v", loose)
	}
	if top := fmt.Sprint(tight.Top); top != "[{user=ada 3 0} {user=bob 1 0}]" {
		t.Errorf("top: %s", top)
	}
	same(t, counts(t, m, "weir_candidate_decisions_total"),
		`{candidate="allowed",domain="shop",limit="looser",live="allowed"} 2`, `{candidate="allowed",domain="shop",limit="looser",live="denied"} 1`,
		`{candidate="denied",domain="shop",limit="looser",live="denied"} 1`, `{candidate="allowed",domain="shop",limit="tighter",live="allowed"} 2`,
		`{candidate="denied",domain="shop",limit="tighter",live="allowed"} 2`, `{candidate="denied",domain="shop",limit="tighter",live="denied"} 2`)
	if len(m.Candidates("other")) != 0 || len(m.Candidates("shop")) != 2 {
		t.Error("the domain does not choose")
	}
}

// A candidate never changes what is decided: with it and without it every decision is the same.
func TestCandidateDoesNotInfluence(t *testing.T) {
	with, without := limiter(t, New(Options{}), candidateRules), limiter(t, New(Options{}), strings.Join([]string{
		"domain: shop", "limits:", "  - { name: live, when: { kind: both }, per: [user], allow: 2/min, algorithm: sliding_log }", "  - { name: plain, allow: 1000/min }"}, "\n"))
	for i := range 200 {
		r := weir.Request{Domain: "shop", Attributes: rule.Map{"user": fmt.Sprint(i % 7), "kind": []string{"both", "x"}[i%3/2]}}
		a, err1 := with.Allow(t.Context(), r)
		b, err2 := without.Allow(t.Context(), r)
		if err1 != nil || err2 != nil || a.Allowed != b.Allowed || a.RetryAfter != b.RetryAfter || *a.Nearest() != *replaceWindow(b.Nearest(), a.Nearest()) {
			t.Fatalf("request %d: %+v and %+v", i, a.Limits, b.Limits)
		}
	}
}

// replaceWindow gives r the window of the other set's rule.
func replaceWindow(r, other *weir.LimitResult) *weir.LimitResult {
	c := *r
	if c.Window.Name == other.Window.Name {
		c.Window = other.Window
	}
	return &c
}

// Of a rule that is enforced on a share of its keys, those keys are told of apart.
func TestCandidateOnAShare(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, `
domain: shop
limits:
  - { name: trial, per: [user], allow: 1/min, algorithm: sliding_log, enforce: 10% }
`)
	refused, shadowed := 0, 0
	for i := range 500 {
		r := weir.Request{Domain: "shop", Attributes: rule.Map{"user": fmt.Sprint("user-", i)}}
		for k := range 3 {
			d, err := l.Allow(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case k == 2 && !d.Allowed:
				refused++
			case k == 2:
				shadowed++
			}
		}
	}
	c := candidatesByName(m)["trial"]
	if c.Enforce != 10 || c.EnforcedAdmitted != uint64(refused) || c.EnforcedRefused != 2*uint64(refused) ||
		c.BothAdmit != uint64(shadowed) || c.WouldRefuse != 2*uint64(shadowed) || c.BothRefuse+c.WouldAdmit != 0 || refused == 0 || refused+shadowed != 500 {
		t.Errorf("%d refused, %d in shadow: %+v", refused, shadowed, c)
	}
	for _, e := range []struct{ got, want uint64 }{{c.KeysRefused, uint64(shadowed)}, {c.EnforcedKeysRefused, uint64(refused)}} {
		if off := math.Abs(float64(e.got)/float64(e.want) - 1); off > 0.2 { // six standard errors
			t.Errorf("%d keys estimated, %d counted", e.got, e.want)
		}
	}
	if len(c.Top) != topKeys || c.Top[0].Count < c.Top[9].Count {
		t.Errorf("top: %v", c.Top)
	}
}

// A reload keeps what is known of a candidate that it does not change, and forgets what is known of one that it does.
func TestCandidateReload(t *testing.T) {
	m := New(Options{})
	const before = "domain: shop\nlimits: [{name: a, allow: 1/min, on_limit: shadow}, {name: b, allow: 1/min, on_limit: shadow}, {name: c, allow: 1/min, on_limit: shadow}]"
	l := limiter(t, m, before)
	decide(t, l, "shop", 1, nil)
	decide(t, l, "shop", 1, nil)
	if n := m.candidateKeys.Load(); n != 3 {
		t.Errorf("the keys of %d candidates are kept", n)
	}
	l.SetRules(load(t, "domain: shop\nlimits: [{name: new, allow: 9/min}, {name: a, allow: 1/min, on_limit: shadow}, {name: b, allow: 2/min, on_limit: shadow}, {name: c, allow: 1/min}]"))
	got := candidatesByName(m)
	if len(got) != 2 || got["a"].WouldRefuse != 1 || got["b"].WouldRefuse != 0 || got["b"].BothAdmit != 0 {
		t.Errorf("got %+v", got)
	}
	if n := m.candidateKeys.Load(); n != 1 {
		t.Errorf("the keys of %d candidates are kept", n)
	}
	decide(t, l, "shop", 1, nil)
	if got := candidatesByName(m); got["a"].WouldRefuse+got["a"].WouldAdmit+got["a"].BothAdmit+got["a"].BothRefuse != 3 {
		t.Errorf("got %+v", got)
	}
}

// Secrets and long values do not come out with the keys.
func TestCandidateKeysAreFitToBeShown(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, "domain: shop\nlimits: [{name: a, per: [header.x-api-key, user], allow: 0/min, on_limit: shadow}]")
	decide(t, l, "shop", 1, rule.Map{"header.x-api-key": "sesame", "user": strings.Repeat("ü", 100)})
	top := candidatesByName(m)["a"].Top
	if len(top) != 1 || strings.Contains(top[0].Key, "sesame") || !strings.HasPrefix(top[0].Key, "header.x-api-key=hidden:") || !strings.HasSuffix(top[0].Key, "ü…") || len(top[0].Key) > maxHeavyText {
		t.Errorf("got %+v", top)
	}
}

func TestCandidatesConcurrent(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, "domain: shop\nlimits: [{name: a, per: [user], allow: 0/min, on_limit: shadow}]")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for k := range 500 {
				decide(t, l, "shop", 1, rule.Map{"user": fmt.Sprint(i, k)})
				if k%100 == 0 {
					m.Candidates("")
				}
			}
		})
	}
	all.Wait()
	if c := m.Candidates("")[0]; c.WouldRefuse != 2000 || math.Abs(float64(c.KeysRefused)/2000-1) > 0.2 {
		t.Errorf("got %+v", c)
	}
}

// The sketch is within its error, from nothing to ten million, whatever comes twice.
func TestSketch(t *testing.T) {
	var s sketch
	if s.estimate() != 0 {
		t.Errorf("of nothing: %d", s.estimate())
	}
	seed := maphash.MakeSeed()
	n := uint64(0)
	for _, want := range []uint64{1, 2, 5, 10, 100, 1000, 2500, 5000, 20_000, 100_000} {
		for ; n < want; n++ {
			h := maphash.Comparable(seed, n)
			s.add(h)
			s.add(h)
		}
		bound := 6 * 1.04 / math.Sqrt(registers) * float64(want) // six standard errors
		if want <= 10 {
			bound = 0.5 // small numbers are exact, unless two fall into one register
			bound += float64(want) / 5
		}
		if got := s.estimate(); math.Abs(float64(got)-float64(want)) > bound {
			t.Errorf("of %d: %d", want, got)
		}
	}
}

// A key that comes more than one time in 32 is among the heaviest, and the counts are bounds.
func TestHeaviest(t *testing.T) {
	set := load(t, "limits: [{name: a, per: [user], allow: 1/min}]")
	w := set.Rules()[0].Windows[0]
	seed := maphash.MakeSeed()
	var h heaviest
	counted := map[string]uint64{}
	add := func(user string) {
		key, err := w.AppendKey(nil, []string{"user=" + user})
		if err != nil {
			t.Fatal(err)
		}
		counted["user="+user]++
		h.add(maphash.Bytes(seed, key), w, key, &veil{seed: seed})
	}
	for i := range 10_000 {
		add(fmt.Sprint("many-", i))
		if i%8 == 0 {
			add("heavy")
		}
		if i%12 == 0 {
			add("second")
		}
	}
	found := map[string]bool{}
	for i := range h.n {
		k := &h.keys[i]
		found[string(k.text)] = true
		if real := counted[string(k.text)]; k.count < real || k.count-k.over > real {
			t.Errorf("%s came %d times; counted %d, at most %d too many", k.text, real, k.count, k.over)
		}
	}
	if !found["user=heavy"] || !found["user=second"] {
		t.Errorf("found %v", found)
	}
}
