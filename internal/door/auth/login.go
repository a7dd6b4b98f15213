package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A login is kept nowhere: the browser holds a cookie that every node with the same token can
// check. It is
//
//	1.EXPIRY.FINGERPRINT.MAC
//
// with the version, the Unix time at which it ends, the token that it belongs to, and HMAC-SHA-256
// of the text before the last dot. Both the fingerprint and the key of the MAC are derived from the
// token's hash, which is in the memory of the node only: so a cookie says nothing about its token,
// and is void as soon as the token is no longer in the file.
const (
	// LoginCookie is the name of the cookie.
	LoginCookie = "weir_login"
	// LoginTime is how long a login lasts.
	LoginTime    = 12 * time.Hour
	loginVersion = "1"
)

// loginKey is what cookies of a token are made with.
type loginKey struct {
	fingerprint string
	key         []byte
}

func newLoginKey(token [sha256.Size]byte) loginKey {
	derive := func(purpose string) []byte {
		m := hmac.New(sha256.New, token[:])
		m.Write([]byte("weir login 1 " + purpose))
		return m.Sum(nil)
	}
	return loginKey{hex.EncodeToString(derive("fingerprint")[:8]), derive("key")}
}

func (k *loginKey) mac(text string) string {
	m := hmac.New(sha256.New, k.key)
	m.Write([]byte(text))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// Login checks a token that a login form has sent, as any other token: a wrong one is a guess. If
// it is right, the cookie is for the answer.
func (t *Tokens) Login(r *http.Request, token string) (Identity, *http.Cookie, Verdict) {
	if t == nil {
		return Identity{}, nil, NoToken
	}
	id, verdict := t.check(t.ClientIP.Of(r), token)
	if verdict != Right {
		return Identity{}, nil, verdict
	}
	k := t.find(token)
	if k == nil { // the file changed just now
		return Identity{}, nil, Wrong
	}
	text := loginVersion + "." + strconv.FormatInt(time.Now().Add(LoginTime).Unix(), 10) + "." + k.login.fingerprint
	c := loginCookie(r)
	c.Value, c.MaxAge = text+"."+k.login.mac(text), int(LoginTime/time.Second)
	return id, c, Right
}

// Logout is the cookie that ends a login in the browser.
func Logout(r *http.Request) *http.Cookie {
	c := loginCookie(r)
	c.MaxAge = -1
	return c
}

// loginCookie is one that scripts cannot read, that no other site's page sends along, and that
// never goes over an open line where the port, or a proxy before it, speaks TLS. Any
// X-Forwarded-Proto is believed, since it only restricts the cookie.
func loginCookie(r *http.Request) *http.Cookie {
	secure := r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https")
	return &http.Cookie{Name: LoginCookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: secure}
}

// byCookie returns the owner of the login that r carries. One good cookie of the name is enough,
// since a page on another port of this host may have set others.
func (t *Tokens) byCookie(r *http.Request, now time.Time) (Identity, Verdict) {
	list := t.known.Load()
	if list == nil {
		return Identity{}, NoToken
	}
	for _, c := range r.CookiesNamed(LoginCookie) {
		at := strings.LastIndexByte(c.Value, '.')
		if at < 0 {
			continue
		}
		text, mac := c.Value[:at], c.Value[at+1:]
		parts := strings.Split(text, ".")
		if len(parts) != 3 || parts[0] != loginVersion {
			continue
		}
		for i := range *list {
			k := &(*list)[i]
			if k.login.fingerprint != parts[2] || !hmac.Equal([]byte(mac), []byte(k.login.mac(text))) {
				continue
			}
			// The time is ours, since the MAC is right.
			if end, err := strconv.ParseInt(parts[1], 10, 64); err == nil && now.Unix() < end {
				id := k.Identity
				id.ByCookie = true
				return id, Right
			}
		}
	}
	return Identity{}, NoToken
}
