package doors

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// fieldServer is a server behind the proxy in the test of spellings.
type fieldServer struct {
	name  string
	kinds []string // of credentials that it knows
	start func(t *testing.T, secret string) (address string)
	// session makes a session of ada as the server signs it; nil for a JSON Web Token.
	session func(secret string) string
}

var fieldServers = []fieldServer{
	{"Go", kindsOfCredentials, startGoFields, nil},
	{"nginx", []string{"basic"}, startNginxFields, nil},
	{"Flask", kindsOfCredentials, pythonFields("flask"), flaskSession},
	{"Django, wsgiref", kindsOfCredentials, pythonFields("django"), nil},
	{"Starlette, uvicorn", kindsOfCredentials, pythonFields("starlette"), starletteSession},
	{"Express 5", kindsOfCredentials, expressFields("express5"), nil},
	{"Express 4", kindsOfCredentials, expressFields("express4"), nil},
	{"Spring", kindsOfCredentials, startFields(startSpringFields), nil},
	{"Rails", kindsOfCredentials, startFields(startRailsFields), nil},
}

// sessionTime is when the sessions were signed, as itsdangerous writes it.
var sessionTime = base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, 1_760_000_000))

// flaskSession is a session as Flask signs it.
func flaskSession(secret string) string {
	signed := base64.RawURLEncoding.EncodeToString([]byte(`{"user":"ada"}`)) + "." + sessionTime
	return signed + "." + sha1Signature(sha1MAC([]byte(secret), "cookie-session"), signed)
}

// starletteSession is a session as the SessionMiddleware of Starlette signs it.
func starletteSession(secret string) string {
	signed := base64.StdEncoding.EncodeToString([]byte(`{"user": "ada"}`)) + "." + sessionTime
	key := sha1.Sum([]byte("itsdangerous.Signersigner" + secret))
	return signed + "." + sha1Signature(key[:], signed)
}

func sha1MAC(key []byte, text string) []byte {
	mac := hmac.New(sha1.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

func sha1Signature(key []byte, text string) string {
	return base64.RawURLEncoding.EncodeToString(sha1MAC(key, text))
}

const fieldRules = `
limits:
  - { name: basic, when: { path: /basic }, per: [login], allow: 5/day }
  - { name: jwt, when: { path: /jwt }, per: [user], allow: 5/day }
  - { name: bearer, when: { path: /bearer }, per: [token], allow: 5/day }
  - { name: authorization, when: { path: /authorization }, per: [header.authorization], allow: 5/day }
  - { name: header, when: { path: /header }, per: [header.x-api-key], allow: 5/day }
  - { name: query, when: { path: /query }, per: [query.key], allow: 5/day }
  - { name: cookie, when: { path: /cookie }, per: [session], allow: 5/day }
  - { name: session, when: { path: /session }, per: [signed], allow: 5/day }
  - { name: signed-header, when: { path: /signed-header }, per: [header.x-token], allow: 5/day }
  - { name: signed-query, when: { path: /signed-query }, per: [query.token], allow: 5/day }
`

// Nobody gets round a limit by another spelling of a credential, or by a second one, whatever the
// server behind makes of it: of all requests that a server takes for ada's, the limit lets five
// pass.
func TestFieldEvasion(t *testing.T) {
	t.Parallel()
	program := servertest.BuiltProgram(t)
	random, step := 200, 1
	if !effort.All() {
		random, step = 10, 9
	}
	for _, server := range fieldServers {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			if server.name != "Go" {
				effort.Long(t, "asks one more server for what it makes of each spelling")
			}
			secret := "0123456789abcdef0123456789abcdef"
			token := adasToken(t, secret)
			address := server.start(t, secret)
			proxy := startFieldProxy(t, program, address, secret)
			session := token
			if server.session != nil {
				session = server.session(secret)
			}
			all := fieldSpellings(token, session, random)
			for _, kind := range server.kinds {
				taken, found := 0, 0
				s := all[kind]
				for i := range 6 {
					want := "200 ok"
					if i == 5 {
						want = "429"
					}
					if got := rawAsk(t, proxy, s.canonical); got != want {
						t.Fatalf("%s, request %d: %s, want %s", kind, i, got, want)
					}
				}
				for i := 0; i < len(s.others); i += step {
					other := s.others[i]
					if rawAsk(t, address, other) == "200 ok" {
						taken++
					}
					if rawAsk(t, proxy, other) == "200 ok" {
						found++
						t.Errorf("%s: %q gets round the limit", kind, other)
					}
				}
				t.Logf("%s, %s: of %d other spellings the server takes %d for ada's; %d get round the limit",
					server.name, kind, (len(s.others)+step-1)/step, taken, found)
				if taken == 0 {
					t.Errorf("%s: the server takes no other spelling: the test says nothing", kind)
				}
			}
		})
	}
}

// adasToken is a JSON Web Token of ada.
func adasToken(t *testing.T, secret string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte(secret)},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	sig, err := signer.Sign([]byte(`{"sub":"ada"}`))
	if err != nil {
		t.Fatal(err)
	}
	token, err := sig.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// startFieldProxy starts the built proxy, and returns its address.
func startFieldProxy(t *testing.T, program, upstream, secret string) string {
	t.Helper()
	dir := t.TempDir()
	key, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: []byte(secret)}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"jwks.json": string(key), "rules.yaml": fieldRules} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := servertest.Launch(t, program, dir, "serve", "--rules=rules.yaml", "--listen-proxy=127.0.0.1:0",
		"--proxy-upstream=http://"+upstream,
		"--jwt-jwks=jwks.json", "--identity=login=basic,user=jwt:sub,token=bearer,session=cookie:sid,signed=cookie:sess")
	return p.Addr("proxy")
}

// rawAsk sends a request as it stands, and returns the status of the answer, with the body of a
// 200.
func rawAsk(t *testing.T, address string, s spelling) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	lines := slices.Concat([]string{"GET " + s.target + " HTTP/1.1", "Host: shop.example", "Connection: close"},
		s.lines, []string{"", ""})
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "closed" // by a server that takes no such bytes
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Sprint(resp.StatusCode)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "broken off"
	}
	return "200 " + string(body)
}

// startGoFields serves as a program in Go does, with the packages of the standard library.
func startGoFields(t *testing.T, secret string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ok := false
		bearer := ""
		if f := strings.Fields(r.Header.Get("Authorization")); len(f) == 2 && strings.EqualFold(f[0], "bearer") {
			bearer = f[1]
		}
		switch r.URL.Path {
		case "/basic":
			user, password, _ := r.BasicAuth()
			ok = user == "ada" && password == "s3cret"
		case "/jwt":
			ok = holdsAda(bearer, secret)
		case "/signed-header":
			ok = holdsAda(r.Header.Get("X-Token"), secret)
		case "/signed-query":
			ok = holdsAda(r.URL.Query().Get("token"), secret)
		case "/session":
			for _, c := range r.CookiesNamed("sess") {
				ok = ok || holdsAda(c.Value, secret)
			}
		case "/bearer", "/authorization":
			ok = bearer == adasKey
		case "/header":
			lines := r.Header["X-Api-Key"]
			ok = len(lines) > 0 && lines[len(lines)-1] == adasKey
		case "/query":
			values := r.URL.Query()["key"]
			ok = len(values) > 0 && values[len(values)-1] == adasKey
		case "/cookie":
			for _, c := range r.CookiesNamed("sid") {
				ok = ok || c.Value == adasKey
			}
		}
		if ok {
			fmt.Fprint(w, "ok")
			return
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// holdsAda reports whether a program in Go takes a JSON Web Token for ada's.
func holdsAda(token, secret string) bool {
	// jose looks at the padding of no part
	sig, err := jose.ParseSignedCompact(strings.TrimRight(token, "="), []jose.SignatureAlgorithm{jose.HS256})
	if err != nil {
		return false
	}
	payload, err := sig.Verify([]byte(secret))
	return err == nil && string(payload) == `{"sub":"ada"}`
}

// startNginxFields starts an nginx with a file of passwords.
func startNginxFields(t *testing.T, _ string) string {
	t.Helper()
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("nginx is not installed; on Debian: apt-get install nginx-light")
	}
	dir := t.TempDir()
	address := "127.0.0.1:" + servertest.FreePort(t)
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;"
	}
	for name, text := range map[string]string{
		"passwords": "ada:{PLAIN}s3cret\n",
		"basic":     "ok",
		"nginx.conf": `daemon off; ` + user + ` pid nginx.pid; error_log stderr crit; events {}
http { access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
server { listen ` + address + `; root .; location / { auth_basic "x"; auth_basic_user_file passwords; } } }`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	servertest.Begin(t, exec.Command(nginx, "-p", dir, "-c", "nginx.conf")).Listens(address)
	return address
}

// startFields returns what starts a server of testdata/upstreams.
func startFields(start func(t *testing.T, port string, env ...string) string) func(t *testing.T, secret string) string {
	return func(t *testing.T, secret string) string {
		t.Helper()
		return start(t, servertest.FreePort(t), "JWT_SECRET="+secret)
	}
}

func pythonFields(framework string) func(t *testing.T, secret string) string {
	return startFields(func(t *testing.T, port string, env ...string) string {
		return startPython(t, "fields", framework, port, env...)
	})
}

func expressFields(express string) func(t *testing.T, secret string) string {
	return startFields(func(t *testing.T, port string, env ...string) string {
		return startNode(t, "fields", express, port, env...)
	})
}

func startSpringFields(t *testing.T, port string, env ...string) string {
	return startSpring(t, "Fields", port, env...)
}

func startRailsFields(t *testing.T, port string, env ...string) string {
	return startRails(t, "fields", port, env...)
}
