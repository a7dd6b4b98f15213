package httplimit

import (
	"net/http"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit/internal/limitfields"
)

// heldBy reports whether h has fields of the families that describe another limit.
func (f Headers) heldBy(h http.Header) bool {
	return f&(XDelta|XEpoch|Envoy03) != 0 && (len(h[limitfields.Limit]) > 0 || len(h[limitfields.Remaining]) > 0) ||
		f&Draft03 != 0 && (len(h[limitfields.Limit03]) > 0 || len(h[limitfields.Remaining03]) > 0) ||
		f&(Draft03|Draft11|Next) != 0 && len(h[limitfields.Policy]) > 0 ||
		f&(Draft11|Next) != 0 && len(h[limitfields.RateLimit]) > 0 ||
		f&^Off != 0 && (len(h[limitfields.Soft]) > 0 || len(h[limitfields.Warning]) > 0 ||
			len(h[limitfields.Decision]) > 0)
}

// addedTo reports whether h, to which Write has written, got more of the same fields since: Write
// leaves one value in each.
func (f Headers) addedTo(h http.Header) bool {
	return f&(XDelta|XEpoch|Envoy03) != 0 && (len(h[limitfields.Limit]) > 1 || len(h[limitfields.Remaining]) > 1) ||
		f&Draft03 != 0 && (len(h[limitfields.Limit03]) > 1 || len(h[limitfields.Remaining03]) > 1) ||
		f&(Draft03|Draft11|Next) != 0 && len(h[limitfields.Policy]) > 1 ||
		f&(Draft11|Next) != 0 && len(h[limitfields.RateLimit]) > 1
}

// gather joins the fields that Write wrote to h for d with the fields that a handler has added
// since (see limitfields.Gather).
func (f Headers) gather(h http.Header, d *weir.Decision) {
	if !f.effective().addedTo(h) {
		return
	}
	near := d.Nearest()
	limitfields.Gather(h, near != nil && near.ResetAfter == algo.Never)
}
