package rule

import (
	"fmt"
	"slices"

	"github.com/weir-rl/weir/algo"
)

// One returns a Set of a single native limit of the default domain: name, the allowance in the
// scalar notation of `allow` ("10/min", "100/15m", "25 concurrent"), and the attributes that make
// the counter's key, each as an entry of `per` ("user", "user|ip"); without any there is one
// counter for all. weir.Limit uses it.
func One(name, allow string, per ...string) (*Set, error) {
	var problems Problems
	report := func(p Problem) {
		same := func(o Problem) bool { return o.Message == p.Message }
		if p.Rule = clip(name); !slices.ContainsFunc(problems, same) {
			problems = append(problems, p)
		}
	}
	r := New(name, DefaultDomain)
	if !ValidName(name) {
		report(Problem{Message: fmt.Sprintf("name: expected 1 to 200 letters, digits, -, _ and ., got %q", clip(name))})
	}
	keys, faults := ParsePer(per)
	for _, f := range faults {
		report(f.Problem)
	}
	r.Per = keys
	rate, err := ParseRate(allow)
	var limit *algo.Limit
	switch {
	case err != nil:
	case rate.Unlimited:
		r.Unlimited = true
	case rate.Window == 0 && !rate.Concurrent:
		report(Problem{Message: fmt.Sprintf("allow: %s names no unit", rate), Hint: rate.UnitHint()})
	case rate.Window == 0:
		limit, err = algo.New(algo.Config{Algorithm: algo.Concurrency, N: rate.N})
	default:
		limit, err = algo.New(algo.Config{N: rate.N, Window: rate.Window})
	}
	if err != nil {
		report(Problem{Message: fmt.Sprintf("allow: %v", err)})
	}
	if limit != nil {
		r.Windows = []*Window{{Rule: r, Name: name, Limit: limit}}
	}
	var set *Set
	if len(problems) == 0 {
		set, problems = Compile([]*File{{Domain: DefaultDomain, Rules: []*Rule{r}}}, Options{})
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("limit %q: %w", clip(name), problems)
	}
	return set, nil
}
