package grpclimit

import (
	"strings"
	"sync/atomic"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// healthService is the service by which orchestrators and balancers probe a server: one whose probe
// is refused is killed, or gets no more calls.
const healthService = "grpc.health.v1.Health"

// probes lets health checks pass.
type probes struct {
	passed atomic.Uint64
	known  atomic.Pointer[naming]
}

// naming says whether rules name the health service.
type naming struct {
	generation uint64
	domain     string
	named      bool
}

// isProbe reports whether a method is one of the health service.
func isProbe(fullMethod string) bool {
	const prefix = "/" + healthService + "/"
	return len(fullMethod) > len(prefix) && fullMethod[:len(prefix)] == prefix
}

// passes reports whether a call passes without a decision: Options.Skip says so, or it is a health
// check that no rule limits by its name.
func (g *Gate) passes(fullMethod string) bool {
	if g.o.Skip != nil {
		return g.o.Skip(fullMethod)
	}
	if !isProbe(fullMethod) || g.namesHealth() {
		return false
	}
	g.probes.passed.Add(1)
	return true
}

// namesHealth reports whether a rule in force names the health service.
func (g *Gate) namesHealth() bool {
	set, generation := g.limiter.Rules()
	if set == nil {
		return false
	}
	if n := g.probes.known.Load(); n != nil && n.generation == generation {
		return n.named
	}
	n := &naming{generation: generation, domain: set.DomainFor(g.o.Domain)}
	for _, r := range set.Rules() {
		if n.named = r.Domain == n.domain && namesHealth(r); n.named {
			break
		}
	}
	g.probes.known.Store(n)
	return n.named
}

// namesHealth reports whether a rule names the health service, or a method of it: by a condition on
// any attribute, by its `if`, or by a value of a descriptor.
func namesHealth(r *rule.Rule) bool {
	if namesIt(r.If) {
		return true
	}
	for i := range r.When {
		for j := range r.When[i].Patterns {
			p := &r.When[i].Patterns[j]
			if !p.Negated && (namesIt(p.Source) || namesIt(p.Text())) {
				return true
			}
		}
	}
	if r.Lyft != nil {
		for _, e := range r.Lyft.Path {
			if namesIt(e.Value) {
				return true
			}
		}
	}
	return false
}

// namesIt reports whether a text has the name of the health service, or the beginning of it that
// all its versions share. A regular expression has backslashes in it, and a glob or a path may be
// in lower case, as it is compared.
func namesIt(text string) bool {
	const prefix = "grpc.health"
	return strings.Contains(strings.ToLower(strings.ReplaceAll(text, `\`, "")), prefix)
}

// onlyNamed leaves of the rules that a health check meets those that name it.
func onlyNamed(d *weir.Decision) bool {
	m := &d.Matches
	left, place := m.Hits[:0], make([]int, len(m.Hits))
	for i, h := range m.Hits {
		if place[i] = -1; namesHealth(h.Window.Rule) {
			place[i] = len(left)
			left = append(left, h)
		}
	}
	m.Hits = left
	for i := range m.Descriptors {
		if of := &m.Descriptors[i]; of.Hit >= 0 {
			of.Hit = place[of.Hit]
			of.Unlimited = of.Hit < 0
		}
	}
	return true
}
