// Package auth decides which clients a door serves, and which it trusts: bearer tokens and their
// roles, the logins of browsers, the bound on guessing, and trusted peers. Begin with Tokens and
// Trust.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
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
	// Logger logs that wrong tokens came, at most once a minute, and never their text; nil means
	// nobody.
	Logger *slog.Logger

	known   atomic.Pointer[[]known]
	guesses guesses
	watched watched
}

// Verdict is what comes of a token.
type Verdict uint8

// The verdicts. Only Right opens a door.
const (
	NoToken Verdict = iota // none was sent
	Wrong
	TooMany // its sender has sent too many wrong ones: it was not looked at
	Right
	Forbidden // it is right, but its role does not open this door
)

// Token is one line of a file of tokens.
type Token struct {
	Text string
	Name string // whose it is; "" if the file does not say
	Role Role
}

// known is a token that is in force.
type known struct {
	hash [sha256.Size]byte
	Identity
	login loginKey
}

// Load reads the tokens anew, as ReadTokens does. After an error the tokens are those from before.
func (t *Tokens) Load(path string) error {
	tokens, err := ReadTokens(path)
	if err != nil {
		return err
	}
	list := make([]known, len(tokens))
	for i, token := range tokens {
		k := known{hash: sha256.Sum256([]byte(token.Text)), Identity: Identity{Name: token.Name, Role: token.Role}}
		if k.Name == "" {
			k.Name = "sha256:" + hex.EncodeToString(k.hash[:4])
		}
		k.login = newLoginKey(k.hash)
		list[i] = k
	}
	t.known.Store(&list)
	t.lookAll()
	return nil
}

// ReadTokens reads a file of bearer tokens: one on a line, behind it name=NAME and role=ROLE if
// they are known; empty lines and lines that begin with # do not count. A token without a role is
// an admin's. It returns at least one, or an error.
func ReadTokens(path string) ([]Token, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var tokens []Token
	lines := map[string]int{}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		words := strings.Fields(line)
		if len(words) == 0 || words[0][0] == '#' {
			continue
		}
		token, err := parseToken(words)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if first := lines[token.Text]; first > 0 {
			return nil, fmt.Errorf("%s:%d: the token is the same as on line %d", path, n, first)
		}
		lines[token.Text] = n
		tokens = append(tokens, token)
	}
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%s: holds no token; write one on a line", path)
	}
	return tokens, nil
}

// mostName is how many bytes a name has at most.
const mostName = 64

// parseToken reads the words of a line. Its error does not show the token, whose words these may
// be.
func parseToken(words []string) (Token, error) {
	t := Token{Text: words[0], Role: Admin}
	seen := map[string]bool{}
	for i, word := range words {
		if strings.ContainsFunc(word, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return t, errors.New("a token holds no spaces, and only ASCII; so do its name and role")
		}
		if i == 0 {
			continue
		}
		name, value, _ := strings.Cut(word, "=")
		switch {
		case name != "name" && name != "role":
			return t, fmt.Errorf(
				"a token holds no spaces; behind it there are name=NAME and role=ROLE, and word %d is neither", i+1)
		case seen[name]:
			return t, fmt.Errorf("%s= is there twice", name)
		case name == "name" && (value == "" || len(value) > mostName):
			return t, fmt.Errorf("a name has 1 to %d characters", mostName)
		case name == "name":
			t.Name = value
		default:
			var err error
			if t.Role, err = ParseRole(value); err != nil {
				return t, err
			}
		}
		seen[name] = true
	}
	return t, nil
}

// find returns the token of that text, in a time that does not show how near a guess was; nil if
// there is none.
func (t *Tokens) find(text string) (found *known) {
	if t == nil {
		return nil
	}
	return t.byHash(sha256.Sum256([]byte(text)))
}

// byHash is find by the hash of the text.
func (t *Tokens) byHash(sum [sha256.Size]byte) (found *known) {
	list := t.known.Load()
	if list == nil {
		return nil
	}
	for i := range *list {
		if subtle.ConstantTimeCompare(sum[:], (*list)[i].hash[:]) == 1 {
			found = &(*list)[i]
		}
	}
	return found
}

// Check judges a token that the peer at address sent to a decision door; address is as in net.Conn.
// After ten wrong tokens within a minute, an address (an IPv6 /64) does not learn whether a further
// one is right, until a few seconds have passed.
func (t *Tokens) Check(address, token string) Verdict {
	peer, _ := netip.ParseAddrPort(address) // the zero Addr for a unix socket
	id, verdict := t.check(peer.Addr(), token)
	return opens(id, verdict)
}

// opens is a verdict for a decision door.
func opens(id Identity, v Verdict) Verdict {
	if v == Right && id.Role < Operator {
		return Forbidden
	}
	return v
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

func (t *Tokens) check(from netip.Addr, token string) (Identity, Verdict) {
	if t == nil {
		return Identity{}, Wrong
	}
	k := t.find(token)
	verdict := t.guesses.judge(from, k != nil)
	if verdict == Right {
		return k.Identity, Right
	}
	if t.Logger != nil {
		if n := t.guesses.told.Due(time.Minute); n > 0 {
			t.Logger.Warn("requests come in with wrong tokens", "from", from.String(), "requests", n)
		}
	}
	return Identity{}, verdict
}

// CheckRequest judges the bearer token of r at a decision door.
func (t *Tokens) CheckRequest(r *http.Request) Verdict {
	return opens(t.bearer(r))
}

// bearer returns the owner of the bearer token that r carries.
func (t *Tokens) bearer(r *http.Request) (Identity, Verdict) {
	if t == nil {
		return Identity{}, NoToken
	}
	token, ok := bearerToken(r.Header.Get("Authorization"))
	if !ok {
		return Identity{}, NoToken
	}
	return t.check(t.ClientIP.Of(r), token)
}

// Identify returns who sent r to the admin port, by its bearer token, or without one by the cookie
// of a login. The Identity means nothing unless the Verdict is Right. A cookie that is not good is
// as none: it is no guess, since nobody can guess one.
func (t *Tokens) Identify(r *http.Request) (Identity, Verdict) {
	id, verdict := t.bearer(r)
	if t == nil || verdict != NoToken {
		return id, verdict
	}
	return t.byCookie(r, time.Now())
}

// Look is Identify for a request that was let in and is still being answered: ok is false once its
// token is no longer there, or its login has ended. It counts no guess.
func (t *Tokens) Look(r *http.Request) (id Identity, ok bool) {
	if t == nil {
		return Identity{}, false
	}
	if token, sent := bearerToken(r.Header.Get("Authorization")); sent {
		k := t.find(token)
		if k == nil {
			return Identity{}, false
		}
		return k.Identity, true
	}
	id, verdict := t.byCookie(r, time.Now())
	return id, verdict == Right
}

// Authenticated reports whether r carries a token that opens the decision doors.
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
