package httplimit

import (
	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// AppendPolicies appends the value of RateLimit-Policy as Draft11 writes it: one item for each enforcing limit that d met. It
// appends nothing if there are none. It is for doors that are not HTTP.
func AppendPolicies(dst []byte, d *weir.Decision) []byte {
	start := len(dst)
	for i := range d.Limits {
		if lr := &d.Limits[i]; lr.Mode != rule.Shadow {
			dst = appendPolicy(separate(dst, start), lr, d.InForce(i))
		}
	}
	return dst
}

// AppendRateLimits appends the value of RateLimit as Draft11 writes it, as AppendPolicies does that of RateLimit-Policy.
func AppendRateLimits(dst []byte, d *weir.Decision) []byte {
	start := len(dst)
	for i := range d.Limits {
		if lr := &d.Limits[i]; lr.Mode != rule.Shadow {
			dst = appendRateLimit(separate(dst, start), lr, ";r=", ";t=")
		}
	}
	return dst
}
