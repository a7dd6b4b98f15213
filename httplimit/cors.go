package httplimit

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// CORS lets web pages of other origins read the rate-limit headers, which a browser keeps from them
// unless the answer says otherwise. The zero value lets none. It answers no preflight request, and
// admits no page by itself: that is up to the handler behind.
type CORS struct {
	// Origins are the pages' own, such as https://shop.example or http://localhost:3000; "*"
	// alone means all.
	Origins []string
}

// ParseOrigins checks a list of origins, and returns it in the form in which browsers write them.
func ParseOrigins(list []string) (CORS, error) {
	var c CORS
	for _, s := range list {
		s = strings.ToLower(strings.TrimSpace(s))
		u, err := url.Parse(s)
		switch {
		case s == "*" && len(list) > 1:
			return CORS{}, fmt.Errorf(
				"cors.origins: * means all origins and stands alone, but the list is %s; remove * or the others", strings.Join(list, ", "))
		case s == "*":
		case err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" ||
			u.Fragment != "" || strings.ContainsAny(s, "*?#"):
			return CORS{}, fmt.Errorf(
				"cors.origins: %q is no origin; write a scheme and a host, such as https://shop.example or http://localhost:3000, or * for all", s)
		case u.Scheme == "http" && u.Port() == "80", u.Scheme == "https" && u.Port() == "443":
			return CORS{}, fmt.Errorf(
				"cors.origins: browsers leave out the port of %q, since it is the scheme's own; write %s", s, strings.TrimSuffix(s, ":"+u.Port()))
		}
		if !slices.Contains(c.Origins, s) {
			c.Origins = append(c.Origins, s)
		}
	}
	return c, nil
}

const (
	hdrAllowOrigin = "Access-Control-Allow-Origin"
	hdrExpose      = "Access-Control-Expose-Headers"
)

// origin returns the value of Access-Control-Allow-Origin for r; "" if r comes from no page, or
// from one that is not let in.
func (c CORS) origin(r *http.Request) string {
	sent := r.Header["Origin"]
	if len(c.Origins) == 0 || len(sent) != 1 {
		return ""
	}
	for _, o := range c.Origins {
		if o == sent[0] || o == "*" {
			return o
		}
	}
	return ""
}

// Expose adds to h, the header of an answer to r, which of the fields that f writes a page may
// read. It changes nothing for pages that may not read the answer at all.
func (c CORS) Expose(h http.Header, r *http.Request, f Headers) {
	if c.origin(r) != "" {
		h[hdrExpose] = append(slices.Clip(h[hdrExpose]), f.exposed())
	}
}

// Allow is Expose for an answer given in place of the handler's, such as a refusal: it
// also lets the page read the answer, unless h lets one already. Credentials are not mentioned: a
// page that sends cookies cannot read such an answer, unless a handler before this one has allowed
// it.
func (c CORS) Allow(h http.Header, r *http.Request, f Headers) {
	origin := c.origin(r)
	if origin == "" {
		return
	}
	if len(h[hdrAllowOrigin]) == 0 {
		h[hdrAllowOrigin] = []string{origin}
		if origin != "*" {
			varyBy(h, "Origin")
		}
	}
	c.Expose(h, r, f)
}

// exposed lists the fields that f may write.
func (f Headers) exposed() string {
	f = f.effective()
	list := "Retry-After, Retry-After-Ms, X-Should-Retry"
	if f&^Off != 0 {
		list += ", X-RateLimit-Soft, X-RateLimit-Warning, X-RateLimit-Decision"
	}
	switch {
	case f&(XDelta|XEpoch) != 0:
		list += ", X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Retry-After"
	case f&Envoy03 != 0:
		list += ", X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset"
	}
	switch {
	case f&Draft03 != 0:
		list += ", RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, RateLimit-Policy"
	case f&(Draft11|Next) != 0:
		list += ", RateLimit, RateLimit-Policy"
	}
	return list
}
