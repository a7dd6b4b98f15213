package httplimit

import (
	"net/http"
	"slices"
	"strconv"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit/internal/limitfields"
	"github.com/weir-rl/weir/internal/door/answer"
)

// Write sets the headers that d calls for on h: the families' for a decision that met an
// enforcing limit, and on a refusal Retry-After. A decision that met no enforcing limit leaves h as
// it is, except that X-RateLimit-Warning says unknown_domain.
//
// Fields that h holds already are of another limit on the way of the request: a handler in front,
// or a server behind, has set them. RateLimit, RateLimit-Policy and X-RateLimit-Warning are lists,
// to which the limits of d are added. X-RateLimit-Limit, -Remaining and -Reset have room for one
// limit, and so have RateLimit-Limit, -Remaining and -Reset: they stay as they are, as a whole, if
// no smaller share is left of Decision.Nearest, and d is no refusal. Fields that cannot be read are
// replaced.
//
// X-RateLimit-Limit, -Remaining and -Reset speak of Decision.Nearest, and so do RateLimit-Limit,
// -Remaining and -Reset. RateLimit-Policy and RateLimit have one item for each enforcing limit that
// was met. With any family, X-RateLimit-Soft says "exceeded" when a limit admitted the request in
// its soft margin, X-RateLimit-Warning names those that are near to refusing, or says
// unknown_domain (Decision.UnknownDomain), and on a refusal X-RateLimit-Decision is its id. All
// times are whole seconds, rounded up. docs/reference/headers.md describes each field.
func (f Headers) Write(h http.Header, d *weir.Decision) { f.write(h, d) }

// write is Write; said is false if d met no enforcing limit, or f writes no more than Retry-After.
func (f Headers) write(h http.Header, d *weir.Decision) (said bool) {
	near := d.Nearest()
	if near == nil {
		if d.UnknownDomain() && f.effective() != Off {
			if !slices.Contains(h[limitfields.Warning], answer.UnknownDomain) {
				h[limitfields.Warning] = append(h[limitfields.Warning], answer.UnknownDomain)
			}
			return true
		}
		return false
	}
	f = f.effective()
	said = f != Off
	if len(h) == 0 || !f.heldBy(h) {
		f.set(h, d, near)
		return said
	}
	own := make(http.Header, 12)
	f.set(own, d, near)
	say := limitfields.IfNearer
	if !d.Allowed {
		say = limitfields.Always
	}
	limitfields.Join(h, own, say)
	return said
}

// set is Write for an h that holds nothing of the families that counts.
func (f Headers) set(h http.Header, d *weir.Decision, near *weir.LimitResult) {
	// All values are built in one buffer, and become one string and one slice that the fields
	// share.
	var (
		scratch [384]byte
		buf     = scratch[:0]
		keys    [12]string
		ends    [12]int
		n       int
	)
	end := func(key string) {
		keys[n], ends[n] = key, len(buf)
		n++
	}
	reset := int64(-1) // not known: never
	if near.ResetAfter != algo.Never {
		reset = answer.CeilSeconds(near.ResetAfter)
	}
	retry := int64(-1) // none
	if !d.Allowed && d.RetryAfter != algo.Never {
		retry = max(1, answer.CeilSeconds(d.RetryAfter))
		buf = strconv.AppendInt(buf, retry, 10)
		end(limitfields.RetryAfter)
	}
	if f&(XDelta|XEpoch|Envoy03) != 0 {
		delete(h, limitfields.XRetry)
		delete(h, limitfields.Reset)
		if f&Envoy03 != 0 {
			buf = answer.AppendEnvoyPolicies(answer.AppendInteger(buf, near.Limit), d)
		} else {
			buf = strconv.AppendInt(buf, near.Limit, 10)
		}
		end(limitfields.Limit)
		buf = strconv.AppendInt(buf, near.Remaining, 10)
		end(limitfields.Remaining)
		switch {
		case reset < 0:
		case f&XEpoch == 0:
			buf = strconv.AppendInt(buf, reset, 10)
			end(limitfields.Reset)
		case d.Time > 0 && d.Time+near.ResetAfter > 0: // not so far away that it has no number
			buf = strconv.AppendInt(buf, answer.CeilSeconds(d.Time+near.ResetAfter), 10)
			end(limitfields.Reset)
		}
		if retry > 0 && f&Envoy03 == 0 {
			buf = strconv.AppendInt(buf, retry, 10)
			end(limitfields.XRetry)
		}
	}
	if f&^Off != 0 {
		if d.SoftExceeded() {
			buf = append(buf, "exceeded"...)
			end(limitfields.Soft)
		}
		start := len(buf)
		if buf = answer.AppendWarning(buf, d); len(buf) > start {
			end(limitfields.Warning)
		}
		if !d.Allowed && d.ID != 0 {
			buf = d.ID.AppendTo(buf)
			end(limitfields.Decision)
		}
	}
	switch {
	case f&Draft03 != 0:
		delete(h, limitfields.Reset03)
		if retry > 0 {
			reset = retry // the two shall name the same instant
		}
		if reset >= 0 { // a limit needs a reset beside it
			buf = strconv.AppendInt(buf, near.Limit, 10)
			end(limitfields.Limit03)
			buf = strconv.AppendInt(buf, near.Remaining, 10)
			end(limitfields.Remaining03)
			buf = strconv.AppendInt(buf, reset, 10)
			end(limitfields.Reset03)
		}
		start := len(buf)
		if buf = answer.AppendPolicies03(buf, d); len(buf) > start {
			end(limitfields.Policy)
		}
	case f&(Draft11|Next) != 0:
		buf = answer.AppendPolicies(buf, d)
		end(limitfields.Policy)
		if f&Next != 0 {
			buf = answer.AppendNextRateLimits(buf, d)
		} else {
			buf = answer.AppendRateLimits(buf, d)
		}
		end(limitfields.RateLimit)
	}
	if n == 0 {
		return
	}
	all, values, from := string(buf), make([]string, n), 0
	for i := range n {
		values[i] = all[from:ends[i]]
		h[keys[i]] = values[i : i+1 : i+1]
		from = ends[i]
	}
}
