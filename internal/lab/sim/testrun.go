package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// StepResult is the outcome of one step.
type StepResult struct {
	Step *Step
	What string // the step in words
	// Failed is the number of the request (of `times`) that had an unexpected answer, from 1; 0 if
	// none had.
	Failed   int
	Expected string // the expectation in words; set if the step failed
	Got      string // the answer in words; "" for a wait
}

// TestResult is the outcome of one test. It failed if Failed.
type TestResult struct {
	Test   *Test
	Steps  []StepResult // all of them, also after a failure
	Failed bool
}

// pauseEvery is how many requests a test sends, or slots it gives back, between two pauses.
const pauseEvery = 32

// mostSlots bounds the concurrency slots that a test holds at once, for the sake of memory.
const mostSlots = 1_000_000

// RunTest runs one test on rules in the given domain. It calls pause before each step and every 32
// requests of a step. An error of pause ends the test, and says how far the test came. Other errors
// are about the machinery, not about the test.
func RunTest(set *rule.Set, domain string, t *Test, pause func() error) (*TestResult, error) {
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
		if err := pause(); err != nil {
			return nil, fmt.Errorf("line %d: %w", s.Line, err)
		}
		switch {
		case s.Send != nil:
			res, err = runSend(e, domain, s, &d, &slots, pause)
		case s.Release > 0:
			res, err = runRelease(e, s, &slots, pause)
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

func runSend(e *Engine, domain string, s *Step, d *weir.Decision, slots *[]string,
	pause func() error) (StepResult, error) {
	send := s.Send
	res := StepResult{What: send.String()}
	q := weir.Request{Domain: domain, Attributes: send.Attributes, Hits: send.Hits, Peek: send.Hits == 0,
		MaxDelay: weir.AnyDelay}
	if send.Descriptors != nil {
		// Envoy's door cannot hold requests
		q.Attributes, q.Descriptors, q.MaxDelay = nil, send.Descriptors, 0
	}
	if send.MaxDelay >= 0 {
		q.MaxDelay = send.MaxDelay
	}
	for i := range send.Times {
		if i%pauseEvery == pauseEvery-1 {
			if err := pause(); err != nil {
				return res, fmt.Errorf("line %d, after %d of %d requests: %w", s.Line, i, send.Times, err)
			}
		}
		if err := e.Decide(&q, d); err != nil {
			return res, err
		}
		for k := range d.Limits {
			if slot := d.Limits[k].Slot; slot != "" {
				*slots = append(*slots, slot)
			}
		}
		if len(*slots) > mostSlots {
			return res, fmt.Errorf(
				"line %d, after %d of %d requests: a test can hold %d slots of concurrency limits at once: have it release some, or send fewer requests", s.Line, i+1, send.Times, mostSlots)
		}
		// After a failure the other requests are sent all the same, so that later steps start from
		// the state that the file describes.
		answer := newAnswer(&q, d)
		if s.Expect != nil && s.Expect.RemainingOf != nil {
			answer.left = remainingOf(d)
		}
		switch {
		case res.Failed > 0:
		case s.Expect != nil && !s.Expect.holds(answer):
			res.Failed, res.Expected, res.Got = i+1, s.Expect.String(), answer.compared(s.Expect)
		case i == send.Times-1:
			res.Got = answer.summary()
		}
	}
	return res, nil
}

func runRelease(e *Engine, s *Step, slots *[]string, pause func() error) (StepResult, error) {
	res := StepResult{What: "release " + strconv.Itoa(s.Release)}
	for i := range s.Release {
		if i == len(*slots) {
			res.Failed, res.Expected, res.Got = i+1, fmt.Sprintf("%d slots to give back",
				s.Release), fmt.Sprintf("only %d are held", i)
			*slots = nil
			return res, nil
		}
		if i%pauseEvery == pauseEvery-1 {
			if err := pause(); err != nil {
				return res, fmt.Errorf("line %d, after %d of %d slots: %w", s.Line, i, s.Release, err)
			}
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

// runSet sets a signal. It fails if no limit of the domain follows the signal, because the test
// would test nothing then.
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
	if s.Descriptors != nil {
		fmt.Fprintf(&b, "%sdescriptors: %s", sep, describeDescriptors(s.Descriptors))
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

	soft, near, banned bool
	shadow             []string // limits in shadow that would have refused, each once

	waits bool
	queue []string         // that would take it; at most one
	left  map[string]int64 // by remainingOf; nil if no expectation needs it
}

func newAnswer(q *weir.Request, d *weir.Decision) answer {
	a := answer{allowed: d.Allowed, deniedBy: d.LimitedBy([]string{}), retryAfter: d.RetryAfter, delay: d.Delay,
		banned: d.Banned.Rule != nil,
		waits:  waits(q, d), queue: deferredTo(q, d)}
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Mode == rule.Shadow {
			if name := l.Window.Rule.Name; !l.Allowed && !slices.Contains(a.shadow, name) {
				a.shadow = append(a.shadow, name)
			}
			continue
		}
		a.soft, a.near = a.soft || l.Soft, a.near || l.Near
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
		(e.Delay == nil || *e.Delay == a.delay) &&
		(e.SoftExceeded == nil || *e.SoftExceeded == a.soft) &&
		(e.NearLimit == nil || *e.NearLimit == a.near) &&
		(e.Banned == nil || *e.Banned == a.banned) &&
		(e.Shadow == nil || slices.Equal(e.Shadow, a.shadow)) &&
		(e.Wait == nil || *e.Wait == a.waits) &&
		(e.Defer == nil || slices.Equal(e.Defer, a.queue)) &&
		holdsRemaining(e.RemainingOf, a.left)
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
	if e.SoftExceeded != nil {
		parts = append(parts, fmt.Sprintf("soft_exceeded %t", *e.SoftExceeded))
	}
	if e.NearLimit != nil {
		parts = append(parts, fmt.Sprintf("near_limit %t", *e.NearLimit))
	}
	if e.Banned != nil {
		parts = append(parts, fmt.Sprintf("banned %t", *e.Banned))
	}
	if e.Shadow != nil {
		parts = append(parts, inShadowBy(e.Shadow))
	}
	if e.Wait != nil {
		parts = append(parts, fmt.Sprintf("wait %t", *e.Wait))
	}
	if e.Defer != nil {
		parts = append(parts, deferredInto(e.Defer))
	}
	if len(e.RemainingOf) > 0 {
		parts = append(parts, describeRemaining(e.RemainingOf, e.RemainingOf))
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

func inShadowBy(names []string) string {
	if len(names) == 0 {
		return "denied by none in shadow"
	}
	return "denied in shadow by " + strings.Join(names, ", ")
}

func (a answer) verdict() string {
	if a.allowed {
		return "allowed"
	}
	return deniedBy(a.deniedBy)
}

// compared writes the verdict and all fields that e compares.
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
	if e.SoftExceeded != nil {
		s += fmt.Sprintf(", soft_exceeded %t", a.soft)
	}
	if e.NearLimit != nil {
		s += fmt.Sprintf(", near_limit %t", a.near)
	}
	if e.Banned != nil {
		s += fmt.Sprintf(", banned %t", a.banned)
	}
	if e.Shadow != nil {
		s += ", " + inShadowBy(a.shadow)
	}
	if e.Wait != nil {
		s += fmt.Sprintf(", wait %t", a.waits)
	}
	if e.Defer != nil {
		s += ", " + deferredInto(a.queue)
	}
	if len(e.RemainingOf) > 0 {
		s += ", " + describeRemaining(e.RemainingOf, a.left)
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
