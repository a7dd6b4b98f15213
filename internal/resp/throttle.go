package resp

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"math"
	"unicode/utf8"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/answer"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/rule"
)

// outcome is what became of a decision.
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

// charge charges quantity to a key.
func (a *asker) charge(g *gcra, key []byte, quantity int64) (r *algo.Result, err error) {
	c := &a.charges[0]
	c.Counter, c.Limit, c.Key, c.Mode = g.counter, g.limit, a.keyOf(key), rule.Enforce
	c.Ask = algo.Ask{Cost: min(max(quantity, -algo.MaxCost), algo.MaxCost), MaxDelay: -1}
	ctx, trace := context.Background(), (*weir.Trace)(nil)
	if a.o.Tracer != nil {
		ctx, trace = a.o.Tracer.Follow(ctx, "", "") // these commands have no place for a traceparent
	}
	now, err := a.store.Take(ctx, a.charges[:], a.results[:])
	c.Key = nil
	if trace != nil {
		a.followed(trace, g.params.verb, err)
	}
	switch {
	case err != nil && a.o.StoreError != nil:
		a.o.StoreError(err)
	case err == nil && quantity > 0 && a.o.Throttled != nil:
		a.o.Throttled(verbNames[g.params.verb], key, quantity, now, &a.results[0])
	}
	return &a.results[0], err
}

// followed ends the span of a command whose limit came with it: no rules decided, so no hooks tell.
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

// clThrottle answers CL.THROTTLE as redis-cell does: limited, limit, remaining, retry_after,
// reset_after.
func (a *asker) clThrottle(dst []byte, args [][]byte, trusted bool) ([]byte, outcome) {
	if len(args) < 5 || len(args) > 6 {
		return appendError(dst, cellUsage), failed
	}
	for _, arg := range args[1:] {
		if !utf8.Valid(arg) {
			return appendError(dst, cellUTF8), failed
		}
	}
	numbers := [...]int64{0, 0, 0, 1}
	for i, arg := range args[2:] {
		n, ok := parseInt(arg)
		if !ok {
			return appendError(dst, cellInteger+shown(arg)), failed
		}
		numbers[i] = n
	}
	burst, count, period, quantity := numbers[0], numbers[1], numbers[2], numbers[3]
	switch {
	case count == 0 || period == 0:
		return appendError(dst, cellZero), failed
	case count < 0 || period < 0:
		return appendError(dst, cellNegative), failed
	case quantity < 0 && !trusted:
		return appendError(dst, errRefund), failed
	}
	limit := saturatingAdd(burst, 1)
	g := a.limitOf(params{verbThrottle, max(limit, 0), count, period})
	r, err := a.charge(g, args[1], quantity)
	if err != nil {
		return appendError(dst, errStore), failed
	}
	limited := !r.Allowed || limit < 0 && quantity == 0
	remaining, retry := r.Remaining, int64(-1)
	if remaining > 0 {
		remaining = saturatingAdd(remaining, g.more)
	}
	if !r.Allowed && r.RetryAfter != algo.Never {
		retry = cellSeconds(r.RetryAfter)
	}
	dst = append(dst, "*5\r\n:0\r\n"...)
	if limited {
		dst[len(dst)-3] = '1'
	}
	dst = appendInt(dst, limit)
	dst = appendInt(dst, remaining)
	dst = appendInt(dst, retry)
	dst = appendInt(dst, cellSeconds(r.ResetAfter))
	return dst, outcomeOf(limited, quantity)
}

// cellSeconds rounds µs to seconds as redis-cell does: up, unless less than a millisecond is left.
func cellSeconds(µs int64) int64 {
	seconds, rest := µs/1e6, µs%1e6
	if rest >= 1000 {
		seconds++
	}
	return seconds
}

// throttle answers THROTTLE as throttlecrab does: allowed, limit, remaining, reset_after,
// retry_after.
func (a *asker) throttle(dst []byte, args [][]byte) ([]byte, outcome) {
	if len(args) < 5 || len(args) > 6 {
		return appendError(dst, "ERR wrong number of arguments for 'throttle' command"), failed
	}
	if !utf8.Valid(args[1]) {
		return appendError(dst, "ERR invalid key"), failed
	}
	numbers := [...]int64{0, 0, 0, 1}
	for i, arg := range args[2:] {
		n, ok := parseInt(arg)
		if !ok {
			return appendError(dst, "ERR invalid "+[...]string{"max_burst", "count_per_period", "period", "quantity"}[i]), failed
		}
		numbers[i] = n
	}
	burst, count, period, quantity := numbers[0], numbers[1], numbers[2], numbers[3]
	switch {
	case quantity < 0:
		return appendError(dst, "ERR negative quantity: "+shown(args[5])), failed
	case burst <= 0 || count <= 0 || period <= 0:
		return appendError(dst, "ERR invalid rate limit parameters: max_burst, count_per_period and period must be above 0"), failed
	}
	g := a.limitOf(params{verbCrab, burst, count, period})
	r, err := a.charge(g, args[1], quantity)
	if err != nil {
		return appendError(dst, errStore), failed
	}
	remaining, retry := r.Remaining, int64(0)
	if remaining > 0 {
		remaining = saturatingAdd(remaining, g.more)
	}
	if !r.Allowed {
		after := r.RetryAfter
		if after == algo.Never {
			// throttlecrab has no such answer: it tells when the key would have forgotten enough
			after = saturatingAdd(r.ResetAfter, g.params.interval(max(0, quantity-burst)))
		}
		retry = answer.CeilSeconds(after)
	}
	// Until the key is fresh, and then as many tokens as there are but two: so throttlecrab counts.
	reset := r.ResetAfter
	if burst > 2 {
		reset = saturatingAdd(reset, g.params.interval(burst-2))
	}
	dst = append(dst, "*5\r\n:0\r\n"...)
	if r.Allowed {
		dst[len(dst)-3] = '1'
	}
	dst = appendInt(dst, burst)
	dst = appendInt(dst, remaining)
	dst = appendInt(dst, reset/1e6)
	dst = appendInt(dst, retry)
	return dst, outcomeOf(!r.Allowed, quantity)
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
