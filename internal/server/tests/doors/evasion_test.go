//go:build unix

package doors

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule"
)

// evasionRules limit what each upstream has a handler for.
const evasionRules = `domain: default
limits:
  - { name: login, when: { method: POST, path: /login }, per: [ip], allow: 1/day, algorithm: sliding_log }
  - { name: signin, when: { method: POST, path: /Sign-In/ }, per: [ip], allow: 1/day, algorithm: sliding_log }
  - { name: pay, when: { method: POST, path: /api/pay/** }, per: [ip], allow: 1/day, algorithm: sliding_log }
  - { name: report, when: { method: GET, path: /report }, per: [ip], allow: 1/day, algorithm: sliding_log }
`

// withFormats are evasionRules as docs/operating/ambiguous-requests.md has them for Rails:
// /login.json is /login to it.
var withFormats = strings.NewReplacer("path: /login", `path: ["/login", "/login.*"]`, "path: /Sign-In/",
	`path: ["/Sign-In/", "/Sign-In.*"]`,
	"path: /report", `path: ["/report", "/report.*"]`).Replace(evasionRules)

// evasionRoutes are the handlers, by the limit that counts their requests.
var evasionRoutes = []struct{ name, method, path string }{
	{"login", "POST", "/login"}, {"signin", "POST", "/Sign-In/"}, {"pay", "POST", "/api/pay/7"}, {"report", "GET", "/report"},
}

// evasionSeed makes the list of spellings, which is the same in every run.
const evasionSeed = 31

// spellingsOf returns other spellings of a path, and what looks like one: each trick alone, and
// random tricks one after the other.
func spellingsOf(path string, n int) []string {
	rnd := rand.New(rand.NewPCG(evasionSeed, uint64(len(path))))
	all := []string{path}
	seen := map[string]bool{path: true}
	add := func(s string) {
		if !seen[s] && !strings.ContainsAny(s, " \r\n") {
			seen[s] = true
			all = append(all, s)
		}
	}
	for _, trick := range pathTricks {
		for range 3 {
			add(trick(rnd, path))
		}
	}
	for len(all) < n {
		s := path
		for range 1 + rnd.IntN(3) {
			s = pathTricks[rnd.IntN(len(pathTricks))](rnd, s)
		}
		add(s)
	}
	return all
}

// at puts text in the place of a byte, or with width 0 before it.
func at(s string, i, width int, text string) string { return s[:i] + text + s[i+width:] }

// some returns the index of one of the bytes of s that are among chars; -1 if there are none.
func some(rnd *rand.Rand, s, chars string) int {
	var places []int
	for i := range len(s) {
		if strings.IndexByte(chars, s[i]) >= 0 {
			places = append(places, i)
		}
	}
	if len(places) == 0 {
		return -1
	}
	return places[rnd.IntN(len(places))]
}

const (
	lowerLetters = "abcdefghijklmnopqrstuvwxyz"
	bothCases    = lowerLetters + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

var pathTricks = func() []func(*rand.Rand, string) string {
	tricks := []func(*rand.Rand, string) string{
		func(_ *rand.Rand, s string) string { return strings.ToUpper(s) },
		func(_ *rand.Rand, s string) string { return strings.ToLower(s) },
		func(_ *rand.Rand, s string) string { return strings.TrimSuffix(s, "/") },
		func(rnd *rand.Rand, s string) string { // the case of some bothCases
			b := []byte(s)
			for i, c := range b {
				if strings.IndexByte(bothCases, c) >= 0 && rnd.IntN(2) == 0 {
					b[i] = c ^ 0x20
				}
			}
			return string(b)
		},
	}
	// What stands for a letter, or is taken for it.
	for _, form := range []string{"%%%02x", "%%%02X", "%%25%02x", "%%u00%02x", "%%%02x%%00"} {
		tricks = append(tricks, func(rnd *rand.Rand, s string) string {
			if i := some(rnd, s, bothCases); i >= 0 {
				return at(s, i, 1, fmt.Sprintf(form, s[i]))
			}
			return s
		})
	}
	for _, like := range []string{"i%C4%B1", "I%C4%B0", "i%C4%B0", "s%C5%BF", "S%C5%BF", "o%CE%BF", "g%EF%BD%87"} {
		tricks = append(tricks, func(rnd *rand.Rand, s string) string {
			if i := some(rnd, s, like[:1]); i >= 0 {
				return at(s, i, 1, like[1:])
			}
			return s
		})
	}
	// What stands for a slash, or beside one.
	for _, text := range []string{
		"//", "/./", "/x/../", "/%2e/", "/x/%2E%2e/", "/%2F", "%2F", "%2f", "\\", "%5C", "/\\", "%C0%AF", "/;/", "/;a=b/", "/x/..;/", "/.;/", "/x/%2e%2e;a=b/", "/x/..%3B/", "/x;a=b/../", ";a=b/", "/..%2F",
		"/%20/", "/.%2F", "///",
	} {
		tricks = append(tricks, func(rnd *rand.Rand, s string) string {
			if i := some(rnd, s, "/"); i >= 0 {
				return at(s, i, 1, text)
			}
			return s
		})
	}
	// What servers cut off at the end, or do not see.
	for _, text := range []string{
		"/", "//", "/.", "/..", "/x/..", "%20", "%09", "%0A", "%0a", "%0D", "%0D%0A", "%00", "%7F", ".", ";", ";a=b", "%3B", "?", "?a=b", "/?a=b", "#", "#a", "%23",
		"%3F", "%3Fa", "%C2%A0", "%E2%80%8B", "%2F", "%5C", "\\", ".json", "%2E", "/index.html", "%", "%zz", ":", "~", "*",
	} {
		tricks = append(tricks, func(_ *rand.Rand, s string) string { return s + text })
	}
	for _, text := range []string{"http://other.example", "//other.example", "/%0A", "/x/%2e%2e", "/%2e%2e", "*"} {
		tricks = append(tricks, func(_ *rand.Rand, s string) string {
			if strings.HasPrefix(s, "/") {
				return text + s
			}
			return s
		})
	}
	return tricks
}()

// TestSpellings holds the list of spellings fixed: it is the same in every run.
func TestSpellings(t *testing.T) {
	a, b := spellingsOf("/login", 300), spellingsOf("/login", 300)
	if strings.Join(a, " ") != strings.Join(b, " ") || len(a) != 300 {
		t.Errorf("%d and %d spellings, which differ", len(a), len(b))
	}
}

// TestEvasion sends other spellings of limited paths through the built proxy to real servers:
// whatever reaches a handler was counted by its limit.
func TestEvasion(t *testing.T) {
	t.Parallel()
	program := servertest.BuiltProgram(t)
	for _, up := range evasionUpstreams {
		t.Run(up.name, func(t *testing.T) {
			t.Parallel()
			if !up.quick {
				effort.Long(t, "drives a real server of another kind")
			}
			port := servertest.FreePort(t)
			up.start(t, port)
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "rules"), 0o755); err != nil {
				t.Fatal(err)
			}
			rules := evasionRules
			if up.rules != "" {
				rules = up.rules
			}
			servertest.WriteRules(t, filepath.Join(dir, "rules", "default.yaml"), rules)
			weir := servertest.Launch(t, program, dir, "proxy", "--upstream", "http://127.0.0.1:"+port, "--rules",
				"rules", "--listen-proxy", "127.0.0.1:0",
				"--client-ip-trusted-proxies", "127.0.0.1/32")
			e := &evasion{t: t, proxy: weir.Addr("proxy")}
			tried, reached, round := 0, 0, 0
			for _, route := range evasionRoutes {
				methods := []string{route.method}
				if route.method == "GET" {
					methods = []string{"GET", "HEAD"}
				}
				through := 0
				for _, method := range methods {
					for _, target := range spellingsOf(route.path, effort.Of(250, 500)) {
						tried++
						client := e.client()
						if !e.reaches(client, method, target, route.name) {
							continue
						}
						through++
						if e.reaches(client, route.method, route.path, route.name) {
							round++
							t.Errorf("%s %s reaches the handler of %s and is not counted", method, target, route.path)
						}
					}
				}
				if through < 20 {
					t.Errorf("%d spellings reach the handler of %s: the test tries nothing", through, route.path)
				}
				reached += through
			}
			t.Logf("%d requests, %d of them reached a handler, %d ways round", tried, reached, round)
		})
	}
}

type evasion struct {
	t       *testing.T
	proxy   string
	clients int
}

// client returns the address of a new client.
func (e *evasion) client() string {
	e.clients++
	return fmt.Sprintf("198.18.%d.%d", e.clients/250, 1+e.clients%250)
}

// reaches sends a request, byte for byte, and reports whether the handler of that name answered it.
func (e *evasion) reaches(client, method, target, name string) bool {
	e.t.Helper()
	conn, err := net.Dial("tcp", e.proxy)
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(patience.End(e.t)); err != nil {
		e.t.Fatal(err)
	}
	head := "%s %s HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: %s\r\nConnection: close\r\n"
	if method == "POST" {
		head += "Content-Length: 0\r\n"
	}
	if _, err := fmt.Fprintf(conn, head+"\r\n", method, target, client); err != nil {
		e.t.Fatal(err)
	}
	a, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		e.t.Fatalf("%s %q: %v", method, target, err)
	}
	_, _ = io.Copy(io.Discard, a.Body)
	a.Body.Close()
	return a.Header.Get("X-Reached") == name
}

// evasionUpstreams are real servers, each with the handlers of evasionRoutes. What starts one skips
// the test where it is not there.
var evasionUpstreams = []struct {
	name  string
	quick bool
	start func(t *testing.T, port string)
	rules string // "" for evasionRules
}{
	{"Go, http.ServeMux", true, startMux, ""},
	{"folding", true, startFolding, ""},
	{"nginx", true, startNginx, ""},
	{"servlets", true, startServlets, ""},
	{"Caddy", false, startCaddyUpstream, ""},
	{"Express 5", false, func(t *testing.T, port string) { startNode(t, "paths", "express5", port) }, ""},
	{"Express 4", false, func(t *testing.T, port string) { startNode(t, "paths", "express4", port) }, ""},
	{"FastAPI", false, func(t *testing.T, port string) { startPython(t, "paths", "fastapi", port) }, ""},
	{"Flask", false, func(t *testing.T, port string) { startPython(t, "paths", "flask", port) }, ""},
	{"Django", false, func(t *testing.T, port string) { startPython(t, "paths", "django", port) }, ""},
	{"Spring", false, func(t *testing.T, port string) { startSpring(t, "Paths", port) }, ""},
	{"Rails", false, func(t *testing.T, port string) { startRails(t, "paths", port) }, withFormats},
}

// serveHere serves a handler of this process.
func serveHere(t *testing.T, port string, h http.Handler) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

func reached(w http.ResponseWriter, name string) {
	w.Header().Set("X-Reached", name)
	_, _ = io.WriteString(w, name)
}

func startMux(t *testing.T, port string) {
	mux := http.NewServeMux()
	for _, route := range evasionRoutes {
		pattern := strings.Replace(route.path, "/7", "/{id}", 1)
		if strings.HasSuffix(pattern, "/") {
			pattern += "{$}" // without what is below
		}
		mux.HandleFunc(route.method+" "+pattern,
			func(w http.ResponseWriter, _ *http.Request) { reached(w, route.name) })
	}
	serveHere(t, port, mux)
}

// startFolding starts a server that takes more for one path than any of the others: it decodes,
// resolves dots, folds the case of ASCII letters, and cuts slashes off the end.
func startFolding(t *testing.T, port string) {
	serveHere(t, port, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.TrimRight(rule.LowerPath(filepath.Clean(r.URL.Path)), "/")
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		for _, route := range evasionRoutes {
			if method == route.method && path == strings.TrimRight(rule.LowerPath(route.path), "/") {
				reached(w, route.name)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
	}))
}

func startNginx(t *testing.T, port string) {
	servertest.Needs(t, "nginx")
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var routes strings.Builder
	for _, route := range evasionRoutes {
		match := "= " + route.path
		if route.name == "pay" {
			match = "^~ /api/pay/"
		}
		fmt.Fprintf(&routes, "location %s { add_header X-Reached %s; return 200 %[2]s; }\n", match, route.name)
	}
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;"
	}
	conf := filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`daemon off; %s pid nginx.pid; error_log stderr; events {}
http { access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
server { listen 127.0.0.1:%s; %s location / { return 404; } } }
`, user, port, &routes)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("nginx", "-p", dir, "-c", conf)
	servertest.Begin(t, cmd).Listens("127.0.0.1:" + port)
}
