package resp

import (
	"crypto/sha256"
	"log/slog"
	"math"
	"unicode/utf8"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/rule"
)

// outcome is the outcome of a decision.
type outcome uint8

const (
	allowed outcome = iota
	denied
	peeked
	refunded
	failed // nothing was decided: bad arguments, or the store failed
	outcomes
)

// The errors of redis-cell and throttlecrab, word by word where these have one.
const (
	cellUsage    = "Cell error: Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"
	cellInteger  = "Cell error: Store error: Couldn't parse as integer: "
	cellZero     = "Cell error: Store error: Zero rates are not supported"
	cellNegative = "Cell error: Store error: Negative rates are not supported"
	cellUTF8     = "Cell error: Store error: The arguments must be UTF-8"
	errRefund    = "NOPERM a negative quantity (a refund) needs a peer in trusted_peers, or AUTH with a token"
	errStore     = "ERR the store failed, nothing was decided"
)

// maxKey is up to how many bytes a key is kept as it is. Of a longer one its hash is kept.
const maxKey = 256

// keyOf returns the key under which a state is kept; it may lie in a.
func (a *asker) keyOf(key []byte) []byte {
	if len(key) <= maxKey {
		return key
	}
	if a.hash == nil {
		a.hash = sha256.New()
	}
	a.hash.Reset()
	_, _ = a.hash.Write(key)                            // which never fails
	a.longKey = a.hash.Sum(append(a.longKey[:0], 0xff)) // keys are UTF-8: none is like it
	return a.longKey
}

// limitOf returns the limit of p.
func (a *asker) limitOf(p params) *gcra {
	recent := &a.recent[p.hash()%uint64(len(a.recent))]
	if g := *recent; g != nil && g.params == p {
		return g
	}
	*recent = a.limits.get(p)
	return *recent
}

// chargeNow charges the quantity to the key, if the store can do so at once.
func (a *asker) chargeNow() (done bool) {
	c := &a.charges[0]
	c.Counter, c.Limit, c.Key, c.Mode = a.g.counter, a.g.limit, a.keyOf(a.key), rule.Enforce
	c.Ask = algo.Ask{Cost: min(max(a.quantity, -algo.MaxCost), algo.MaxCost), MaxDelay: -1}
	if a.o.Tracer != nil {
		a.ctx, a.trace = a.o.Tracer.Follow(a.ctx, "", "") // these commands have no place for a traceparent
	}
	if a.prompt != nil {
		a.at, done = a.prompt.TakeNow(a.charges[:], a.results[:])
	}
	return done
}

// charge is the rest of chargeNow.
func (a *asker) charge() (err error) {
	a.at, err = a.store.Take(a.ctx, a.charges[:], a.results[:])
	return err
}

// charged reports a charge that was made, or failed with err, to the tracer and the hooks.
func (a *asker) charged(err error) {
	if a.trace != nil {
		a.followed(a.trace, a.verb, err)
	}
	switch {
	case err != nil && a.o.StoreError != nil && a.ctx.Err() == nil: // else the connection has ended
		a.o.StoreError(err)
	case err == nil && a.quantity > 0 && a.o.Throttled != nil:
		a.o.Throttled(verbNames[a.verb], a.key, a.quantity, a.at, &a.results[0])
	}
}

// followed ends the span of a command whose limit came with it: no rules decide it, so no hooks
// run.
func (a *asker) followed(trace *weir.Trace, v verb, err error) {
	t := a.o.Tracer
	t.Note(trace, slog.String(door.AttributeDoor, "resp"), slog.String("weir.command", verbNames[v]))
	if err == nil {
		t.Note(trace, slog.Bool("weir.allowed", a.results[0].Allowed))
	}
	t.End(trace, err)
}

// outcomeOf is the outcome of a decision on a quantity.
func outcomeOf(limited bool, quantity int64) outcome {
	switch {
	case limited:
		return denied
	case quantity == 0:
		return peeked
	case quantity < 0:
		return refunded
	}
	return allowed
}

// readCLThrottle reads the arguments of CL.THROTTLE. It returns a fault of the command, or "".
func (a *asker) readCLThrottle(args [][]byte, trusted bool) (problem string) {
	if len(args) < 5 || len(args) > 6 {
		return cellUsage
	}
	for _, arg := range args[1:] {
		if !utf8.Valid(arg) {
			return cellUTF8
		}
	}
	numbers := [...]int64{0, 0, 0, 1}
	for i, arg := range args[2:] {
		n, ok := parseInt(arg)
		if !ok {
			return cellInteger + shown(arg)
		}
		numbers[i] = n
	}
	burst, count, period, quantity := numbers[0], numbers[1], numbers[2], numbers[3]
	switch {
	case count == 0 || period == 0:
		return cellZero
	case count < 0 || period < 0:
		return cellNegative
	case quantity < 0 && !trusted:
		return errRefund
	}
	a.limit, a.key, a.quantity = saturatingAdd(burst, 1), args[1], quantity
	a.g = a.limitOf(params{verbThrottle, max(a.limit, 0), count, period})
	return ""
}

// appendCLThrottle answers CL.THROTTLE as redis-cell does: limited, limit, remaining, retry_after,
// reset_after.
func (a *asker) appendCLThrottle(dst []byte) ([]byte, outcome) {
	r := &a.results[0]
	limited := !r.Allowed || a.limit < 0 && a.quantity == 0
	remaining, retry := r.Remaining, int64(-1)
	if remaining > 0 {
		remaining = saturatingAdd(remaining, a.g.more)
	}
	if !r.Allowed && r.RetryAfter != algo.Never {
		retry = cellSeconds(r.RetryAfter)
	}
	dst = append(dst, "*5\r\n:0\r\n"...)
	if limited {
		dst[len(dst)-3] = '1'
	}
	dst = appendInt(dst, a.limit)
	dst = appendInt(dst, remaining)
	dst = appendInt(dst, retry)
	dst = appendInt(dst, cellSeconds(r.ResetAfter))
	return dst, outcomeOf(limited, a.quantity)
}

// cellSeconds rounds µs to seconds as redis-cell does: up, unless less than a millisecond is left.
func cellSeconds(µs int64) int64 {
	seconds, rest := µs/1e6, µs%1e6
	if rest >= 1000 {
		seconds++
	}
	return seconds
}

// readThrottle reads the arguments of THROTTLE. It returns a fault of the command, or "".
func (a *asker) readThrottle(args [][]byte) (problem string) {
	if len(args) < 5 || len(args) > 6 {
		return "ERR wrong number of arguments for 'throttle' command"
	}
	if !utf8.Valid(args[1]) {
		return "ERR invalid key"
	}
	numbers := [...]int64{0, 0, 0, 1}
	for i, arg := range args[2:] {
		n, ok := parseInt(arg)
		if !ok {
			return "ERR invalid " + [...]string{"max_burst", "count_per_period", "period", "quantity"}[i]
		}
		numbers[i] = n
	}
	burst, count, period, quantity := numbers[0], numbers[1], numbers[2], numbers[3]
	switch {
	case quantity < 0:
		return "ERR negative quantity: " + shown(args[5])
	case burst <= 0 || count <= 0 || period <= 0:
		return "ERR invalid rate limit parameters: max_burst, count_per_period and period must be above 0"
	}
	a.limit, a.key, a.quantity = burst, args[1], quantity
	a.g = a.limitOf(params{verbCrab, burst, count, period})
	return ""
}

// appendThrottle answers THROTTLE as throttlecrab does: allowed, limit, remaining, reset_after,
// retry_after.
func (a *asker) appendThrottle(dst []byte) ([]byte, outcome) {
	r, burst := &a.results[0], a.limit
	remaining, retry := r.Remaining, int64(0)
	if remaining > 0 {
		remaining = saturatingAdd(remaining, a.g.more)
	}
	if !r.Allowed {
		after := r.RetryAfter
		if after == algo.Never {
			// throttlecrab has no such answer: this is when the key would have forgotten enough
			after = saturatingAdd(r.ResetAfter, a.g.params.interval(max(0, a.quantity-burst)))
		}
		retry = answer.CeilSeconds(after)
	}
	// Until the key is fresh, and then as many tokens as there are but two: so throttlecrab counts.
	reset := r.ResetAfter
	if burst > 2 {
		reset = saturatingAdd(reset, a.g.params.interval(burst-2))
	}
	dst = append(dst, "*5\r\n:0\r\n"...)
	if r.Allowed {
		dst[len(dst)-3] = '1'
	}
	dst = appendInt(dst, burst)
	dst = appendInt(dst, remaining)
	dst = appendInt(dst, reset/1e6)
	dst = appendInt(dst, retry)
	return dst, outcomeOf(!r.Allowed, a.quantity)
}

// parseInt reads a 64-bit number: a sign, or none, and digits.
func parseInt(b []byte) (n int64, ok bool) {
	negative := false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		negative = b[0] == '-'
		b = b[1:]
	}
	if len(b) == 0 {
		return 0, false
	}
	u := uint64(0)
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || u > (math.MaxUint64-d)/10 {
			return 0, false
		}
		u = u*10 + d
	}
	switch {
	case negative && u <= 1<<63:
		return -int64(u), true
	case !negative && u < 1<<63:
		return int64(u), true
	}
	return 0, false
}
