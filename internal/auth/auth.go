// Package auth decides which clients a door serves, and which it trusts: bearer tokens, the bound
// on guessing them, and trusted peers. Begin with Tokens and Trust.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/httplimit"
)

// Tokens are the bearer tokens of auth.tokens_file. The zero value and nil hold none. The fields
// may not change once it is in use; all else is safe for concurrent use.
type Tokens struct {
	// ClientIP finds the address that sent an HTTP request; wrong tokens are counted by it. Only
	// the proxies that it lists are believed.
	ClientIP httplimit.ClientIP
	// Logger is told of wrong tokens, at most once a minute, and never of what they were; nil means
	// nobody.
	Logger *slog.Logger

	hashes  atomic.Pointer[[][sha256.Size]byte]
	guesses guesses
}

// Verdict is what comes of a token.
type Verdict uint8

// The verdicts. Only Right opens a door.
const (
	NoToken Verdict = iota // none was sent
	Wrong
	TooMany // its sender has sent too many wrong ones: it was not looked at
	Right
)

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

// ReadTokens reads a file of bearer tokens: one on a line; empty lines and lines that begin with #
// do not count. It returns at least one, or an error.
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

// Valid reports whether token is one of the tokens, in a time that does not tell how near a guess
// was. It counts no guesses: a door uses Check.
func (t *Tokens) Valid(token string) bool {
	if t == nil {
		return false
	}
	hashes := t.hashes.Load()
	if hashes == nil {
		return false
	}
	sum := sha256.Sum256([]byte(token))
	found := 0
	for i := range *hashes {
		found |= subtle.ConstantTimeCompare(sum[:], (*hashes)[i][:])
	}
	return found == 1
}

// Check tells what comes of a token that the peer at address sent, as net.Conn tells the address.
// An address (an IPv6 /64) that has sent ten wrong ones within a minute learns of no further one
// whether it is right, until a few seconds have passed.
func (t *Tokens) Check(address, token string) Verdict {
	peer, _ := netip.ParseAddrPort(address) // the zero Addr for a unix socket
	return t.check(peer.Addr(), token)
}

// CheckBearer is Check with the value of an Authorization header, or of gRPC's metadata of that
// name.
func (t *Tokens) CheckBearer(address, authorization string) Verdict {
	token, ok := bearerToken(authorization)
	if !ok {
		return NoToken
	}
	return t.Check(address, token)
}

func (t *Tokens) check(from netip.Addr, token string) Verdict {
	if t == nil {
		return Wrong
	}
	verdict := t.guesses.judge(from, t.Valid(token))
	if verdict != Right && t.Logger != nil {
		if n := t.guesses.told.Due(time.Minute); n > 0 {
			t.Logger.Warn("requests come in with wrong tokens", "from", from.String(), "requests", n)
		}
	}
	return verdict
}

// CheckRequest tells what comes of the bearer token of r.
func (t *Tokens) CheckRequest(r *http.Request) Verdict {
	if t == nil {
		return NoToken
	}
	token, ok := bearerToken(r.Header.Get("Authorization"))
	if !ok {
		return NoToken
	}
	return t.check(t.ClientIP.Of(r), token)
}

// Authenticated reports whether r carries one of the tokens.
func (t *Tokens) Authenticated(r *http.Request) bool { return t.CheckRequest(r) == Right }

// TokenStats is a reading: requests with wrong tokens, and those whose tokens were not looked at.
type TokenStats struct{ Wrong, TooMany uint64 }

// Stats reads the counters.
func (t *Tokens) Stats() TokenStats {
	if t == nil {
		return TokenStats{}
	}
	return TokenStats{Wrong: t.guesses.wrong.Load(), TooMany: t.guesses.tooMany.Load()}
}

func bearerToken(authorization string) (string, bool) {
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}
