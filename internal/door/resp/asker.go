package resp

import (
	"context"
	"hash"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/store"
)

// verb is a command that decides; noVerb any other one.
type verb uint8

const (
	verbThrottle verb = iota // CL.THROTTLE
	verbCrab                 // THROTTLE
	verbLimit                // WEIR.LIMIT
	verbs                    // how many there are
	noVerb       = verbs
)

// verbNames are the labels of metrics.
var verbNames = [verbs]string{"cl.throttle", "throttle", "weir.limit"}

// verbOf returns the verb of a command that decides, by its name in any case.
func verbOf(name []byte) verb {
	switch len(name) {
	case 8:
		if isFold(name, "THROTTLE") {
			return verbCrab
		}
	case 10:
		if isFold(name, "WEIR.LIMIT") {
			return verbLimit
		}
	case 11:
		if isFold(name, "CL.THROTTLE") {
			return verbThrottle
		}
	}
	return noVerb
}

// isFold reports whether b is an upper-case name of the same length in any case. '.' has no other
// case.
func isFold(b []byte, upper string) bool {
	for i := range len(upper) {
		c := b[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != upper[i] {
			return false
		}
	}
	return true
}

// asker decides one command at a time, and holds all that it takes, so that a decision allocates
// nothing. A command that has to wait is begun with decideNow, and goes on with decideRest, perhaps
// on another goroutine.
type asker struct {
	*Server
	recent  [8]*gcra // by params.hash
	longKey []byte
	hash    hash.Hash // for longKey; nil until there is one
	names   []string
	counts  tally

	// Of the command.
	verb  verb
	start int64           // of the stopwatch
	ctx   context.Context // with the span, if it is followed

	// Of CL.THROTTLE and THROTTLE.
	g        *gcra
	key      []byte // as it was sent
	limit    int64  // that the answer names
	quantity int64
	trace    *weir.Trace
	charges  [1]store.Charge
	results  [1]algo.Result
	at       int64 // the instant of the decision

	// Of WEIR.LIMIT.
	attributes attributes
	request    weir.Request
	decision   weir.Decision
	full       bool
}

// tally counts decisions by one goroutine.
type tally struct {
	n   [verbs][outcomes]uint32
	any bool
}

// decide appends the answer to a command that decides.
func (a *asker) decide(dst []byte, v verb, args [][]byte, trusted bool) []byte {
	dst, done := a.decideNow(dst, v, args, trusted)
	if !done {
		dst = a.decideRest(dst)
	}
	return dst
}

// decideNow is decide for a command that need not wait. If done is false, it has to: decideRest
// comes next, for which args stay as they are.
func (a *asker) decideNow(dst []byte, v verb, args [][]byte, trusted bool) (_ []byte, done bool) {
	a.verb, a.start, a.ctx = v, door.Begin(a.o.Stopwatch), context.Background()
	problem := ""
	switch v {
	case verbThrottle:
		problem = a.readCLThrottle(args, trusted)
	case verbCrab:
		problem = a.readThrottle(args)
	default:
		problem = a.readLimit(args, trusted)
	}
	switch {
	case problem != "":
		dst = appendError(dst, problem)
		a.end(failed)
		return dst, true
	case v == verbLimit:
		done = door.DecideNow(a.ctx, a.limiter, &a.request, &a.decision)
	default:
		done = a.chargeNow()
	}
	if done {
		dst = a.answer(dst, nil)
	}
	return dst, done
}

// decideRest decides a command that decideNow has begun, and appends the answer.
func (a *asker) decideRest(dst []byte) []byte {
	if a.verb == verbLimit {
		return a.answer(dst, door.DecideRest(a.ctx, a.limiter, &a.request, &a.decision))
	}
	return a.answer(dst, a.charge())
}

// answer appends the answer to a command that was decided, or failed with err.
func (a *asker) answer(dst []byte, err error) []byte {
	if a.verb == verbLimit {
		door.Followed(a.o.Tracer, a.request.Trace, err)
	} else {
		a.charged(err)
	}
	if err != nil {
		a.end(failed)
		return appendError(dst, errStore)
	}
	var out outcome
	switch a.verb {
	case verbThrottle:
		dst, out = a.appendCLThrottle(dst)
	case verbCrab:
		dst, out = a.appendThrottle(dst)
	default:
		dst, out = a.appendDecision(dst, a.full), outcomeOf(!a.decision.Allowed, a.request.Hits)
	}
	a.end(out)
	return dst
}

// end counts a command that is answered, and drops its references to the connection's buffer.
func (a *asker) end(out outcome) {
	a.counts.n[a.verb][out]++
	a.counts.any = true
	if a.verb != verbLimit || out == failed {
		door.End(a.o.Stopwatch, a.start, nil, nil)
	} else {
		door.End(a.o.Stopwatch, a.start, &a.request, &a.decision)
	}
	a.attributes.reset()
	a.request = weir.Request{}
	a.decision.Domain = ""
	a.ctx, a.trace, a.key, a.charges[0].Key = nil, nil, nil, nil
}

// tell adds the asker's counts to the server's.
func (a *asker) tell() {
	if !a.counts.any {
		return
	}
	for v := range a.counts.n {
		for o, n := range a.counts.n[v] {
			if n > 0 {
				a.decisions[v][o].Add(uint64(n))
			}
		}
	}
	a.counts = tally{}
}
