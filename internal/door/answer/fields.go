package answer

import (
	"math/bits"
	"net/http"
	"strconv"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// AppendPolicies appends the value of RateLimit-Policy as draft-ietf-httpapi-ratelimit-headers-11
// has it: one item for each enforcing limit that d met. It appends nothing if there are none.
func AppendPolicies(dst []byte, d *weir.Decision) []byte {
	start := len(dst)
	for i := range d.Limits {
		if lr := &d.Limits[i]; lr.Mode != rule.Shadow {
			dst = appendPolicy(separate(dst, start), lr, d.InForce(i))
		}
	}
	return dst
}

// AppendRateLimits appends the value of RateLimit as draft 11 has it: one item for each enforcing
// limit that d met.
func AppendRateLimits(dst []byte, d *weir.Decision) []byte {
	return appendRateLimits(dst, d, ";r=", ";t=")
}

// AppendNextRateLimits is AppendRateLimits with the names of parameters that are to come after
// draft 11.
func AppendNextRateLimits(dst []byte, d *weir.Decision) []byte {
	return appendRateLimits(dst, d, ";a=", ";w=")
}

func appendRateLimits(dst []byte, d *weir.Decision, left, window string) []byte {
	start := len(dst)
	for i := range d.Limits {
		if lr := &d.Limits[i]; lr.Mode != rule.Shadow {
			dst = appendRateLimit(separate(dst, start), lr, left, window)
		}
	}
	return dst
}

// UnknownDomain is what answers say where no rule file declares the domain of the request.
const UnknownDomain = "unknown_domain"

// AppendWarning appends the value of X-RateLimit-Warning, a list of tokens: UnknownDomain, or
// `near_limit; limit="name"` for each enforcing limit that is near to refusing
// (weir.Decision.Warns). It appends nothing if there is nothing to warn of.
func AppendWarning(dst []byte, d *weir.Decision) []byte {
	if d.UnknownDomain() {
		return append(dst, UnknownDomain...)
	}
	start := len(dst)
	for i := range d.Limits {
		if lr := &d.Limits[i]; d.Warns(lr) {
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
	buf = AppendInteger(buf, lr.Limit)
	if in != nil && in.HasSlots() {
		buf = append(buf, `;qu="concurrent-requests"`...)
	}
	if w := WindowSeconds(lr, in); w > 0 {
		buf = append(buf, ";w="...)
		buf = strconv.AppendInt(buf, w, 10)
	}
	return buf
}

// appendRateLimit appends one item of RateLimit: `"name";r=3;t=30`, left and window being the names
// of its parameters.
func appendRateLimit(buf []byte, lr *weir.LimitResult, left, window string) []byte {
	buf = appendSFString(buf, lr.Window.Name)
	buf = append(buf, left...)
	buf = AppendInteger(buf, lr.Remaining)
	t := lr.ResetAfter
	if !lr.Allowed {
		t = lr.RetryAfter
	}
	if t == algo.Never {
		return buf
	}
	buf = append(buf, window...)
	return strconv.AppendInt(buf, CeilSeconds(t), 10)
}

// AppendPolicies03 appends RateLimit-Policy as drafts 03 to 06 have it, `10;w=1, 50;w=60`: the
// limits that have a window of whole seconds.
func AppendPolicies03(buf []byte, d *weir.Decision) []byte {
	start := len(buf)
	for i := range d.Limits {
		lr := &d.Limits[i]
		if lr.Mode == rule.Shadow {
			continue
		}
		if w := WindowSeconds(lr, d.InForce(i)); w > 0 {
			buf = AppendInteger(separate(buf, start), lr.Limit)
			buf = strconv.AppendInt(append(buf, ";w="...), w, 10)
		}
	}
	return buf
}

// AppendEnvoyPolicies appends what Envoy writes into X-RateLimit-Limit behind the limit: `,
// 10;w=60;name="a"` for each limit that has a window.
func AppendEnvoyPolicies(buf []byte, d *weir.Decision) []byte {
	for i := range d.Limits {
		lr := &d.Limits[i]
		if lr.Mode == rule.Shadow {
			continue
		}
		if w := WindowSeconds(lr, d.InForce(i)); w > 0 {
			buf = AppendInteger(append(buf, ", "...), lr.Limit)
			buf = strconv.AppendInt(append(buf, ";w="...), w, 10)
			buf = appendSFString(append(buf, ";name="...), lr.Window.Name)
		}
	}
	return buf
}

// WindowSeconds is the w of the policy of a limit with the numbers in; 0 means that it is left out:
// no window, or one below a second.
func WindowSeconds(lr *weir.LimitResult, in *algo.Limit) int64 {
	if in == nil {
		return 0
	}
	c := in.Config()
	switch {
	case c.Algorithm.HasBurst():
	case c.Algorithm.HasSlots() || c.Calendar == algo.NoCalendar && c.Window < time.Second:
		return 0
	default:
		return lr.Window.Seconds
	}
	if c.N <= 0 || lr.Limit <= 0 {
		return 0
	}
	// ceil(B × W/N): the time in which an empty token bucket fills, or a full leaky one drains.
	// More than B in so long never pass but after a rest; B in W would promise a leaky bucket of
	// 1/s with a queue of 4 five requests each second.
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
	return int64(min(s, maxSFInteger))
}

// maxSFInteger is the largest Integer of RFC 9651.
const maxSFInteger = 999_999_999_999_999

// AppendInteger appends n as an Integer of RFC 9651: a larger number becomes the largest Integer.
func AppendInteger(dst []byte, n int64) []byte {
	return strconv.AppendInt(dst, min(n, maxSFInteger), 10)
}

// appendSFString appends s as a String of RFC 9651: `"` and `\` are escaped, and bytes that are not
// printable ASCII (the names of Lyft rules may hold anything) are percent-encoded.
func appendSFString(dst []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c < 0x7f && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		if from = i + 1; c == '"' || c == '\\' {
			dst = append(dst, '\\', c)
		} else {
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"')
}

// ResponseField returns a header or a trailer by its name, of the header of a http.ResponseWriter
// when the response has ended: if it came several times, the last; "" if it did not. It is how
// cost_after sees a response.
func ResponseField(h http.Header, name string) string {
	name = http.CanonicalHeaderKey(name)
	values := h[http.TrailerPrefix+name]
	if len(values) == 0 {
		values = h[name]
	}
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}
