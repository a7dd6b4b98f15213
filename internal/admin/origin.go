package admin

import (
	"net/http"
	"strings"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
)

// ofProgram reports whether nothing in r, which changes something and is not of application/json,
// is such as a browser sends, so that a client needs no type for a DELETE without a body. A browser
// says by Origin of which page it is with every method but GET and HEAD (Fetch, 3.2.5), goes by a
// name (auth.FromBrowser), and sends a form of a page that it does not ask about in one of three
// types (Fetch, 2.2.2: CORS-safelisted request-header). DELETE and PUT no page sends before this
// port has allowed it, which it never does.
func ofProgram(r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	switch strings.ToLower(strings.TrimSpace(kind)) {
	case "text/plain", "application/x-www-form-urlencoded", "multipart/form-data":
		return false
	}
	return len(r.Header["Cookie"]) == 0 && !auth.FromBrowser(r)
}

// notOwnPage says why a browser does not vouch that the page of this port has sent r, which changes
// something; "" if it does.
//
// Browsers say so by Sec-Fetch-Site, but over plain HTTP to loopback alone (Fetch Metadata, 2:
// potentially trustworthy URLs). Else they say by Origin, which is with all that changes something,
// and which no script can write (Fetch, 2.2.2: forbidden request-headers), of which page a request
// is: of this one, if it is the name that the request calls this server by. That is as safe:
//   - a page of another site, or of another port of this host, which gets the cookie, too, has
//     another Origin;
//   - a page that had its own name pointed here (DNS rebinding) has it in Origin and Host alike:
//     that name is not known here (auth.KnownHost), and the cookie is not of that name;
//   - a proxy that rewrites Host makes both differ, so that nothing can be changed: it does not
//     make another page's Origin this one's, unless that is of the very name that the proxy writes,
//     such as localhost. From there the browser sends no cookie of ours, since SameSite is strict,
//     and no JSON, since it asks before (CORS), and nobody here answers that;
//   - a page over plain HTTP, which somebody on the line wrote, is another origin than one over
//     TLS.
func notOwnPage(r *http.Request) string {
	switch site, given := r.Header["Sec-Fetch-Site"]; {
	case given && len(site) == 1 && site[0] == "same-origin":
		return ""
	case given:
		return "the browser says Sec-Fetch-Site: " + answer.Printable(strings.Join(site, ", ")) + ", which another page has sent; open the page of this port, and do it there"
	}
	origin := r.Header.Get("Origin")
	secure := r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
	switch {
	case origin == "":
		return "this request has neither Sec-Fetch-Site nor Origin, one of which every browser sends; a proxy before this port must pass them on, and what is no browser sends a bearer token"
	case !auth.SameOrigin(origin, r.Host) || secure && !strings.HasPrefix(strings.ToLower(origin), "https://"):
		return "this request is of a page of " + answer.Printable(origin) + "; open the page of this port, and do it there"
	}
	return ""
}
