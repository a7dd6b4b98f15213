package sim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// waits reports whether a door that can hold requests would hold this one, with no other request in
// line before it: a leaky bucket gives it a turn within the rule's wait, or all limits that refuse
// it have on_limit: wait, and none of them refuses for longer than the shortest wait.
func waits(q *weir.Request, d *weir.Decision) bool {
	if q.Cost() <= 0 || q.Descriptors != nil || d.Banned.Rule != nil || d.Allowed && d.Delay == 0 {
		return false
	}
	var longest int64
	shortest := time.Duration(math.MaxInt64)
	for i := range d.Limits {
		l := &d.Limits[i]
		r, limit := l.Window.Rule, l.Window.Counter.Limit
		switch {
		case l.Mode == rule.Shadow || l.Allowed && l.Delay == 0:
		case d.Allowed:
			longest = max(longest, l.Delay)
			if r.Wait > 0 { // without one, any wait is acceptable
				shortest = min(shortest, r.Wait)
			}
		case l.Allowed: // a turn that was not taken
		case r.Wait == 0 || l.Mode != rule.Enforce || l.RetryAfter == algo.Never || limit.Delays():
			return false
		default:
			shortest = min(shortest, r.Wait)
			if !limit.HasSlots() { // a slot may come back at any time
				longest = max(longest, l.RetryAfter)
			}
		}
	}
	return longest <= shortest.Microseconds()
}

// deferredTo returns the queue that a door that can defer would put the request into, as a list.
func deferredTo(q *weir.Request, d *weir.Decision) []string {
	if queue := d.DeferTo(); queue != "" && q.Descriptors == nil {
		return []string{queue}
	}
	return []string{}
}

func deferredInto(queues []string) string {
	if len(queues) == 0 {
		return "not deferred"
	}
	return "deferred to " + strings.Join(queues, ", ")
}

// remainingOf returns the remaining number of each limit that was met, including limits in shadow.
// It is keyed by the name of the limit and, for the least of a rule's windows, by the name of the
// rule.
func remainingOf(d *weir.Decision) map[string]int64 {
	left := map[string]int64{}
	for i := range d.Limits {
		l := &d.Limits[i]
		for _, name := range []string{l.Window.Name, l.Window.Rule.Name} {
			if n, ok := left[name]; !ok || l.Remaining < n {
				left[name] = l.Remaining
			}
		}
	}
	return left
}

// holdsRemaining reports whether left has all entries of want.
func holdsRemaining(want, left map[string]int64) bool {
	for name, n := range want {
		if got, ok := left[name]; !ok || got != n {
			return false
		}
	}
	return true
}

// describeRemaining writes the entries of left for the limits in want.
func describeRemaining(want, left map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if n, ok := left[name]; ok {
			parts = append(parts, fmt.Sprintf("remaining of %s %d", name, n))
		} else {
			parts = append(parts, "remaining of "+name+" none (it was not met)")
		}
	}
	return strings.Join(parts, ", ")
}

// remaining reads a number, or numbers by the names of limits.
func (p *testParser) remaining(n ast.Node, e *Expect) {
	switch unwrap(n).(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
	default:
		if n, ok := p.integer(n, "remaining", 0, math.MaxInt64); ok {
			e.Remaining = &n
		}
		return
	}
	e.RemainingOf = map[string]int64{}
	p.mapping(n, "remaining", nil, func(name string, v ast.Node) {
		if n, ok := p.integer(v, "remaining of "+name, 0, math.MaxInt64); ok {
			e.RemainingOf[name] = n
		}
	})
}
