package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
)

// Tokens are the bearer tokens of auth.tokens_file. The zero value and nil hold none. Safe for concurrent use.
type Tokens struct {
	hashes atomic.Pointer[[][sha256.Size]byte]
}

// Load reads the tokens anew, as ReadTokens does. After an error the tokens are those from before.
func (t *Tokens) Load(path string) error {
	tokens, err := ReadTokens(path)
	if err != nil {
		return err
	}
	hashes := make([][sha256.Size]byte, len(tokens))
	for i, token := range tokens {
		hashes[i] = sha256.Sum256([]byte(token))
	}
	t.hashes.Store(&hashes)
	return nil
}

// ReadTokens reads a file of bearer tokens: one on a line; empty lines and lines that begin with # do not count. It
// returns at least one, or an error.
func ReadTokens(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var tokens []string
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		token := strings.TrimSpace(line)
		if token == "" || token[0] == '#' {
			continue
		}
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return nil, fmt.Errorf("%s:%d: a token holds no spaces, and only ASCII", path, n)
		}
		tokens = append(tokens, token)
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%s: holds no token; write one on a line", path)
	}
	return tokens, nil
}

// Authenticated reports whether r carries one of the tokens. The time it takes does not tell how near a guess was.
func (t *Tokens) Authenticated(r *http.Request) bool {
	if t == nil {
		return false
	}
	hashes := t.hashes.Load()
	if hashes == nil {
		return false
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	found := 0
	for i := range *hashes {
		found |= subtle.ConstantTimeCompare(sum[:], (*hashes)[i][:])
	}
	return found == 1
}

// Trust tells who may refund, release, and ask for more than 1,000 hits.
type Trust struct {
	Peers  []netip.Prefix // addresses of the other end of the connection; no header is believed
	Tokens *Tokens        // nil for none
}

// Trusted reports whether r comes from a trusted peer or carries a token. A browser is not trusted for where it runs: any
// web page can make it ask.
func (t *Trust) Trusted(r *http.Request) bool {
	if t.Tokens.Authenticated(r) {
		return true
	}
	if fromBrowser(r) {
		return false
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := peer.Addr().Unmap().WithZone("")
	for _, p := range t.Peers {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// fromBrowser reports whether a browser sent r. What a page posts has an Origin; what it loads as an image need not have
// one, but is marked by Fetch Metadata (https://www.w3.org/TR/fetch-metadata/) where the address counts as trustworthy,
// as loopback does, and else by the name that all browsers go by.
func fromBrowser(r *http.Request) bool {
	return len(r.Header["Origin"]) > 0 || len(r.Header["Sec-Fetch-Site"]) > 0 || strings.HasPrefix(r.UserAgent(), "Mozilla/")
}
