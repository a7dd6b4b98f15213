package admin

import (
	"net/http"
	"strings"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
)

// ofProgram reports whether r, which changes something and is not of type application/json, cannot
// come from a browser. So programs need no type for a DELETE without a body. A browser sends Origin
// with every method except GET and HEAD (Fetch, 3.2.5), and other fields that give it away
// (auth.FromBrowser). It sends a form without asking first only with one of three types (Fetch,
// 2.2.2: CORS-safelisted request-header). A page sends DELETE and PUT only after this port has
// allowed it, which it never does.
func ofProgram(r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case "text/plain", "application/x-www-form-urlencoded", "multipart/form-data":
		return false
	}
	return len(r.Header["Cookie"]) == 0 && !auth.FromBrowser(r)
}

// notOwnPage says why a browser does not vouch that r, which changes something, comes from the page
// on this port; "" if it does.
//
// Browsers vouch by Sec-Fetch-Site, but over plain HTTP only to loopback (Fetch Metadata, 2:
// potentially trustworthy URLs). Otherwise they name the page of a request by Origin. Every request
// that changes something has it, and no script can write it (Fetch, 2.2.2: forbidden
// request-headers). The page is this port's if Origin has the name by which the request calls this
// server. That is as safe:
//   - a page of another site, or of another port of this host, which gets the cookie, too, has
//     another Origin;
//   - a page that had its own name pointed here (DNS rebinding) has it in Origin and Host alike:
//     this server does not know that name (auth.KnownHost), and the cookie is not sent to it;
//   - a proxy that rewrites Host makes the two differ, so that nothing can be changed. It makes
//     another page's Origin equal only for a page of the very name that it writes, such as
//     localhost. From there the browser sends no cookie of ours, since SameSite is strict, and no
//     JSON, since it asks first (CORS), and nobody here answers that;
//   - a page over plain HTTP, which somebody on the line wrote, has another origin than one over
//     TLS.
func notOwnPage(r *http.Request) string {
	switch site, given := r.Header["Sec-Fetch-Site"]; {
	case given && len(site) == 1 && site[0] == "same-origin":
		return ""
	case given:
		return "the browser says Sec-Fetch-Site: " + answer.Printable(strings.Join(site,
			", ")) + ", which another page has sent; open the page of this port, and do it there"
	}
	origin := r.Header.Get("Origin")
	secure := r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
	switch {
	case origin == "":
		return "this request has neither Sec-Fetch-Site nor Origin, one of which every browser sends; a proxy before this port must pass them on, and what is no browser sends a bearer token"
	case !auth.SameOrigin(origin, r.Host) || secure && !strings.HasPrefix(strings.ToLower(origin), "https://"):
		return "this request is of a page of " + answer.Printable(origin) +
			"; open the page of this port, and do it there"
	}
	return ""
}
