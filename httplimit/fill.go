package httplimit

import "net/http"

// unsaid is the value of a field that has nothing to say. It is never changed.
var unsaid = []string{""}

// Fill gives h each field that Write may set for a request which passes and that h lacks, without a
// value. A proxy that copies fields by their names into the answer for its client finds the same
// ones then, whatever limits were met. (Caddy 2.6 puts the name of its own variable where one is
// missing.) To most programs, and by RFC 9651, a field without a value is as good as none.
func (f Headers) Fill(h http.Header) {
	f = f.effective()
	if f&(XDelta|XEpoch|Envoy03) != 0 {
		fill(h, hdrLimit)
		fill(h, hdrRemaining)
		fill(h, hdrReset)
	}
	if f&^Off != 0 {
		fill(h, hdrSoft)
		fill(h, hdrWarning)
	}
	switch {
	case f&Draft03 != 0:
		fill(h, hdr03Limit)
		fill(h, hdr03Remains)
		fill(h, hdr03Reset)
		fill(h, hdrPolicy)
	case f&(Draft11|Next) != 0:
		fill(h, hdrPolicy)
		fill(h, hdrRateLimit)
	}
}

func fill(h http.Header, name string) {
	if _, ok := h[name]; !ok {
		h[name] = unsaid
	}
}
