package file

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/lint"
)

// TestLintLeases: each kind of warning of a lease, and leases of which there is nothing to say.
func TestLintLeases(t *testing.T) {
	const lease = "consistency: {lease: 5%}"
	const bucket = "algorithm: token_bucket, " + lease
	for _, c := range []struct {
		name    string
		text    string
		options LintOptions
		want    []string
	}{
		{"large", "{name: a, per: [ip], allow: 100000/min, " + bucket + "}", LintOptions{}, nil},
		{"just large enough", "{name: a, per: [ip], allow: 400/min, " + bucket + "}", LintOptions{}, nil},
		{"just too small", "{name: a, per: [ip], allow: 399/min, " + bucket + "}", LintOptions{},
			[]string{"lease-small a: a lease of 5% of the bucket's size 399 has 19 units: a node that a key comes to often needs 20 to ask the store for one request in 20 (from 6% on it has 20)"}},
		{"large enough for five", "{name: a, per: [ip], allow: 2000/min, " + bucket + "}", LintOptions{Nodes: 5}, nil},
		{"too small for six", "{name: a, per: [ip], allow: 2000/min, " + bucket + "}", LintOptions{Nodes: 6},
			[]string{"lease-small a: a lease of 5% of the bucket's size 2000 has 100 units for 6 nodes: a node that a key comes to often needs 20 to ask the store for one request in 20 (from 6% on it has 120)"}},
		{"too small for any share", "{name: a, per: [ip], allow: 2000/min, " + bucket + "}", LintOptions{Nodes: 100}, []string{"lease-small a: a lease of 5% of the bucket's size 2000 has 100 units for 100 nodes: a node that a key comes to often needs 20 to ask the store for one request in 20 (it helps keys"}},
		{"the smallest", "{name: a, per: [ip], allow: 80/min, " + bucket + "}", LintOptions{}, []string{"lease-small a: a lease of 5% of the bucket's size 80 has 4 units"}},
		{"too small for a part", "{name: a, per: [ip], allow: 999/min, algorithm: token_bucket, consistency: {lease: 5%, regions: {over: 20%}}}", LintOptions{Regions: 3},
			[]string{"lease-small a: a lease of 5% of 399, the part that this region has of the bucket's size 999, has 19 units: a node that a key comes to often needs 20 to ask the store for one request in 20 (from 6% on it has 20)"}},
		{"large enough for a part", "{name: a, per: [ip], allow: 1000/min, algorithm: token_bucket, consistency: {lease: 5%, regions: {over: 20%}}}", LintOptions{Regions: 3}, nil},
		{"too small for its part", "{name: a, per: [ip], allow: 10000/min, algorithm: token_bucket, consistency: {lease: 5%, regions: {over: 0%}}}", LintOptions{Regions: 3, Weight: 1, Weights: 30},
			[]string{"lease-small a: a lease of 5% of 333, the part"}},
		{"of much more than the limit", "{name: a, per: [ip], allow: 400/min, algorithm: token_bucket, consistency: {lease: 5%, regions: {over: 900%}}}", LintOptions{Regions: 3}, nil},
		{"each region admits it", "{name: a, per: [ip], allow: 400/min, algorithm: token_bucket, consistency: {lease: 5%, regions: sync}}", LintOptions{Regions: 3}, nil},
		{"of a region without a part", "{name: a, per: [ip], allow: 400/min, algorithm: token_bucket, consistency: {lease: 5%, regions: {over: 0%}}}", LintOptions{Regions: 3, Weights: 30}, nil},
		{"too small for anything", "{name: a, per: [ip], allow: 79/min, algorithm: fixed_window, " + lease + "}", LintOptions{}, []string{"lease-never a: a lease of 5% of N 79 has 3 units, too few to save anything (from 6% on it has 4)"}},
		{"too small whatever the share", "{name: a, per: [ip], allow: 4/min, algorithm: fixed_window, " + lease + "}", LintOptions{}, []string{"lease-never a: a lease of 5% of N 4 has 0 units, too few to save anything (leave consistency out)"}},
		{"one window of two", "{name: a, per: [ip], allow: [50/s, 1000/min], algorithm: fixed_window, " + lease + "}", LintOptions{}, []string{"lease-never a:1s: a lease of 5% of N 50 has 2"}},
		{"one phase", "{name: a, per: [ip], allow: 1000/min, algorithm: fixed_window, schedule: [{days: sun, allow: 10/min}], " + lease + "}", LintOptions{}, []string{"lease-never a: a lease of 5% of N 10 has 0"}},
		{"small for one key only", "{name: a, per: [ip], allow: 1000/min, algorithm: fixed_window, override: {192.0.2.1: 10/min}, " + lease + "}", LintOptions{}, nil},
		{"small for the named keys", "{name: a, per: [ip], allow: unlimited, algorithm: fixed_window, override: {192.0.2.1: 10/min}, " + lease + "}", LintOptions{}, []string{"lease-never a:60s: a lease"}},
		{"nothing is admitted", "{name: a, per: [ip], allow: 0/min, algorithm: fixed_window, " + lease + "}", LintOptions{}, nil},
		{"late", "{name: a, per: [ip], allow: 1000/s, " + lease + "}", LintOptions{}, []string{"lease-late a: units of its lease may count for up to 200ms longer than the window, 20% of it, so that with the 5% that may be out up to 25% of the limit may be missing"}},
		{"late by its own time", "{name: a, per: [ip], allow: 1000/min, algorithm: sliding_log, consistency: {lease: 5%, for: 2s}}", LintOptions{}, []string{"lease-late a: units of its lease may count for up to 4s"}},
		{"late in a window that ends", "{name: a, per: [ip], allow: 1000/s, algorithm: fixed_window, " + lease + "}", LintOptions{}, nil},
		{"not late", "{name: a, per: [ip], allow: 1000/4s, " + lease + "}", LintOptions{}, nil},
		{"cost known afterwards", "{name: a, per: [ip], allow: 1000/min, cost_after: response.bytes, " + bucket + "}", LintOptions{}, []string{"lease-kind a: consistency: a cost that is known afterwards is reserved in the store"}},
		{"cost above the lease", "{name: a, per: [ip], allow: 1000/min, cost: 51, " + bucket + "}", LintOptions{}, []string{"lease-kind a: consistency: a request costs 51, and no more than 50"}},
		{"cost within the lease", "{name: a, per: [ip], allow: 1000/min, cost: 50, " + bucket + "}", LintOptions{}, nil},
		{"beside an exact one", "{name: a, when: {path: [/api/x, /api/y]}, per: [ip, path], allow: 1000/min, " + bucket + "}, {name: b, when: {path: /api/**}, per: [ip], allow: 9/s}", LintOptions{},
			[]string{"lease-kind a: consistency: each request that meets it meets b as well, which is decided exactly"}},
		{"beside an exact one in shadow", "{name: a, per: [ip], allow: 1000/min, " + bucket + "}, {name: b, per: [ip], allow: 9/s, on_limit: shadow}", LintOptions{}, []string{"lease-kind a: consistency: each request"}},
		{"beside a leased one", "{name: a, per: [ip], allow: 1000/min, " + bucket + "}, {name: b, allow: 900/s, algorithm: fixed_window, " + lease + "}", LintOptions{}, nil},
		{"beside one for some", "{name: a, per: [ip], allow: 1000/min, " + bucket + "}, {name: b, when: {path: [/api/x]}, per: [ip], allow: 9/s}", LintOptions{}, nil},
		{"beside one with another key", "{name: a, per: [ip], allow: 1000/min, " + bucket + "}, {name: b, per: [user], allow: 9/s}", LintOptions{}, nil},
		{"beside one that it replaces", "{name: a, per: [ip], when: {path: /x}, allow: 1000/min, replaces: [b], " + bucket + "}, {name: b, per: [ip], allow: 9/s}", LintOptions{}, nil},
		{"unused", "{name: a, per: [ip], allow: 1000/s, " + lease + "}", LintOptions{NoLeases: "redis.leases.max_keys is 0"}, []string{"lease-unused a: consistency: its lease has no effect: redis.leases.max_keys is 0"}},
		{"unused, and that is known", "# lint: ignore lease-unused\n{name: a, per: [ip], allow: 1000/s, " + lease + "}", LintOptions{NoLeases: "the store is in memory"}, nil},
		{"perhaps unused", "# lint: ignore lease-unused\n{name: a, per: [ip], allow: 1000/min, " + bucket + "}", LintOptions{}, nil},
		{"needlessly ignored", "# lint: ignore lease-unused\n{name: a, per: [ip], allow: 1000/min}", LintOptions{NoLeases: "the store is in memory"}, []string{"unused-ignore x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, _, err := load(t, "x.yaml", "limits: [\n"+c.text+"\n]")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range Lint(set, c.options) {
				text := p.Name + " " + p.Message
				if p.Hint != "" {
					text += " (" + p.Hint + ")"
				}
				if got = append(got, text); p.Pos.Line == 0 || !lint.Named(p.Name) {
					t.Errorf("%+v", p)
				}
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

// TestLintQuotas: limits of domains of rlqs.domains that Envoys can be assigned nothing of, or not
// all.
func TestLintQuotas(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"lent", "{name: a, allow: 1000/min}", ""},
		{"leased for long", "{name: a, allow: 1000/min, algorithm: token_bucket, consistency: {lease: 25%, for: 11s}}", ""},
		{"leased a little", "{name: a, allow: 1000/min, algorithm: token_bucket, consistency: {lease: 24%, for: 11s}}",
			"quota-small a: a lease of 24% of the bucket's size 1000 lasts for less than 15s at its full rate, which Envoys then do not reach (from 25% on it has 250)"},
		{"leased a little in shadow", "{name: a, allow: 1000/min, algorithm: leaky_bucket, on_limit: shadow}", ""},
		{"leaky", "{name: a, allow: 1000/min, algorithm: leaky_bucket}", "quota-never a: it lends nothing, so that buckets of Envoys' quotas that meet it are refused: "},
		{"concurrency", "{name: a, allow: 10, algorithm: concurrency, timeout: 10s}", "quota-never a: it lends nothing"},
		{"in steps", "{name: a, allow: 1000/min, algorithm: token_bucket, refill: interval}", "quota-never a: it lends nothing"},
		{"counting what it denied", "{name: a, allow: 1000/min, algorithm: sliding_log, count_denied: true}", "quota-never a: it lends nothing"},
		{"from the first request", "{name: a, allow: 1000/min, algorithm: fixed_window, align: first_request}", "quota-never a: it lends nothing until a request at another door has begun its window"},
		{"small", "{name: a, allow: 19/min}", "quota-never a: a lease of 10% of N 19 has 1 unit, and 2 are needed at least, so that buckets of Envoys' quotas that meet it are refused (from 11% on it has 2)"},
		{"expensive", "{name: a, allow: 100/min, cost: 20}", "quota-never a: a lease of 10% of N 100 has 10 units, and 20 are needed"},
		{"small for one", "{name: a, per: [tenant], allow: 1000/min, override: {acme: 5/min}}", "quota-never a: a lease of 10% of N 5 has 0 units"},
		{"nothing", "{name: a, allow: 0/min}", ""},
		{"known", "# lint: ignore quota-never\n{name: a, allow: 19/min}", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, lend := range [][]string{nil, {"edge"}} { // as lint loads rules, and as the server does
				set, _, err := Load([]Source{{Name: "x.yaml",
					Data: []byte("domain: edge\nlimits: [\n" + c.text + "\n]")}}, Options{Lend: lend})
				if err != nil {
					t.Fatal(err)
				}
				got := ""
				for _, p := range Lint(set, LintOptions{Quotas: []string{"edge"}}) {
					if !strings.HasPrefix(p.Name, "quota-") {
						continue
					}
					if got += p.Name + " " + p.Message; p.Hint != "" {
						got += " (" + p.Hint + ")"
					}
				}
				if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
					t.Errorf("got %q, want %q", got, c.want)
				}
				for _, p := range Lint(set, LintOptions{Quotas: []string{"other"}}) {
					if strings.HasPrefix(p.Name, "quota-") {
						t.Errorf("another domain's quotas: %q", p.Message)
					}
				}
			}
		})
	}
}

// TestLeaseReload: the share and the time of a lease are part of the numbers of a limit, and a
// reload that changes them keeps the counters, and the record of units out. Another window carries
// both on. Without the lease the record is nobody's.
func TestLeaseReload(t *testing.T) {
	describe := func(c *rule.Counter) string {
		text := fmt.Sprint(c.Limit.Config().Window)
		if c.Lease != nil {
			text += fmt.Sprintf(" %d%%/%v", c.Limit.Config().Lease, c.Lease.Limit.Config().Timeout)
		}
		for _, p := range c.Previous {
			text += " <" + p.Limit.Config().Window.String()
			if p.Lease != nil {
				text += "+record"
			}
		}
		return text
	}
	for _, c := range []struct {
		name, before, after string
		want                string
		counts, records     bool // kept under the same identity
	}{
		{"the same", "allow: 100/min, consistency: {lease: 5%}", "allow: 100/min, consistency: {lease: 5%}", "1m0s 5%/1.5s", true, true},
		{"another share", "allow: 100/min, consistency: {lease: 5%}", "allow: 100/min, consistency: {lease: 20%}", "1m0s 20%/6s", true, true},
		{"another time", "allow: 100/min, consistency: {lease: 5%}", "allow: 900/min, consistency: {lease: 5%, for: 250ms}", "1m0s 5%/250ms", true, true},
		{"a new lease", "allow: 100/min", "allow: 100/min, consistency: {lease: 5%}", "1m0s 5%/1.5s", true, false},
		{"exact again", "allow: 100/min, consistency: {lease: 5%}", "allow: 100/min, consistency: exact", "1m0s", true, false},
		{"another window", "allow: 100/min, consistency: {lease: 5%}", "allow: 100/2m, consistency: {lease: 5%}", "2m0s 5%/3s <1m0s+record", false, false},
	} {
		counter := func(s *rule.Set) *rule.Counter { return s.Rules()[0].Windows[0].Counter }
		load := func(text string) *rule.Set {
			s, _ := only(t, "limits: [{name: a, per: [user], "+text+"}]")
			return s
		}
		before, after := load(c.before), load(c.after)
		after.Inherit(before)
		old, now := counter(before), counter(after)
		if got := describe(now); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if (old.ID == now.ID) != c.counts {
			t.Errorf("%s: what is counted is kept: %v", c.name, old.ID == now.ID)
		}
		if kept := old.Lease != nil && now.Lease != nil && old.Lease.ID == now.Lease.ID; kept != c.records {
			t.Errorf("%s: the record is kept: %v", c.name, kept)
		}
	}
}

// TestLeaseOfEachPart: overrides, phases and elastic shares of a leased rule are leased by the same
// share for the same time, since they share the record.
func TestLeaseOfEachPart(t *testing.T) {
	_, r := only(t, `limits: [{name: a, per: [user], allow: 1000/min, override: {big: 9000/min}, schedule: [{days: sun, allow: 50/min}],
  throttle: {elastic: {signal: cpu, curve: {50%: 200%, 90%: 10%}}}, consistency: {lease: 10%}}]`)
	windows := append([]*rule.Window{r.Windows[0]}, r.Overrides[0].Windows...)
	for _, w := range windows {
		for _, share := range []int64{200, 100, 10} {
			scaled, err := w.Limit.Scale(share, 100)
			if err != nil {
				t.Fatal(err)
			}
			parts := []*algo.Limit{scaled}
			if scaled.Scheduled() {
				_, phases, _ := scaled.Schedule()
				parts = append(parts, phases[0].Limit)
			}
			for _, p := range parts {
				if c := p.Config(); c.Lease != 10 || p.Lease() == nil || p.Lease().Config().Timeout.String() != "3s" {
					t.Errorf("%s at %d%%: %s", w.Name, share, p)
				}
			}
		}
	}
}
