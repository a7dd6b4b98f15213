package auth

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/weir-rl/weir/internal/util/clientip"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// Trust decides which clients may refund, release, and ask for more than 1,000 hits.
type Trust struct {
	Peers  []netip.Prefix // addresses of the other end of the connection; no header is believed
	Unix   bool           // peers of a unix socket are trusted
	Tokens *Tokens        // nil for none
}

// Trusted reports whether r comes from a trusted peer or carries a token. A browser is not trusted
// for where it runs: any web page can make it ask.
func (t *Trust) Trusted(r *http.Request) bool {
	if t.Tokens.Authenticated(r) {
		return true
	}
	if FromBrowser(r) {
		return false
	}
	return t.TrustedPeer(r.RemoteAddr)
}

// TrustedPeer reports whether the other end of a connection, as net.Conn and http.Request tell it,
// is a trusted peer.
func (t *Trust) TrustedPeer(address string) bool {
	peer, err := netip.ParseAddrPort(address)
	if err != nil {
		return t.Unix && address == listen.UnixPeer.String()
	}
	addr := clientip.Addr(peer.Addr())
	for _, p := range t.Peers {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// FromBrowser reports whether a browser sent r. Posts of a page have an Origin. Images that it
// loads need not have one, but are marked by Fetch Metadata (https://www.w3.org/TR/fetch-metadata/)
// where the address counts as trustworthy, as loopback does, and else by the name that all browsers
// go by.
func FromBrowser(r *http.Request) bool {
	return len(r.Header["Origin"]) > 0 || len(r.Header["Sec-Fetch-Site"]) > 0 ||
		strings.HasPrefix(r.UserAgent(), "Mozilla/")
}
