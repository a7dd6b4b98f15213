package file

import (
	"strings"
	"testing"
)

// TestRegionsLend: a rule that regions share lends to other regions, where its kind can and a
// borrower has the time; what it says of leases itself holds.
func TestRegionsLend(t *testing.T) {
	for _, c := range []struct {
		text    string
		percent int
		lent    bool
	}{
		{"allow: 100/min, consistency: {regions: {over: 0%}}", 50, true},
		{"allow: 100/10s, consistency: {regions: {over: 20%}}", 50, true},
		{"allow: 100/9s, consistency: {regions: {over: 20%}}", 0, true},
		{"allow: 100/min, consistency: {regions: sync}", 0, false},
		{"allow: 100/min, consistency: {lease: 5%, regions: {over: 20%}}", 5, false},
		{"allow: 100/min, algorithm: fixed_window, align: first_request, consistency: {regions: {over: 20%}}", 0, true},
		{"allow: 100/min, algorithm: token_bucket, refill: interval, consistency: {regions: {over: 20%}}", 0, true},
		{"allow: {rate: 100/min, burst: 5}, algorithm: leaky_bucket, consistency: {regions: {over: 0%}}", 0, true},
		{"allow: 100/min, throttle: {soft: {over: 10%, for: 5m}}, consistency: {regions: {over: 20%}}", 0, true},
	} {
		_, r := only(t, "limits: [{name: a, per: [user], "+c.text+"}]")
		w := r.Windows[0]
		if got := w.Limit.Config().Lease; got != c.percent || r.Lent != c.lent ||
			(w.Counter.Lease != nil) != (got > 0) || w.Counter.Lent != (c.lent && got > 0) {
			t.Errorf("%s: leases %d %%, lent %v, counter %+v", c.text, got, r.Lent, w.Counter)
		}
		if l := w.Limit.Lease(); l != nil && c.percent == 50 && l.Config().Timeout.Seconds() < 2 {
			t.Errorf("%s: a lease of %v", c.text, l.Config().Timeout)
		}
	}
}

// TestLintRegions: each kind of warning of regions, and rules of which there is nothing to say.
func TestLintRegions(t *testing.T) {
	const shared = "consistency: {regions: {over: 20%}}"
	three, none := LintOptions{Regions: 3}, LintOptions{NoRegions: "no regions are configured"}
	for _, c := range []struct {
		name    string
		text    string
		options LintOptions
		want    []string
	}{
		{"nothing known", "{name: a, per: [ip], allow: 10/min}, {name: b, when: {path: /x}, per: [ip], allow: 3/hour, " + shared + "}", LintOptions{}, nil},
		{"one region", "{name: a, per: [ip], allow: 1000/min}", LintOptions{Regions: 1}, nil},
		{"each for itself", "{name: a, per: [ip], allow: 1000/min}", three, []string{"regions-each a: each of the 3 regions counts for itself, so that together they admit 3 times the limit"}},
		{"two for themselves", "{name: a, per: [ip], allow: 1000/min}, {name: b, when: {path: /x}, per: [ip], allow: 10/day}", three, []string{"regions-each a and b: each of the 3 regions"}},
		{"that is known", "# lint: ignore regions-each\n{name: a, per: [ip], allow: 1000/min}", three, nil},
		{"perhaps for themselves", "# lint: ignore regions-each, regions-small, regions-unused\n{name: a, per: [ip], allow: 1000/min}", LintOptions{}, nil},
		{"nothing is limited", "{name: a, per: [ip], allow: unlimited}", three, nil},
		{"named keys are limited", "{name: a, per: [ip], allow: unlimited, override: {192.0.2.1: 10/min}}", three, []string{"regions-each a: each"}},
		{"just large enough", "{name: a, per: [ip], allow: 12/min, " + shared + "}", three, nil},
		{"small", "{name: a, per: [ip], allow: 11/min, " + shared + "}", three, []string{"regions-small a: consistency: N 11 is shared out among 3 regions"}},
		{"too small", "{name: a, per: [ip], allow: 2/min, " + shared + "}", three, []string{"regions-small a: consistency: N 2 is shared out among 3 regions: there is not a unit for each"}},
		{"small bucket", "{name: a, per: [ip], allow: {rate: 1000/min, burst: 11}, " + shared + "}", three, []string{"regions-small a: consistency: the bucket's size 11 is"}},
		{"one small window", "{name: a, per: [ip], allow: [5/s, 500/hour], " + shared + "}", three, []string{"regions-small a:1s: consistency: N 5"}},
		{"small, much over", "{name: a, per: [ip], allow: 11/min, consistency: {regions: {over: 100%}}}", three, nil},
		{"small, sync", "{name: a, per: [ip], allow: 11/min, consistency: {regions: sync}}", three, nil},
		{"unused", "{name: a, per: [ip], allow: 1000/min, " + shared + "}", none, []string{"regions-unused a: consistency: its regions have no effect: no regions are configured"}},
		{"not wanted", "{name: a, per: [ip], allow: 1000/min}", none, nil},
		{"needlessly ignored", "# lint: ignore regions-each\n{name: a, per: [ip], allow: 1000/min, " + shared + "}", three, []string{"unused-ignore x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, _, err := load(t, "x.yaml", "limits: [\n"+c.text+"\n]")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range Lint(set, c.options) {
				got = append(got, p.Name+" "+p.Message)
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i := range got {
				if name, _, _ := strings.Cut(c.want[i], " "); !strings.HasPrefix(got[i], c.want[i]) &&
					name != "unused-ignore" || !strings.HasPrefix(got[i], name) {
					t.Errorf("got %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}
