package httplimit

import (
	"net/http"

	"github.com/weir-rl/weir/httplimit/internal/limitfields"
)

// unsaid is the value of a field that has nothing to say. It is never changed.
var unsaid = []string{""}

// Fill gives h each field that Write may set for a request which passes and that h lacks, without a
// value. A proxy that copies fields by their names into the answer for its client finds the same
// ones then, whatever limits were met. (Caddy 2.6 puts the name of its own variable where one is
// missing.) To most programs, and by RFC 9651, a field without a value is as good as none.
func (f Headers) Fill(h http.Header) {
	f = f.effective()
	if f&(XDelta|XEpoch|Envoy03) != 0 {
		fill(h, limitfields.Limit)
		fill(h, limitfields.Remaining)
		fill(h, limitfields.Reset)
	}
	if f&^Off != 0 {
		fill(h, limitfields.Soft)
		fill(h, limitfields.Warning)
	}
	switch {
	case f&Draft03 != 0:
		fill(h, limitfields.Limit03)
		fill(h, limitfields.Remaining03)
		fill(h, limitfields.Reset03)
		fill(h, limitfields.Policy)
	case f&(Draft11|Next) != 0:
		fill(h, limitfields.Policy)
		fill(h, limitfields.RateLimit)
	}
}

func fill(h http.Header, name string) {
	if _, ok := h[name]; !ok {
		h[name] = unsaid
	}
}
