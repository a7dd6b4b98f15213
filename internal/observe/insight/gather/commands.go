package gather

import (
	"time"
	"unsafe"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// newCommands returns the state for commands, like a rule without limits.
func newCommands(now time.Time) *ruleState {
	r := &rule.Rule{Domain: insight.CommandDomain, Name: insight.CommandRule}
	s := newRuleState(0, r, definitionOf(r), now)
	s.rule, s.brought, s.windows = r, true, int(insight.CommandKinds)
	return s
}

// isCommand reports whether this is the state for commands.
func (s *ruleState) isCommand() bool { return insight.IsCommandRule(s.domain, s.name) }

// Command counts and samples the answer to a command with its own limit: the key, the units that it
// asked for, the store's time in µs, and the result. It runs on the deciding path, and keeps
// neither key nor r. Do not call it for peeks, refunds and failures. Commands that run at the same
// time must not share a result.
func (c *Collector) Command(kind insight.CommandKind, key []byte, asked, now int64, r *algo.Result) {
	g, thins, outcome := c.commands.gate, thinning(c.thinning.Load()), outcomePassed
	thin := thins.quiet()
	if !r.Allowed {
		outcome, thin = outcomeAlone, thins.refused()
	}
	// As observe.Turn does: commands that are decided at once have different results.
	turn := uint64(uintptr(unsafe.Pointer(r))) >> 6 * 0x9e3779b97f4a7c15 >> 32
	hash, n := c.o.Tally.Hash(key), g.cell(turn, &c.wide).n[counterOf(roleFirst, outcome)].Add(1)
	// The count of commands and the key's hash stand in for a random number, which would take a
	// third of the time spent here. No client knows the seed of the hash (wyrand, Wang Yi 2019).
	random := foldProduct(uint64(n)+0xa0761d6478bd642f, hash^0xe7037ed1a0b428db)
	if !g.asked.Load() {
		c.askedGates.add(g)
	}
	if random&powerMask(thin) == 0 || hash < g.beyond.Load() {
		if w, take := g.draw(hash, outcome, thins, random); take {
			c.emitCommand(kind, key, asked, now, r, hash, w, turn)
		}
	}
}

// emitCommand writes the event of a command.
func (c *Collector) emitCommand(
	kind insight.CommandKind, key []byte, asked, now int64, r *algo.Result, hash uint64, w weights, turn uint64,
) {
	ring := &c.rings[turn&uint64(len(c.rings)-1)]
	s, n := ring.claim()
	if s == nil {
		c.wake()
		return
	}
	e := &s.e
	*e = event{
		hash: hash, at: now, rule: c.commands.gate.number, window: uint16(kind), flags: flagFirst | flagPassed,
		asked: clamp32(asked), limit: clamp32(r.Limit), used: clamp32(r.Limit - r.Remaining),
		weights: w, door: c.doors.number("resp"),
	}
	if !r.Allowed {
		if e.flags = flagFirst | flagRefused | flagRuleRefused; r.RetryAfter != algo.Never {
			e.retry = now + r.RetryAfter
		}
	}
	if e.length = uint8(copy(e.key[:], key)); int(e.length) < len(key) {
		e.flags |= flagCut
	}
	if ring.publish(s, n) {
		c.wake()
	}
}

// appendCommandKey appends the key of a command as people read it. The end of one that is cut may
// be a part of a character.
func appendCommandKey(dst []byte, e *event) []byte {
	key := e.key[:e.length]
	if e.flags&flagCut != 0 {
		key = key[:observe.CutAt(key, len(key)+len(observe.CutMark)-1)]
	}
	return append(append(dst, insight.CommandKeyName+"="...), key...)
}

// commandDomain returns the snapshot of the domain of commands; ok is false if there were none.
func (c *Collector) commandDomain(s *snapshot.Snapshot) (d snapshot.Domain, ok bool) {
	x := c.commands.series
	if x == nil {
		return d, false // there were none
	}
	return domainOf(x, insight.CommandDomain, c.commands.since.Unix(), s), true
}
