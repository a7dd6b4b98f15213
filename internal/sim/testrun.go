package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// StepResult is what became of one step.
type StepResult struct {
	Step *Step
	What string // the step in words
	// Failed is the number of the request (of `times`) whose answer was not as expected, from 1; 0 if all were.
	Failed   int
	Expected string // what was expected, in words; set if the step failed
	Got      string // what came, in words; "" for a wait
}

// TestResult is what became of one test. It failed if Failed.
type TestResult struct {
	Test   *Test
	Steps  []StepResult // all of them, also after a failure
	Failed bool
}

// RunTest runs one test on rules in the given domain. The error is of the machinery, not of the test.
func RunTest(set *rule.Set, domain string, t *Test) (*TestResult, error) {
	e, err := NewEngine(set)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	e.SetTime(t.Start)
	r := &TestResult{Test: t}
	var slots []string
	var d weir.Decision
	for _, s := range t.Steps {
		var res StepResult
		switch {
		case s.Send != nil:
			res, err = runSend(e, domain, s, &d, &slots)
		case s.Release > 0:
			res, err = runRelease(e, s, &slots)
		case s.Set != nil:
			res = runSet(e, set, domain, s.Set)
		default:
			e.SetTime(e.Now() + s.Wait.Microseconds())
			res = StepResult{What: "wait " + span(s.Wait.Microseconds())}
		}
		if err != nil {
			return nil, err
		}
		res.Step = s
		r.Steps = append(r.Steps, res)
		r.Failed = r.Failed || res.Failed > 0
	}
	return r, nil
}

func runSend(e *Engine, domain string, s *Step, d *weir.Decision, slots *[]string) (StepResult, error) {
	send := s.Send
	res := StepResult{What: send.String()}
	q := weir.Request{Domain: domain, Attributes: send.Attributes, Hits: send.Hits, MaxDelay: weir.AnyDelay}
	if send.MaxDelay >= 0 {
		q.MaxDelay = send.MaxDelay
	}
	for i := range send.Times {
		if err := e.Decide(&q, d); err != nil {
			return res, err
		}
		for k := range d.Limits {
			if slot := d.Limits[k].Slot; slot != "" {
				*slots = append(*slots, slot)
			}
		}
		// After a failure the rest is sent all the same, so that later steps see what the file says.
		if answer := newAnswer(d); res.Failed > 0 {
			continue
		} else if s.Expect != nil && !s.Expect.holds(answer) {
			res.Failed, res.Expected, res.Got = i+1, s.Expect.String(), answer.compared(s.Expect)
		} else if i == send.Times-1 {
			res.Got = answer.summary()
		}
	}
	return res, nil
}

func runRelease(e *Engine, s *Step, slots *[]string) (StepResult, error) {
	res := StepResult{What: "release " + strconv.Itoa(s.Release)}
	for i := range s.Release {
		if i == len(*slots) {
			res.Failed, res.Expected, res.Got = i+1, fmt.Sprintf("%d slots to give back", s.Release), fmt.Sprintf("only %d are held", i)
			*slots = nil
			return res, nil
		}
		ok, err := e.Release((*slots)[i])
		if err != nil {
			return res, err
		}
		if !ok && res.Failed == 0 {
			res.Failed, res.Expected, res.Got = i+1, "the slot to be held", "it had timed out"
		}
	}
	*slots = (*slots)[s.Release:]
	return res, nil
}

// runSet sets a signal. One that no limit of the domain follows is a failure: the test would not test what it says.
func runSet(e *Engine, set *rule.Set, domain string, s *SetSignal) StepResult {
	res := StepResult{What: fmt.Sprintf("set { signal: %s, to: %d%% }", s.Signal, s.To)}
	e.SetSignal(s.Signal, s.To)
	var followed []string
	for _, r := range set.Rules() {
		if r.Domain == domain && r.Elastic != nil && !slices.Contains(followed, r.Elastic.Signal) {
			followed = append(followed, r.Elastic.Signal)
		}
	}
	if !slices.Contains(followed, s.Signal) {
		res.Failed, res.Expected, res.Got = 1, "an elastic limit that follows "+s.Signal, "none follows any signal"
		if len(followed) > 0 {
			res.Got = "limits follow " + strings.Join(followed, ", ")
		}
	}
	return res
}

// String writes a send as the file does.
func (s *Send) String() string {
	var b strings.Builder
	b.WriteString("send {")
	sep := " "
	for _, a := range s.Attributes {
		fmt.Fprintf(&b, "%s%s: %s", sep, a.Name, a.Value)
		sep = ", "
	}
	if s.Hits != 1 {
		fmt.Fprintf(&b, "%shits: %d", sep, s.Hits)
		sep = ", "
	}
	if s.MaxDelay >= 0 {
		fmt.Fprintf(&b, "%smax_delay: %s", sep, s.MaxDelay)
		sep = ", "
	}
	if s.Times != 1 {
		fmt.Fprintf(&b, "%stimes: %d", sep, s.Times)
		sep = ", "
	}
	if sep == ", " {
		b.WriteByte(' ')
	}
	b.WriteByte('}')
	return b.String()
}

// answer is a decision as tests see it.
type answer struct {
	allowed    bool
	deniedBy   []string // in the order of the rule file, each once
	met        bool     // an enforcing limit was met
	remaining  int64
	retryAfter int64
	resetAfter int64
	delay      int64
}

func newAnswer(d *weir.Decision) answer {
	a := answer{allowed: d.Allowed, deniedBy: d.LimitedBy([]string{}), retryAfter: d.RetryAfter, delay: d.Delay}
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Mode == rule.Shadow {
			continue
		}
		if !a.met || l.Remaining < a.remaining {
			a.remaining = l.Remaining
		}
		a.resetAfter = max(a.resetAfter, l.ResetAfter)
		a.met = true
	}
	return a
}

func (e *Expect) holds(a answer) bool {
	return (e.Allowed == nil || *e.Allowed == a.allowed) &&
		(e.DeniedBy == nil || slices.Equal(e.DeniedBy, a.deniedBy)) &&
		(e.Remaining == nil || a.met && *e.Remaining == a.remaining) &&
		(e.RetryAfter == nil || *e.RetryAfter == a.retryAfter) &&
		(e.ResetAfter == nil || a.met && *e.ResetAfter == a.resetAfter) &&
		(e.Delay == nil || *e.Delay == a.delay)
}

func (e *Expect) String() string {
	var parts []string
	if e.Allowed != nil {
		parts = append(parts, verdict(*e.Allowed))
	}
	if e.DeniedBy != nil {
		parts = append(parts, deniedBy(e.DeniedBy))
	}
	if e.Remaining != nil {
		parts = append(parts, "remaining "+strconv.FormatInt(*e.Remaining, 10))
	}
	if e.RetryAfter != nil {
		parts = append(parts, "retry_after "+span(*e.RetryAfter))
	}
	if e.ResetAfter != nil {
		parts = append(parts, "reset_after "+span(*e.ResetAfter))
	}
	if e.Delay != nil {
		parts = append(parts, "delay "+span(*e.Delay))
	}
	return strings.Join(parts, ", ")
}

func verdict(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

func deniedBy(names []string) string {
	if len(names) == 0 {
		return "denied by none"
	}
	return "denied by " + strings.Join(names, ", ")
}

func (a answer) verdict() string {
	if a.allowed {
		return "allowed"
	}
	return deniedBy(a.deniedBy)
}

// compared tells the verdict and whatever e compares.
func (a answer) compared(e *Expect) string {
	s := a.verdict()
	none := func(v string) string {
		if !a.met {
			return "none (no limit was met)"
		}
		return v
	}
	if e.Remaining != nil {
		s += ", remaining " + none(strconv.FormatInt(a.remaining, 10))
	}
	if e.RetryAfter != nil || !a.allowed {
		s += ", retry_after " + span(a.retryAfter)
	}
	if e.ResetAfter != nil {
		s += ", reset_after " + none(span(a.resetAfter))
	}
	if e.Delay != nil || a.delay > 0 {
		s += ", delay " + span(a.delay)
	}
	return s
}

func (a answer) summary() string {
	s := a.verdict()
	switch {
	case !a.allowed:
		s += ", retry_after " + span(a.retryAfter)
	case !a.met:
		s += ", no limit was met"
	case a.delay > 0:
		s += ", delay " + span(a.delay)
	}
	return s
}

// span writes µs as rule tests write durations, without empty units.
func span(us int64) string {
	if us == algo.Never {
		return "never"
	}
	if us > 1<<53 {
		return fmt.Sprintf("%d us", us)
	}
	s := (time.Duration(us) * time.Microsecond).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return strings.ReplaceAll(s, "µ", "u")
}
