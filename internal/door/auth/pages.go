package auth

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/util/sparselog"
)

// Any web page can make the browser that shows it send requests to doors that only this machine, or
// only a private network, can reach.

// KnownHost reports whether a server may be called by host: by an address, localhost, or one of
// names. A page of another site that got its own name pointed here (DNS rebinding) shows by that
// name; an address cannot be rebound.
func KnownHost(host string, names []string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return true
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	return slices.ContainsFunc(names, func(h string) bool { return strings.EqualFold(h, name) })
}

// SameOrigin reports whether an Origin names pages of host.
func SameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// OtherOrigin says why r is of a web page of another origin, by Origin; "" if nothing says so.
func OtherOrigin(r *http.Request) string {
	lines := r.Header["Origin"]
	if len(lines) == 0 || lines[0] == "" || SameOrigin(lines[0], r.Host) {
		return ""
	}
	return "web pages of other origins have no access: this one is of " + answer.Printable(lines[0]) + ", and asks " +
		answer.Printable(r.Host) + "; a proxy before this port must pass on the Host that the browser sent"
}

// OtherSite says why r is of a web page of another origin, by Sec-Fetch-Site; "" if nothing says
// so. What pages load as images, scripts or frames has no Origin.
func OtherSite(r *http.Request) string {
	if lines := r.Header["Sec-Fetch-Site"]; len(lines) > 0 && (lines[0] == "cross-site" || lines[0] == "same-site") {
		return "web pages of other origins have no access"
	}
	return ""
}

// PageReason is the sign by which a request showed that a web page made a browser send it.
type PageReason uint8

// The reasons. Their texts are labels of a metric.
const (
	PageHost   PageReason = iota // it calls a door on loopback by a name that is not known here
	PageOrigin                   // Origin
	PageSite                     // Sec-Fetch-Site
	PageForm                     // a body of text/plain, which is all that a form can hide JSON in
	PageReasons
)

var pageReasons = [PageReasons]string{"host", "origin", "sec_fetch_site", "content_type"}

// String returns the reason as in metrics.
func (r PageReason) String() string { return pageReasons[r] }

// Pages keeps web pages from a decision door, at which every question uses up limits. Listed
// proxies, and holders of a token, may pass on requests of browsers. A nil *Pages knows of none of
// them. The fields may not change once it is in use; all else is safe for concurrent use.
type Pages struct {
	// Hosts are names that a door on loopback may be called by, beside addresses and localhost.
	Hosts []string
	// Proxies are the proxies that may pass on requests of browsers.
	Proxies httplimit.ClientIP
	// Tokens are for programs; nil for none.
	Tokens *Tokens
	// Logger hears of refused requests, at most once a minute; nil means nobody.
	Logger *slog.Logger

	loopback atomic.Bool
	host     atomic.Pointer[string] // a known one, which needs no second look
	refused  [PageReasons]atomic.Uint64
	told     sparselog.Line
}

// Listens notes the address on which the door listens, if browsers reach it there without TLS.
// Browsers of this machine alone reach one on loopback, and it has few names; the names of a door
// on a network are not known here.
func (p *Pages) Listens(a net.Addr) {
	tcp, ok := a.(*net.TCPAddr)
	p.loopback.Store(ok && tcp.IP.IsLoopback())
}

// Admit reports whether r may be decided; if not, it has answered r.
func (p *Pages) Admit(w http.ResponseWriter, r *http.Request) bool {
	// Most requests have none of these fields, and the Host of the one before.
	if len(r.Header["Origin"]) == 0 && len(r.Header["Sec-Fetch-Site"]) == 0 && !sendsPlain(r) &&
		(p == nil || p.knows(r.Host)) {
		return true
	}
	why, reason, status := p.look(r)
	if status == 0 || p != nil && (p.Proxies.TrustedPeer(r) || p.Tokens.Authenticated(r)) {
		return true
	}
	if p != nil {
		p.refused[reason].Add(1)
		if n := p.told.Due(time.Minute); n > 0 && p.Logger != nil {
			p.Logger.Warn(
				"requests of web pages are refused at the HTTP door; a proxy that passes on requests of browsers belongs into client_ip.trusted_proxies",
				"by", reason.String(), "from", sparselog.Excerpt(r.RemoteAddr), "host", sparselog.Excerpt(r.Host),
				"origin", sparselog.Excerpt(r.Header.Get("Origin")), "requests", n)
		}
	}
	answer.Problem(w, status, why, "")
	return false
}

// look says why r is of a web page; the status is 0 if nothing says so.
func (p *Pages) look(r *http.Request) (why string, reason PageReason, status int) {
	if p != nil && !p.knows(r.Host) {
		return "the Host " + answer.Printable(r.Host) +
			" is not known at this port, which listens on loopback: use an address or localhost, or add it to admin.hosts", PageHost, http.StatusForbidden
	}
	if why = OtherOrigin(r); why != "" {
		return why, PageOrigin, http.StatusForbidden
	}
	if why = OtherSite(r); why != "" {
		return why, PageSite, http.StatusForbidden
	}
	if sendsPlain(r) {
		return "a body of text/plain is what web pages send in forms: send Content-Type: application/json", PageForm,
			http.StatusUnsupportedMediaType
	}
	return "", 0, 0
}

// knows reports whether the door may be called by host, which it looks at twice only if it is
// another one than before. No browser leaves Host out.
func (p *Pages) knows(host string) bool {
	if last := p.host.Load(); last != nil && *last == host || host == "" || !p.loopback.Load() {
		return true
	}
	if !KnownHost(host, p.Hosts) {
		return false
	}
	known := strings.Clone(host) // which may lie in the buffer of the connection
	p.host.Store(&known)
	return true
}

// sendsPlain reports whether r has a body of text/plain.
func sendsPlain(r *http.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	kind := r.Header["Content-Type"]
	return len(kind) > 0 && kind[0] != "application/json" && isPlain(kind[0])
}

// isPlain reports whether a media type is text/plain.
func isPlain(kind string) bool {
	kind, _, _ = strings.Cut(kind, ";")
	return strings.EqualFold(strings.Trim(kind, " \t"), "text/plain")
}

// PageStats are how many requests were refused.
type PageStats struct{ Refused [PageReasons]uint64 }

// Stats reads the counters.
func (p *Pages) Stats() (s PageStats) {
	for i := range s.Refused {
		s.Refused[i] = p.refused[i].Load()
	}
	return s
}
