package proxy

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-rl/weir/httplimit"
)

// A credential has one key over HTTP/1.1 and HTTP/2, and what has one value comes once.
func TestFieldsAtTheProxy(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q", r.Header["X_api_key"])
	})
	const rules = `
limits:
  - { name: login, when: { path: /login }, per: [user], allow: 2/day }
  - { name: key, when: { path: /key }, per: [header.x-api-key], allow: 2/day }
  - { name: session, when: { path: /session }, per: [session], allow: 2/day }
`
	identity, err := httplimit.ParseIdentity(map[string]string{"user": "basic", "session": "cookie:sid"}, "")
	if err != nil {
		t.Fatal(err)
	}
	code := base64.StdEncoding.EncodeToString([]byte("ada:x"))
	for _, h2 := range []bool{false, true} {
		addr := newProxy(t, up.URL, rules, func(o *Options) { o.Identity = identity })
		c := client(t, h2)
		send := func(path string, lines ...string) int {
			r, err := http.NewRequest("GET", "http://"+addr+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range lines {
				name, value, _ := strings.Cut(line, ":")
				r.Header[name] = append(r.Header[name], value)
			}
			resp, err := c.Do(r)
			read(t, resp, err)
			return resp.StatusCode
		}
		for i, q := range []struct {
			path  string
			lines []string
			want  int
		}{
			{"/login", []string{"Authorization:Basic " + code}, 200},
			{"/login", []string{"Authorization:basic \t" + strings.TrimRight(code, "=")}, 200},
			{"/login", []string{"Authorization:Basic  " + code}, 429},
			{"/login", []string{"Authorization:Basic " + code[:4] + " " + code[4:]}, 401},
			{"/key", []string{"X-Api-Key:k"}, 200},
			{"/key", []string{"X-Api-Key: k\t"}, 200}, // net/http sends these blanks over HTTP/2
			{"/key", []string{"X-Api-Key:  k "}, 429},
			{"/key", []string{"X-Api-Key:a", "X-Api-Key:b"}, 400},
			{"/key", []string{"X_api_key:b"}, 400},
			{"/other", []string{"X-Api-Key:a", "X-Api-Key:b"}, 400}, // whether or not it would meet the rule
			{"/session", []string{"Cookie:sid=a; sid=b"}, 200},
			{"/session", []string{"Cookie:sid=b", "Cookie:sid=c"}, 200},
			{"/session", []string{"Cookie:sid=d; sid=b"}, 429},
			{"/session", []string{"Cookie:sid=1;sid=2;sid=3;sid=4;sid=5"}, 400},
		} {
			if got := send(q.path, q.lines...); got != q.want {
				t.Errorf("HTTP/2 %t, request %d, %s %q: %d, want %d", h2, i, q.path, q.lines, got, q.want)
			}
		}
	}
	addr := newProxy(t, up.URL, rules,
		func(o *Options) { o.Fields = &httplimit.FieldGuard{Lookalikes: httplimit.DropLookalikeFields} })
	for _, path := range []string{"/key", "/key?x"} {
		answer := raw(t, addr, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX_Api_Key: a\r\n\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 200 ") || !strings.HasSuffix(answer, "\r\n\r\n[]") {
			t.Errorf("%.200q", answer)
		}
	}
}
