package server

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
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

// Load reads the tokens anew: one on a line; empty lines and lines that begin with # do not count. After an error the
// tokens are those from before.
func (t *Tokens) Load(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var hashes [][sha256.Size]byte
	lines := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; lines.Scan(); n++ {
		token := strings.TrimSpace(lines.Text())
		if token == "" || token[0] == '#' {
			continue
		}
		if strings.ContainsAny(token, " \t") {
			return fmt.Errorf("%s:%d: a token holds no spaces", path, n)
		}
		hashes = append(hashes, sha256.Sum256([]byte(token)))
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(hashes) == 0 {
		return fmt.Errorf("%s: %w", path, errors.New("holds no token; write one on a line"))
	}
	t.hashes.Store(&hashes)
	return nil
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

// Trusted reports whether r comes from a trusted peer or carries a token. A request that a web page made a browser
// send (it has an Origin) is not trusted for where it comes from.
func (t *Trust) Trusted(r *http.Request) bool {
	if t.Tokens.Authenticated(r) {
		return true
	}
	if len(r.Header["Origin"]) > 0 {
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
