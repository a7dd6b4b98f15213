package httplimit

import (
	"math/bits"
	"net/http"
	"strconv"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// The names of the fields, in the canonical form that http.Header keeps.
const (
	hdrLimit      = "X-Ratelimit-Limit"
	hdrRemaining  = "X-Ratelimit-Remaining"
	hdrReset      = "X-Ratelimit-Reset"
	hdrXRetry     = "X-Ratelimit-Retry-After"
	hdrSoft       = "X-Ratelimit-Soft"
	hdrWarning    = "X-Ratelimit-Warning"
	hdrDecision   = "X-Ratelimit-Decision"
	hdrPolicy     = "Ratelimit-Policy"
	hdrRateLimit  = "Ratelimit"
	hdrRetryAfter = "Retry-After"
)

// Write sets the headers that d calls for on h: those of the families for a decision that met an enforcing limit, and on a
// refusal Retry-After. What h holds of a family that is written is replaced as a whole; a decision that met no enforcing
// limit leaves h as it is.
//
// X-RateLimit-Limit, -Remaining and -Reset speak of Decision.Nearest. RateLimit-Policy and RateLimit
// (draft-ietf-httpapi-ratelimit-headers-11) have one item for each enforcing limit that was met. X-RateLimit-Soft says
// "exceeded" when a limit admitted the request in its soft margin, X-RateLimit-Warning names those that are near to refusing,
// and on a refusal X-RateLimit-Decision is its id. All times are whole seconds, rounded up.
func (f Headers) Write(h http.Header, d *weir.Decision) {
	near := d.Nearest()
	if near == nil {
		return
	}
	f = f.effective()
	// All values are built in one buffer, and become one string and one slice that the fields share.
	var (
		scratch [384]byte
		buf     = scratch[:0]
		keys    [10]string
		ends    [10]int
		n       int
	)
	end := func(key string) {
		keys[n], ends[n] = key, len(buf)
		n++
	}
	never := d.RetryAfter == algo.Never
	retry := max(1, ceilSeconds(d.RetryAfter))
	if !d.Allowed && !never {
		buf = strconv.AppendInt(buf, retry, 10)
		end(hdrRetryAfter)
	}
	if f&XDelta != 0 {
		delete(h, hdrXRetry)
		delete(h, hdrReset)
		buf = strconv.AppendInt(buf, near.Limit, 10)
		end(hdrLimit)
		buf = strconv.AppendInt(buf, near.Remaining, 10)
		end(hdrRemaining)
		if near.ResetAfter != algo.Never {
			buf = strconv.AppendInt(buf, ceilSeconds(near.ResetAfter), 10)
			end(hdrReset)
		}
		if !d.Allowed && !never {
			buf = strconv.AppendInt(buf, retry, 10)
			end(hdrXRetry)
		}
	}
	if f&(XDelta|Draft11) != 0 {
		delete(h, hdrSoft)
		delete(h, hdrWarning)
		delete(h, hdrDecision)
		if d.SoftExceeded() {
			buf = append(buf, "exceeded"...)
			end(hdrSoft)
		}
		start := len(buf)
		if buf = AppendWarning(buf, d); len(buf) > start {
			end(hdrWarning)
		}
		if !d.Allowed && d.ID != 0 {
			buf = d.ID.AppendTo(buf)
			end(hdrDecision)
		}
	}
	if f&Draft11 != 0 {
		start := len(buf)
		for i := range d.Limits {
			if lr := &d.Limits[i]; lr.Mode != rule.Shadow {
				buf = appendPolicy(separate(buf, start), lr, d.InForce(i))
			}
		}
		end(hdrPolicy)
		start = len(buf)
		for i := range d.Limits {
			if lr := &d.Limits[i]; lr.Mode != rule.Shadow {
				buf = appendRateLimit(separate(buf, start), lr)
			}
		}
		end(hdrRateLimit)
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

// AppendWarning appends the value of X-RateLimit-Warning, a list of tokens: `near_limit; limit="name"` for each enforcing limit
// that is near to refusing (weir.LimitResult.Warns). It appends nothing if there are none, or d is a refusal.
func AppendWarning(dst []byte, d *weir.Decision) []byte {
	start := len(dst)
	for i := range d.Limits {
		if lr := &d.Limits[i]; lr.Warns(d) {
			dst = append(separate(dst, start), "near_limit; limit="...)
			dst = appendSFString(dst, lr.Window.Name)
		}
	}
	return dst
}

func separate(buf []byte, start int) []byte {
	if len(buf) > start {
		buf = append(buf, ", "...)
	}
	return buf
}

// appendPolicy appends one item of RateLimit-Policy: `"name";q=10;w=60`.
func appendPolicy(buf []byte, lr *weir.LimitResult, in *algo.Limit) []byte {
	buf = appendSFString(buf, lr.Window.Name)
	buf = append(buf, ";q="...)
	buf = strconv.AppendInt(buf, lr.Limit, 10)
	if in != nil && in.Algorithm() == algo.Concurrency {
		buf = append(buf, `;qu="concurrent-requests"`...)
	}
	if w := windowSeconds(lr, in); w > 0 {
		buf = append(buf, ";w="...)
		buf = strconv.AppendInt(buf, w, 10)
	}
	return buf
}

// appendRateLimit appends one item of RateLimit: `"name";r=3;t=30`.
func appendRateLimit(buf []byte, lr *weir.LimitResult) []byte {
	buf = appendSFString(buf, lr.Window.Name)
	buf = append(buf, ";r="...)
	buf = strconv.AppendInt(buf, lr.Remaining, 10)
	t := lr.ResetAfter
	if !lr.Allowed {
		t = lr.RetryAfter
	}
	if t == algo.Never {
		return buf
	}
	buf = append(buf, ";t="...)
	return strconv.AppendInt(buf, ceilSeconds(t), 10)
}

// windowSeconds is the w of the policy of a limit with the numbers in; 0 means that it is left out: no window, or one below a second.
func windowSeconds(lr *weir.LimitResult, in *algo.Limit) int64 {
	if in == nil {
		return 0
	}
	c := in.Config()
	if c.Algorithm == algo.Concurrency || c.Algorithm != algo.TokenBucket && c.Calendar == algo.NoCalendar && c.Window < time.Second {
		return 0
	}
	if c.Algorithm != algo.TokenBucket {
		return lr.Window.Seconds
	}
	if c.N <= 0 || lr.Limit <= 0 {
		return 0
	}
	// ceil(B × W/N): the time in which an empty bucket fills.
	hi, lo := bits.Mul64(uint64(lr.Limit), uint64(c.Window.Microseconds()))
	if hi >= uint64(c.N) {
		return 0
	}
	us, rem := bits.Div64(hi, lo, uint64(c.N))
	if us < 1e6 {
		return 0
	}
	s := us / 1e6
	if us%1e6 != 0 || rem != 0 {
		s++
	}
	return int64(min(s, 999_999_999_999_999)) // the largest Integer of RFC 9651
}

// ceilSeconds turns µs into whole seconds, rounded up.
func ceilSeconds(us int64) int64 {
	s := us / 1e6
	if us%1e6 > 0 {
		s++
	}
	return s
}

// appendSFString appends s as a String of RFC 9651: `"` and `\` are escaped, and what is not printable ASCII (the names
// of Lyft rules may hold anything) is percent-encoded.
func appendSFString(dst []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	dst = append(dst, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20 || c >= 0x7f:
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
