package rule

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-rl/weir/algo"
)

// Spec is a native limit of the default domain in a few words, for programs that read no rule
// files. weir.Limit makes one.
type Spec struct {
	Name  string
	Allow string // in the scalar notation of `allow`: "10/min", "100/15m", "25 concurrent"
	// Per are the attributes that make the counter's key, each as an entry of `per`: "user",
	// "user|ip". Without any there is one counter for all.
	Per []string
	// Algorithm counts the requests. SlidingWindow, the zero value, means Concurrency where Allow
	// is of slots.
	Algorithm algo.Algorithm
	Soft      int  // the margin above Allow that admits requests as well, in percent of it
	Ban       *Ban // nil for none; its Counter is ignored
}

// Of returns a Set of limits, in order. The error says all that is wrong with them.
func Of(specs ...Spec) (*Set, error) {
	f := &File{Domain: DefaultDomain}
	var errs []error
	named := map[string]bool{}
	for i := range specs {
		r, problems := specs[i].rule()
		if named[r.Name] {
			problems = append(problems, Problem{Rule: clip(r.Name), Message: "name: another limit has it already"})
		}
		if f.Rules, named[r.Name] = append(f.Rules, r), true; len(problems) > 0 {
			errs = append(errs, fmt.Errorf("limit %q: %w", clip(r.Name), problems))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	set, problems := Compile([]*File{f}, Options{})
	for _, p := range problems {
		errs = append(errs, fmt.Errorf("limit %q: %w", p.Rule, p))
	}
	return set, errors.Join(errs...)
}

// rule returns the limit as a rule, and all that is wrong with it.
func (s *Spec) rule() (*Rule, Problems) {
	var problems Problems
	report := func(p Problem) {
		same := func(o Problem) bool { return o.Message == p.Message }
		if p.Rule = clip(s.Name); !slices.ContainsFunc(problems, same) {
			problems = append(problems, p)
		}
	}
	r := New(s.Name, DefaultDomain)
	if !ValidName(s.Name) {
		report(Problem{Message: fmt.Sprintf("name: expected 1 to 200 letters, digits, -, _ and ., got %q",
			clip(s.Name))})
	}
	keys, faults := ParsePer(s.Per)
	for _, f := range faults {
		report(f.Problem)
	}
	r.Per = keys
	switch rate, err := ParseRate(s.Allow); {
	case err != nil:
		report(Problem{Message: fmt.Sprintf("allow: %v", err)})
	case rate.Unlimited && s.Soft != 0:
		report(Problem{Message: "soft: nothing is limited"})
	case rate.Unlimited:
		r.Unlimited = true
	default:
		if limit, p := s.limit(rate); p.Message != "" {
			report(p)
		} else {
			r.Windows = []*Window{{Rule: r, Name: s.Name, Limit: limit}}
		}
	}
	if s.Ban != nil {
		ban := *s.Ban
		ban.Counter, r.Ban = nil, &ban
		for _, p := range r.checkBan() {
			report(p)
		}
	}
	return r, problems
}

// limit returns the limit of a rate, or what is wrong with it.
func (s *Spec) limit(rate Rate) (*algo.Limit, Problem) {
	c := algo.Config{Algorithm: s.Algorithm, N: rate.N, Window: rate.Window, Soft: s.Soft}
	slots := rate.Window == 0
	switch {
	case int(s.Algorithm) >= len(algo.Algorithms()):
		return nil, Problem{Message: fmt.Sprintf("algorithm: there is none with the number %d", uint8(s.Algorithm))}
	case slots && s.Algorithm == algo.SlidingWindow && !rate.Concurrent:
		return nil, Problem{Message: fmt.Sprintf("allow: %s names no unit", rate), Hint: rate.UnitHint()}
	case slots && s.Algorithm == algo.SlidingWindow:
		c.Algorithm = algo.Concurrency
	case slots && s.Algorithm != algo.Concurrency:
		return nil, Problem{
			Message: fmt.Sprintf("allow: a number without a unit is for concurrency; %s needs N/unit or N/duration", s.Algorithm),
			Hint:    fmt.Sprintf("as in: %d/min", rate.N),
		}
	case !slots && s.Algorithm == algo.Concurrency:
		return nil, Problem{
			Message: fmt.Sprintf("allow: concurrency takes a number, the most that may be in flight; got %s", rate),
			Hint:    fmt.Sprintf("as in: allow: %d concurrent", rate.N),
		}
	case s.Algorithm == algo.FixedWindow:
		c.Calendar = rate.Calendar()
	}
	limit, err := algo.New(c)
	if err != nil {
		return nil, Problem{Message: fmt.Sprintf("allow: %v", err)}
	}
	return limit, Problem{}
}

// checkBan returns what is wrong with the ban of r.
func (r *Rule) checkBan() (problems Problems) {
	fault := func(format string, args ...any) {
		problems = append(problems, Problem{Message: "ban: " + fmt.Sprintf(format, args...)})
	}
	b := r.Ban
	if b.After < 1 || b.After > algo.MaxLogN {
		fault("After is %d denials; it must be from 1 to %d", b.After, algo.MaxLogN)
	}
	span := func(name string, d time.Duration) {
		if d <= 0 || d > algo.MaxWindow || d%time.Microsecond != 0 {
			fault("%s is %v; it must be a whole number of microseconds, above 0 and at most 366 days", name, d)
		}
	}
	span("Within", b.Within)
	span("For", b.For)
	switch {
	case r.Unlimited:
		fault("it has no meaning where nothing is limited")
	case len(r.Per) == 0:
		fault("with the one counter that this limit has, a ban would refuse everybody; name attributes that make a key")
	case b.NFTables && !(len(r.Per) == 1 && slices.Equal(r.Per[0], Key{"ip"})):
		fault("nftables drops the packets of addresses, so that the key must be an address and nothing else")
	}
	return problems
}
