package resp

import (
	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// errLate begins with a word that clients of Redis know for a server that has no time. It is short,
// as there are hundreds of thousands a second, and lateReply is the whole of it.
const (
	errLate   = "BUSY overloaded: nothing was decided"
	lateReply = "-" + errLate + "\r\n"
)

// turnAway answers a command that waited too long in line. A refusal says to come back in a second;
// an admission of CL.THROTTLE and THROTTLE gives the numbers of a fresh key.
func (a *asker) turnAway(dst []byte, v verb, args [][]byte, trusted bool) []byte {
	line := a.o.Line
	line.Turned(1)
	if line.Answer() == shed.Error {
		return append(dst, lateReply...)
	}
	const second = 1_000_000
	allowed, problem := line.Answer() == shed.Allow, ""
	a.verb = v
	switch v {
	case verbThrottle:
		problem = a.readCLThrottle(args, trusted)
	case verbCrab:
		problem = a.readThrottle(args)
	default:
		problem = a.readLimit(args, trusted)
	}
	r := algo.Result{Allowed: allowed}
	if allowed {
		r.Remaining = max(a.limit, 0)
	} else {
		r.RetryAfter, r.ResetAfter = second, second
	}
	switch {
	case problem != "":
		dst = appendError(dst, problem)
	case v == verbThrottle:
		a.results[0] = r
		dst, _ = a.appendCLThrottle(dst)
	case v == verbCrab:
		a.results[0] = r
		dst, _ = a.appendThrottle(dst)
	default:
		a.decision = weir.Decision{Allowed: allowed, RetryAfter: r.RetryAfter}
		dst = a.appendDecision(dst, a.full)
	}
	a.attributes.reset()
	a.request, a.ctx, a.key = weir.Request{}, nil, nil
	return dst
}
