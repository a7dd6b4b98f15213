package httplimit

import (
	"math/bits"
	"strconv"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

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

// appendRateLimit appends one item of RateLimit: `"name";r=3;t=30`, left and window being the names of its parameters.
func appendRateLimit(buf []byte, lr *weir.LimitResult, left, window string) []byte {
	buf = appendSFString(buf, lr.Window.Name)
	buf = append(buf, left...)
	buf = strconv.AppendInt(buf, lr.Remaining, 10)
	t := lr.ResetAfter
	if !lr.Allowed {
		t = lr.RetryAfter
	}
	if t == algo.Never {
		return buf
	}
	buf = append(buf, window...)
	return strconv.AppendInt(buf, ceilSeconds(t), 10)
}

// append03Policies appends RateLimit-Policy as drafts 03 to 06 have it, `10;w=1, 50;w=60`: the limits that have a window of whole seconds.
func append03Policies(buf []byte, d *weir.Decision) []byte {
	start := len(buf)
	for i := range d.Limits {
		lr := &d.Limits[i]
		if lr.Mode == rule.Shadow {
			continue
		}
		if w := windowSeconds(lr, d.InForce(i)); w > 0 {
			buf = strconv.AppendInt(separate(buf, start), lr.Limit, 10)
			buf = strconv.AppendInt(append(buf, ";w="...), w, 10)
		}
	}
	return buf
}

// appendEnvoyPolicies appends what Envoy writes into X-RateLimit-Limit behind the limit: `, 10;w=60;name="a"` for each limit that has a window.
func appendEnvoyPolicies(buf []byte, d *weir.Decision) []byte {
	for i := range d.Limits {
		lr := &d.Limits[i]
		if lr.Mode == rule.Shadow {
			continue
		}
		if w := windowSeconds(lr, d.InForce(i)); w > 0 {
			buf = strconv.AppendInt(append(buf, ", "...), lr.Limit, 10)
			buf = strconv.AppendInt(append(buf, ";w="...), w, 10)
			buf = appendSFString(append(buf, ";name="...), lr.Window.Name)
		}
	}
	return buf
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
