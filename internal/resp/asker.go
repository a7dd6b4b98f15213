package resp

import (
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

// verbOf tells whether a command decides, by its name in any case.
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
// nothing.
type asker struct {
	*Server
	charges    [1]store.Charge
	results    [1]algo.Result
	recent     [8]*gcra // by params.hash
	longKey    []byte
	hash       hash.Hash // for longKey; nil until there is one
	attributes attributes
	request    weir.Request
	decision   weir.Decision
	names      []string
	counts     tally
}

// tally counts decisions by one goroutine.
type tally struct {
	n   [verbs][outcomes]uint32
	any bool
}

// decide appends the answer to a command that decides.
func (a *asker) decide(dst []byte, v verb, args [][]byte, trusted bool) []byte {
	start := int64(0)
	if a.o.Stopwatch != nil {
		start = a.o.Stopwatch.Begin()
	}
	var out outcome
	switch v {
	case verbThrottle:
		dst, out = a.clThrottle(dst, args, trusted)
	case verbCrab:
		dst, out = a.throttle(dst, args)
	default:
		dst, out = a.limit(dst, args, trusted)
	}
	a.counts.n[v][out]++
	a.counts.any = true
	if v != verbLimit || out == failed {
		door.End(a.o.Stopwatch, start, nil, nil)
	} else {
		door.End(a.o.Stopwatch, start, &a.request, &a.decision)
	}
	return dst
}

// tell adds what was counted to the server's counts.
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
