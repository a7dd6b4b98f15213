package httplimit

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// signedToken is a signed session in the form of Flask's; user tells them apart.
func signedToken(user string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(`{"user":"`+user+`"}`)) + ".aOgTgA.Jr2lXk8-bQ0tYp_5vNfZ1cDmRsE"
}

// A signed token in a cookie, a field or a parameter has one counter, however its signature is
// spelled, and a spelling that not all servers read alike is refused.
func TestSignedTokens(t *testing.T) {
	const rules = `
limits:
  - { name: cookie, when: { path: /cookie }, per: [session], allow: 1/day }
  - { name: identity, when: { path: /identity }, per: [user], allow: 1/day }
  - { name: header, when: { path: /header }, per: [header.x-token], allow: 1/day }
  - { name: query, when: { path: /query }, per: [query.token], allow: 1/day }
  - { name: authorization, when: { path: /authorization }, per: [header.authorization], allow: 1/day }
`
	identity := map[string]string{"session": "cookie:sid", "user": "header:X-User-Token"}
	ways := map[string]func(g *guarded, token string) int{
		"cookie":        func(g *guarded, token string) int { return g.status("/cookie", "Cookie: a=b; sid="+token) },
		"identity":      func(g *guarded, token string) int { return g.status("/identity", "X-User-Token: "+token) },
		"header":        func(g *guarded, token string) int { return g.status("/header", "X-Token: "+token) },
		"query":         func(g *guarded, token string) int { return g.status("/query?a=b&token=" + url.QueryEscape(token)) },
		"authorization": func(g *guarded, token string) int { return g.status("/authorization", "Authorization: Token "+token) },
	}
	ada := signedToken("ada")
	last := ada[:len(ada)-1]
	for name, send := range ways {
		g := newGuarded(t, rules, identity, "")
		for _, c := range []struct {
			what, token string
			want        int
		}{
			{"the token", ada, 200},
			{"once more", ada, 429},
			{"another last digit", last + "F", 429},
			{"padding", ada + "=", 429},
			{"more digits", ada + "AAAA", 429},
			{"another user's", signedToken("bob"), 200},
			{"one that is forged", last[:len(last)-26] + "K" + last[len(last)-25:], 200}, // uses up nothing of ada's
			{"foreign bytes behind", ada + "~", 400},
			{"foreign bytes within", last[:len(last)-9] + "!" + last[len(last)-9:], 400},
			{"the other alphabet", strings.Replace(ada, "8-b", "8+b", 1), 400},
			{"foreign bytes in the signed part", ada[:2] + "~" + ada[2:], 400},
			{"an opaque key", "sk.live.Jr2lXk8-bQ0tYp_5vNfZ1cDmRsE", 200},
			{"another opaque key", "sk.live.Jr2lXk8-bQ0tYp_5vNfZ1cDmRsF", 200},
			{"an opaque key with other signs", "sk.live.Jr2lXk8-bQ0tYp~5vNfZ1cDmRsF", 200},
		} {
			if got := send(g, c.token); got != c.want {
				t.Errorf("%s: %s: %d, want %d", name, c.what, got, c.want)
			}
		}
		if s := g.gate.FieldStats(); s.Unreadable != 4 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// Proxy-Authorization is read as Authorization is.
func TestProxyAuthorization(t *testing.T) {
	for name, g := range map[string]*guarded{
		"by rules":    newGuarded(t, "limits: [{name: a, per: [header.proxy-authorization], allow: 1/day}]", nil, ""),
		"by identity": newGuarded(t, "limits: [{name: a, per: [user], allow: 1/day}]", map[string]string{"user": "header:Proxy-Authorization"}, ""),
	} {
		for i, c := range []struct {
			value string
			want  int
		}{{"Basic YWRhOng=", 200}, {"basic  YWRhOng", 429}, {"Basic YWRh!Ong=", 400}, {"Bearer\xa0k", 400},
			{"Bearer " + signedToken("ada") + "~", 400}} {
			if got := g.status("/", "Proxy-Authorization: "+c.value); got != c.want {
				t.Errorf("%s, request %d: %d, want %d", name, i, got, c.want)
			}
		}
	}
}

// A field of client hints that is a list may come in several lines.
func TestHintsAreLists(t *testing.T) {
	g := newGuarded(t, "limits: [{name: a, per: [header.sec-ch-ua, header.sec-ch-ua-mobile], allow: 9/day}]", nil, "")
	if got := g.status("/", `Sec-Ch-Ua: "A";v="1"`, `Sec-Ch-Ua: "B";v="2"`, "Sec-Ch-Ua-Mobile: ?0"); got != 200 {
		t.Errorf("a list in two lines: %d", got)
	}
	if got := g.status("/", "Sec-Ch-Ua-Mobile: ?0", "Sec-Ch-Ua-Mobile: ?1"); got != 400 {
		t.Errorf("a value in two lines: %d", got)
	}
}

// What announces a trailer by the name of a field that is read is refused: some servers take it for
// that field.
func TestTrailerOfReadField(t *testing.T) {
	g := newGuarded(t, "limits: [{name: a, per: [header.x-api-key], allow: 9/day}]", nil, "")
	for name, want := range map[string]int{"X-Sum": 200, "X-Api-Key": 400, "X_api_key": 400} {
		r, err := http.NewRequest("POST", "http://shop.example/", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		r.RemoteAddr, r.Trailer = "192.0.2.1:1", http.Header{name: nil}
		w := httptest.NewRecorder()
		g.h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: %d, want %d", name, w.Code, want)
		}
	}
}

func TestLookalike(t *testing.T) {
	for _, c := range []struct {
		header, name      string
		alike, forwarding bool
	}{
		{"", "X-Forwarded-For", false, true}, {"", "X_forwarded_for", true, true}, {"", "X-Forwarded_port", true, true}, {"", "X+forwarded.for", true, true},
		{"", "Forwarded", false, true}, {"", "X-Forwarded-", false, false}, {"", "X_real_ip", false, false}, {"", "Accept", false, false},
		{"cf-connecting-ip", "Cf_connecting_ip", true, true}, {"cf-connecting-ip", "Cf-Connecting-Ip", false, true}, {"CF-Connecting-IP", "X_forwarded_for", true, true},
		{"client_ip", "Client_ip", false, true}, {"client_ip", "Client-Ip", false, false}, {"client_ip", "Client.ip", true, true},
	} {
		ip := ClientIP{Header: c.header}
		if got := ip.Lookalike(c.name); got != c.alike {
			t.Errorf("%q: %s is alike: %t", c.header, c.name, got)
		}
		if got := ip.Forwarding(c.name); got != c.forwarding {
			t.Errorf("%q: %s is of proxies: %t", c.header, c.name, got)
		}
	}
	g := &FieldGuard{}
	for name, want := range map[string]bool{"X_forwarded_for": true, "X_own": true, "X-Own": false, "X_other": false} {
		if got := g.DropsForged(ClientIP{}, name, "X-Own"); got != want {
			t.Errorf("%s is dropped: %t", name, got)
		}
	}
	if g.Stats().Dropped != 2 {
		t.Errorf("%+v", g.Stats())
	}
	if (&FieldGuard{Lookalikes: KeepLookalikeFields}).DropsForged(ClientIP{}, "X_forwarded_for") {
		t.Error("it is dropped though such fields are kept")
	}
}
