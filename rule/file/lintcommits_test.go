package file

import (
	"strings"
	"testing"
)

// A rule is warned of whose bucket hardly gives back an estimate at a commit, and no other.
func TestCommitLost(t *testing.T) {
	const after = `cost_after: 'int(response.header["x-tokens"])'`
	for _, c := range []struct{ rule, want string }{
		{`algorithm: token_bucket, allow: 60000/min, cost: 2000, ` + after, "the bucket refills an estimate of 2000 in 2s, and gives nothing of it back"},
		{`algorithm: token_bucket, per: [user], allow: 60000/min, cost: 2000, ` + after, "in 2s"},
		{`algorithm: token_bucket, allow: {rate: 1000000/s, burst: 50000}, cost: 10, ` + after, "in 1ms"},
		{`algorithm: token_bucket, per: [user], allow: {rate: 1000/min, burst: 12000}, cost: 2000, ` + after, ""},
		{`algorithm: token_bucket, allow: 60000/min, ` + after, ""}, // one hit is one unit
		{`algorithm: token_bucket, allow: 60000/min, cost: 2000`, ""},
		{`algorithm: sliding_window, buckets: 60, allow: 60000/min, cost: 2000, ` + after, ""},
		{`algorithm: fixed_window, allow: 60000/min, cost: 2000, ` + after, ""},
		{`algorithm: token_bucket, allow: 0/min, cost: 2000, ` + after, ""},
		{`algorithm: token_bucket, refill: interval, allow: 1000/s, cost: 2000, ` + after, "when a new interval of 1s has begun"},
		{`algorithm: token_bucket, refill: interval, allow: 60000/min, cost: 2000, ` + after, ""},
		{`algorithm: token_bucket, allow: 60000/min, cost: 'size(path)', ` + after, "for one that all share nearly nothing"},
		{`algorithm: token_bucket, per: [user], allow: 60000/min, cost: 'size(path)', ` + after, ""},
		{`algorithm: token_bucket, per: [user], allow: 1000/day, cost: 2000, throttle: {elastic: {signal: cpu, curve: {50%: 100%, 90%: 50%}}}, ` + after, "that follows a signal gives nothing back"},
	} {
		set, _, err := load(t, "x.yaml", "limits: [{name: a, "+c.rule+"}]")
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		var got []string
		for _, p := range Lint(set, LintOptions{}) {
			if p.Name == "commit-lost" {
				got = append(got, p.Error())
			}
		}
		if len(got) > 1 || (len(got) == 1) != (c.want != "") || c.want != "" && !strings.Contains(got[0], c.want) {
			t.Errorf("%s: %q, want %q", c.rule, got, c.want)
		}
	}
}
