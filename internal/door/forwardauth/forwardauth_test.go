package forwardauth

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/httpapi"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

const (
	edgeProxy      = "10.0.0.5:40000"
	nginxPath      = "/api/v1/forward-auth/nginx"
	forwardedPath  = "/api/v1/forward-auth/forwarded"
	forwardedPlain = "/api/v1/forward-auth"
)

var trustEdge = httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}

// said collects what is logged.
type said struct {
	mu    sync.Mutex
	lines []string
}

func (s *said) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

// take returns what was logged since it was last asked.
func (s *said) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.lines
	s.lines = nil
	return lines
}

// seen is what the limiter got.
type seen struct {
	request    weir.Request
	attributes map[string]string
}

// mounted is the HTTP door with forward auth in it.
type mounted struct {
	http.Handler
	forwardAuth *handler
}

// forwardAuthDoor is a door over rules, with a record of its questions to the limiter.
func forwardAuthDoor(t testing.TB, o Options, rules ...string) (h http.Handler, log *said, asked func() []seen) {
	t.Helper()
	store, err := memory.New(memory.Options{Clock: (&doortest.Clock{US: 1_767_225_600_000_000}).Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return forwardAuthOver(t, store, o, rules...)
}

func forwardAuthOver(t testing.TB, store store.Store, o Options, rules ...string) (h http.Handler, log *said,
	asked func() []seen) {
	t.Helper()
	var mu sync.Mutex
	var all []seen
	hooks := weir.Hooks{Decided: func(r *weir.Request, _ *weir.Decision) {
		mu.Lock()
		defer mu.Unlock()
		s := seen{*r, maps.Collect(r.Attributes.All())}
		all = append(all, s)
	}}
	l, err := weir.New(store, weir.WithRules(doortest.Load(t, rules...)), weir.WithHooks(hooks))
	if err != nil {
		t.Fatal(err)
	}
	if o.ClientIP.Trusted == nil {
		o.ClientIP = trustEdge
	}
	log = new(said)
	o.Logger = doortest.LogTo(log.add)
	f := New(l, o)
	h = mounted{httpapi.New(l, httpapi.Options{ForwardAuth: f}), f.(*handler)}
	return h, log, func() []seen {
		mu.Lock()
		defer mu.Unlock()
		out := all
		all = nil
		return out
	}
}

const tenRules = `
domain: shop
limits:
  - {name: ten, when: {path: "/api/**"}, per: [ip], allow: 10/hour, algorithm: sliding_log}
`

// manyRules never refuses.
const manyRules = "domain: shop\nlimits: [{name: all, allow: 1000000000/day}]\n"

// check asks as a proxy does. Headers are name, value pairs; the same name twice makes two lines.
func check(h http.Handler, peer, target string, headers ...string) doortest.Answer {
	return checkBy(h, http.MethodGet, peer, target, headers...)
}

func checkBy(h http.Handler, method, peer, target string, headers ...string) doortest.Answer {
	r := httptest.NewRequest(method, target, http.NoBody)
	r.RemoteAddr = peer
	r.Host = "weir.internal"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return doortest.Answer{Status: w.Code, Header: w.Result().Header, Body: w.Body.String()}
}

// Each family describes the original request by its own headers, whatever the other family's say.
func TestForwardAuthAttributes(t *testing.T) {
	identity, err := httplimit.ParseIdentity(map[string]string{"user": "header:X-User", "name": "basic", "cert": "tls"},
		"")
	if err != nil {
		t.Fatal(err)
	}
	h, log, asked := forwardAuthDoor(t, Options{Identity: identity}, manyRules)
	mixed := []string{
		"X-Forwarded-Method", "PUT", "X-Forwarded-Uri", "/api//f/?who=f&x=1", "X-Forwarded-Host", "f.example.", "X-Forwarded-For", "198.51.100.7, 10.0.0.9",
		"X-Original-Method", "DELETE", "X-Original-URI", "/api/%6e/?who=n", "Host", "n.example:8000", "X-User", "ada", "Authorization", "Basic Ym9iOng=", "Accept", "text/html",
	}
	for path, want := range map[string]map[string]string{
		nginxPath:      {"method": "DELETE", "path": "/api/n/", "host": "n.example:8000", "query.who": "n"},
		forwardedPath:  {"method": "PUT", "path": "/api/f/", "host": "f.example", "query.who": "f", "query.x": "1"},
		forwardedPlain: {"method": "PUT", "path": "/api/f/", "host": "f.example", "query.who": "f", "query.x": "1"},
		// The query of the check itself says nothing: Caddy appends the client's.
		forwardedPath + "?who=caddy&y=1": {"method": "PUT", "path": "/api/f/", "host": "f.example", "query.who": "f", "query.x": "1"},
		nginxPath + "/shop":              {"method": "DELETE", "path": "/api/n/", "host": "n.example:8000", "query.who": "n"},
		forwardedPath + "/shop":          {"method": "PUT", "path": "/api/f/", "host": "f.example", "query.who": "f", "query.x": "1"},
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "BREW"} {
			if a := checkBy(h, method, edgeProxy, path, mixed...); a.Status != 200 || a.Body != "" {
				t.Fatalf("%s %s: %d %s", method, path, a.Status, a.Body)
			}
			got := asked()
			if len(got) != 1 {
				t.Fatal(path, len(got))
			}
			for _, name := range []string{"method", "path", "host", "ip", "query.who", "query.x", "query.y", "user",
				"name", "cert", "header.accept", "header.host"} {
				w := want[name]
				switch name {
				case "ip":
					w = "198.51.100.7"
				case "user":
					w = "ada"
				case "name":
					w = "bob"
				case "header.accept":
					w = "text/html"
				case "header.host":
					w = want["host"]
				}
				if g := got[0].attributes[name]; g != w {
					t.Errorf("%s %s: %s is %q, want %q", method, path, name, g, w)
				}
			}
			if r := got[0].request; r.Domain != "shop" || r.Hits != 1 || r.MaxDelay != 0 || r.Door != "forward-auth" {
				t.Errorf("%s: asked for %+v", path, r)
			}
		}
	}
	if lines := log.take(); len(lines) != 0 {
		t.Errorf("logged %q", lines)
	}
}

func TestForwardAuthPaths(t *testing.T) {
	h, _, asked := forwardAuthDoor(t, Options{}, tenRules, strings.Replace(tenRules, "domain: shop", "domain: a/b", 1))
	uri := []string{"X-Forwarded-Uri", "/x", "X-Original-URI", "/x"}
	for path, want := range map[string]string{ // domain, "404", or "400" for one that names none
		nginxPath + "/shop": "shop", forwardedPath + "/shop": "shop", nginxPath + "/a%2fb": "a/b", nginxPath + "/a/b": "a/b", nginxPath + "/other": "other",
		nginxPath: "400", nginxPath + "/": "400", forwardedPath: "400", forwardedPath + "/": "400", forwardedPlain: "400", forwardedPlain + "/": "400",
		forwardedPlain + "/envoy": "404", forwardedPlain + "/shop": "404", forwardedPlain + "/NGINX/shop": "404", forwardedPlain + "//shop": "404", forwardedPlain + "x": "404",
		forwardedPlain + "x/nginx": "404", forwardedPlain + "/forwardedx": "404",
	} {
		a := check(h, edgeProxy, path, uri...)
		got := fmt.Sprint(a.Status)
		if all := asked(); len(all) == 1 {
			got = all[0].request.Domain
		}
		if got != want || strings.HasPrefix(want, "4") && a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %s %v, want %s", path, got, a, want)
		}
		if want == "400" && !strings.Contains(a.Body, "default_domain") {
			t.Errorf("%s: it does not name the key: %s", path, a.Body)
		}
	}
	h, _, asked = forwardAuthDoor(t, Options{Domain: "edge"}, tenRules,
		strings.Replace(tenRules, "domain: shop", "domain: b", 1))
	check(h, edgeProxy, nginxPath, uri...)
	check(h, edgeProxy, nginxPath+"/b", uri...)
	if all := asked(); len(all) != 2 || all[0].request.Domain != "edge" || all[1].request.Domain != "b" {
		t.Errorf("%+v", all)
	}
	// Without the door there is no such path.
	l, _, _ := doortest.NewLimiter(t, tenRules)
	if a := check(httpapi.New(l, httpapi.Options{}), edgeProxy, nginxPath, uri...); a.Status != 404 {
		t.Error(a)
	}
}

// Who is no trusted proxy is told nothing, whatever it forges, and the log says what to configure.
func TestForwardAuthStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, log, asked := forwardAuthDoor(t, Options{}, tenRules)
		forged := []string{"X-Original-URI", "/api/x", "X-Original-Method", "GET", "X-Forwarded-Uri", "/api/x",
			"X-Forwarded-Method", "GET", "X-Forwarded-For", "10.0.0.1", "X-Real-Ip", "10.0.0.1", "Forwarded", "for=10.0.0.1"}
		for range 3 {
			for _, path := range []string{nginxPath, forwardedPath, forwardedPlain} {
				a := check(h, "192.0.2.9:4711", path, forged...)
				if a.Status != 403 || !strings.Contains(a.Body, "client_ip.trusted_proxies") ||
					a.Header.Get("Cache-Control") != "no-store" {
					t.Errorf("%s: %v", path, a)
				}
			}
		}
		if all := asked(); len(all) != 0 {
			t.Errorf("the limiter was asked %d times", len(all))
		}
		lines := log.take()
		if len(lines) != 1 || !strings.Contains(lines[0], `client_ip: {trusted_proxies: ["192.0.2.9"]}`) {
			t.Errorf("logged %q", lines)
		}
		time.Sleep(remarkEvery)
		check(h, "[2001:db8::1]:4711", nginxPath, forged...)
		check(h, "@", nginxPath, forged...)
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], `["2001:db8::1"]`) {
			t.Errorf("after a while: %q", lines)
		}
		time.Sleep(remarkEvery)
		if a := check(h, "@", nginxPath, forged...); a.Status != 403 {
			t.Errorf("a unix socket: %v", a)
		}
		if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "trusted_proxies: [unix]") {
			t.Errorf("a unix socket: %q", lines)
		}
		h, _, asked = forwardAuthDoor(t,
			Options{ClientIP: httplimit.ClientIP{Trusted: trustEdge.Trusted, TrustUnix: true}}, tenRules)
		if a := check(h, "@", nginxPath, forged...); a.Status != 200 || asked()[0].attributes["ip"] != "10.0.0.1" {
			t.Errorf("a trusted unix socket: %v", a)
		}
	})
}

// What cannot be read is refused, and no limit is met or passed by.
func TestForwardAuthMalformed(t *testing.T) {
	ok := map[string][]string{
		nginxPath:     {"X-Original-Method", "GET", "X-Original-URI", "/api/x", "Host", "shop.example"},
		forwardedPath: {"X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/api/x", "X-Forwarded-Host", "shop.example", "Host", "weir internal"},
	}
	name := func(path, what string) string {
		switch {
		case path == nginxPath && what == "host":
			return "Host"
		case path == nginxPath:
			return map[string]string{"uri": "X-Original-URI", "method": "X-Original-Method"}[what]
		}
		return map[string]string{"uri": "X-Forwarded-Uri", "method": "X-Forwarded-Method",
			"host": "X-Forwarded-Host"}[what]
	}
	for path, headers := range ok {
		synctest.Test(t, func(t *testing.T) {
			h, log, asked := forwardAuthDoor(t, Options{}, tenRules)
			with := func(what, value string) []string {
				out := slices.Clone(headers)
				for i := 0; i < len(out); i += 2 {
					if out[i] == name(path, what) {
						out[i+1] = value
					}
				}
				return out
			}
			without := func(what string) []string {
				i := slices.Index(headers, name(path, what))
				return slices.Delete(slices.Clone(headers), i, i+2)
			}
			cases := map[string][]string{
				"no uri": without("uri"), "an empty uri": with("uri", ""), "two uris": append(slices.Clone(headers), name(path, "uri"), "/free"),
				"the same uri twice": append(slices.Clone(headers), name(path, "uri"), "/api/x"), "a list of uris": with("uri", "/free, /api/x"),
				"no slash": with("uri", "api/x"), "opaque": with("uri", "http:api/x"), "a scheme only": with("uri", "http://"), "a bad escape": with("uri", "/api/%zz"),
				"a cut escape": with("uri", "/api/%4"), "NUL": with("uri", "/api/\x00x"), "a tab": with("uri", "/api/\tx"), "DEL": with("uri", "/api/\x7f"), "a line end": with("uri", "/api/x\r\nX: y"),
				"only a query": with("uri", "?a=b"), "only a fragment": with("uri", "#x"), "an empty host in it": with("uri", "http:///api/x"), "a bad host in it": with("uri", "http://a,b/api/x"),
				"two methods": append(slices.Clone(headers), name(path, "method"), "POST"), "a list of methods": with("method", "GET, POST"), "no method but bytes": with("method", "G\x00T"),
				"two of Authorization": append(slices.Clone(headers), "Authorization", "Basic YTp4", "Authorization", "Basic Yjp4"),
				"a list of hosts":      with("host", "free.example, shop.example"), "a host with a path": with("host", "shop.example/x"), "a bad port": with("host", "shop.example:80x"),
				"two dots": with("host", "shop.example.."), "a dot in front": with("host", ".shop.example"), "two dots in the uri": with("uri", "http://shop.example../api/x"),
				"an encoded slash": with("uri", "/%2Fapi/x"), "a small one": with("uri", "/x%2f..%2fapi/x"), "a backslash": with("uri", `/\api/x`), "an encoded one": with("uri", "/%5capi/x?a=b"),
				"an encoded NUL":  with("uri", "/api/x%00"),
				"a # in the path": with("uri", "/free#/../api/x"), "a # at its end": with("uri", "/api/x#"), "a # in the query": with("uri", "/api/x?a#b"),
				"a # in an absolute uri": with("uri", "http://shop.example/free#/../api/x"), "a # behind its host": with("uri", "http://shop.example#/api/x"),
				"an absolute uri": with("uri", "http://shop.example/%2Fapi/x"),
			}
			if path == forwardedPath {
				cases["two hosts"] = append(slices.Clone(headers), "X-Forwarded-Host", "free.example")
			}
			for what, headers := range cases {
				a := check(h, edgeProxy, path, headers...)
				if a.Status != 400 || !strings.Contains(a.Body, `"field":`) {
					t.Errorf("%s, %s: %d %s", path, what, a.Status, a.Body)
				}
			}
			if all := asked(); len(all) != 0 {
				t.Errorf("%s: the limiter was asked %d times: %v", path, len(all), all[0].attributes)
			}
			if lines := log.take(); len(lines) != 1 || !strings.Contains(lines[0], "malformed") {
				t.Errorf("%s: logged %q", path, lines)
			}
			time.Sleep(remarkEvery)
			check(h, edgeProxy, path, without("uri")...)
			if lines := log.take(); len(lines) != 1 ||
				!strings.Contains(strings.ToLower(lines[0]), strings.ToLower(name(path, "uri")+": is missing")) {
				t.Errorf("%s: logged %q", path, lines)
			}
		})
	}
}

// Encoded slashes pass where the operator says that they are data; the answer of the others names
// the setting.
func TestForwardAuthEncodedSlash(t *testing.T) {
	h, _, _ := forwardAuthDoor(t, Options{}, tenRules)
	if a := check(h, edgeProxy, nginxPath, "X-Original-URI", "/objects/a%2Fb", "Host", "shop.example"); a.Status != 400 || !strings.Contains(a.Body, "fields.encoded_slash: keep") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	h, _, asked := forwardAuthDoor(t, Options{EncodedSlash: httplimit.KeepEncodedSlash}, tenRules)
	for uri, want := range map[string]string{"/objects/a%2fb": "/objects/a%2Fb", `/a\b`: "/a%5Cb", "/a%5Cb": "/a%5Cb"} {
		a := check(h, edgeProxy, nginxPath, "X-Original-URI", uri, "Host", "shop.example")
		if all := asked(); a.Status != 200 || len(all) != 1 || all[0].attributes["path"] != want {
			t.Errorf("%s: %d %s", uri, a.Status, a.Body)
		}
	}
	for uri, what := range map[string]string{"/a%00": "holds %00", "/free#/../a": "holds #", "/a?b#c": "holds #"} {
		a := check(h, edgeProxy, nginxPath, "X-Original-URI", uri, "Host", "shop.example")
		if a.Status != 400 || strings.Contains(a.Body, "encoded_slash") || !strings.Contains(a.Body, what) {
			t.Errorf("%s: %d %s", uri, a.Status, a.Body)
		}
	}
}

// What is odd but has one meaning is read as net/http reads it.
func TestForwardAuthOddTargets(t *testing.T) {
	h, _, asked := forwardAuthDoor(t, Options{}, manyRules)
	for uri, want := range map[string][3]string{ // path, host, query.a
		"*": {"*", "shop.example", ""}, "/": {"/", "shop.example", ""}, "//evil.example/x": {"/evil.example/x", "shop.example", ""},
		"/a/../api/./x": {"/api/x", "shop.example", ""}, "/%61pi/x?a=1&a=2": {"/api/x", "shop.example", "1"}, "/api/x?a=%zz": {"/api/x", "shop.example", "%zz"},
		"/api/x%23?a=1": {"/api/x%23", "shop.example", "1"}, "/api/x?a=1%232": {"/api/x", "shop.example", "1#2"}, "/api/x?a=1?b": {"/api/x", "shop.example", "1?b"},
		"/api/%2e%2e/x": {"/x", "shop.example", ""}, "/api/x?a=%2F%5C%00": {"/api/x", "shop.example", "/\\\x00"}, "/api/é": {"/api/%C3%A9", "shop.example", ""},
		"http://other.example:81/api/x?a=3": {"/api/x", "other.example:81", "3"}, "HTTPS://other.example": {"/", "other.example", ""}, "http://other.example?a=4": {"/", "other.example", "4"},
		"http://ada:secret@other.example/api":      {"/api", "other.example", ""},
		"/" + strings.Repeat("a", 64<<10) + "?a=5": {"/" + strings.Repeat("a", 64<<10), "shop.example", "5"},
	} {
		for path, headers := range map[string][]string{
			nginxPath:     {"X-Original-URI", uri, "Host", "shop.example"},
			forwardedPath: {"X-Forwarded-Uri", uri, "X-Forwarded-Host", "shop.example"},
		} {
			a := check(h, edgeProxy, path, headers...)
			all := asked()
			if len(all) != 1 {
				t.Errorf("%.40s: %d %s", uri, a.Status, a.Body)
				continue
			}
			at := all[0].attributes
			if got := [3]string{at["path"], at["host"], at["query.a"]}; got != want || a.Status != 200 {
				t.Errorf("%.40s: %d %.200q, want %.200q", uri, a.Status, got, want)
			}
		}
	}
}

// A request whose proxy sends too little is decided by the headers there are, and the log names the
// missing ones.
func TestForwardAuthTellsWhatIsMissing(t *testing.T) {
	h, log, asked := forwardAuthDoor(t, Options{}, tenRules)
	for range 2 {
		check(h, edgeProxy, nginxPath, "X-Original-URI", "/api/x")
	}
	if at := asked()[0].attributes; at["method"] != "GET" || at["ip"] != "10.0.0.5" || at["host"] != "weir.internal" {
		t.Errorf("%v", at)
	}
	if lines := log.take(); len(lines) != 2 ||
		!strings.Contains(lines[0], "X-Original-Uri") && !strings.Contains(lines[0], "X-Original-Method") ||
		!strings.Contains(lines[1], "X-Forwarded-For") {
		t.Errorf("logged %q", lines)
	}
	// A request of HTTP/1.0 without a host has none: the check's host is this server's own.
	check(h, edgeProxy, forwardedPath, "X-Forwarded-Uri", "/api/x", "X-Forwarded-Host", "")
	if host, ok := asked()[0].attributes["host"]; ok {
		t.Errorf("the host is %q", host)
	}
}

// The chain of X-Forwarded-For is read from the right, past trusted proxies only.
func TestForwardAuthClients(t *testing.T) {
	h, _, asked := forwardAuthDoor(t, Options{}, manyRules)
	for chain, want := range map[string]string{
		"198.51.100.7": "198.51.100.7", "1.2.3.4, 198.51.100.7": "198.51.100.7", "198.51.100.7, 10.1.2.3": "198.51.100.7", "1.2.3.4|198.51.100.7": "198.51.100.7",
		"198.51.100.7, nonsense": "10.0.0.5", "::ffff:198.51.100.7": "198.51.100.7", "10.9.9.9": "10.9.9.9", "[2001:db8::1]:99": "2001:db8::1", "": "10.0.0.5",
	} {
		headers := []string{"X-Original-URI", "/api/x", "X-Forwarded-Uri", "/api/x"}
		for line := range strings.SplitSeq(chain, "|") {
			headers = append(headers, "X-Forwarded-For", line)
		}
		for _, path := range []string{nginxPath, forwardedPath} {
			check(h, edgeProxy, path, headers...)
			if all := asked(); len(all) != 1 || all[0].attributes["ip"] != want {
				t.Errorf("%s: %v, want %s", chain, all, want)
			}
		}
	}
}

// Ten pass and the eleventh is refused, as each family understands it, and the header of each pass
// has the same fields.
func TestForwardAuthAnswers(t *testing.T) {
	const rules = `
domain: shop
limits:
  - {name: ten, when: {path: /ten}, per: [ip], allow: 10/hour, algorithm: sliding_log}
  - {name: own, when: {path: /own}, allow: 0/hour, response: {status: 503, headers: {X-Reason: later}, body: "come back"}}
  - {name: slots, when: {path: /slots}, allow: 1 concurrent}
  - {name: turns, when: {path: /turns}, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 5}, on_limit: {wait: 30s}}
  - {name: line, when: {path: /line}, allow: 1/hour, algorithm: sliding_log, on_limit: {wait: 30m}}
  - {name: put-off, when: {path: /defer}, allow: 1/hour, algorithm: sliding_log, on_limit: {defer: later}}
  - {name: ban, when: {path: /ban}, per: [ip], allow: 1/hour, algorithm: sliding_log, ban: {after: 2, within: 1h, for: 2h}}
  - {name: soft, when: {path: /soft}, allow: 1/hour, algorithm: sliding_log, throttle: {soft: 100%}}
  - {name: seen, when: {path: /shadow}, allow: 1/hour, algorithm: sliding_log, on_limit: shadow}
`
	for _, path := range []string{nginxPath, forwardedPath} {
		h, _, _ := forwardAuthDoor(t, Options{}, rules)
		get := func(uri string, more ...string) doortest.Answer {
			return check(h, edgeProxy, path,
				append([]string{"X-Original-URI", uri, "X-Forwarded-Uri", uri, "X-Forwarded-For", "198.51.100.7"},
					more...)...)
		}
		var fields []string
		passes := func(uri string) {
			t.Helper()
			a := get(uri)
			if a.Status != 200 || a.Body != "" || a.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s %s: %v", path, uri, a)
			}
			got := slices.Sorted(maps.Keys(a.Header))
			if fields == nil {
				fields = got
			}
			if !slices.Equal(got, fields) {
				t.Errorf("%s %s: the fields are %q, and were %q", path, uri, got, fields)
			}
		}
		refusesWith := func(a doortest.Answer) {
			t.Helper()
			want := 429
			if path == nginxPath {
				want = 403
			}
			if a.Status != want || a.Header.Get("Retry-After") == "" || a.Header.Get("X-RateLimit-Retry-After") == "" ||
				a.Header.Get("Cache-Control") != "no-store" ||
				!strings.Contains(a.Header.Get("RateLimit"), "r=") || (a.Body == "") != (path == nginxPath) ||
				(a.Header.Get("Content-Type") == "") != (path == nginxPath) {
				t.Errorf("%s: %v", path, a)
			}
		}
		passes("/free")
		for range 10 {
			passes("/ten")
		}
		a := get("/ten")
		refusesWith(a)
		if a.Header.Get("Retry-After") != "3600" || a.Header.Get("X-RateLimit-Limit") != "10" ||
			a.Header.Get("X-RateLimit-Remaining") != "0" ||
			a.Header.Get("RateLimit") != `"ten";r=0;t=3600` || a.Header.Get("RateLimit-Policy") != `"ten";q=10;w=3600` {
			t.Errorf("%s: %v", path, a.Header)
		}
		refusesWith(get("/ten", "Accept", "text/html"))
		for _, uri := range []string{"/slots", "/turns", "/line", "/defer", "/ban"} {
			passes(uri)
			refusesWith(get(uri))
		}
		refusesWith(get("/ban")) // the second denial sets the ban
		a = get("/ban")
		refusesWith(a)
		if path == forwardedPath && !strings.Contains(a.Body, "too often") {
			t.Errorf("no ban: %s", a.Body)
		}
		passes("/soft")
		passes("/soft")
		passes("/shadow")
		passes("/shadow")
		a = get("/own")
		switch path {
		case nginxPath:
			if a.Status != 403 || a.Body != "" {
				t.Errorf("%v", a)
			}
		default:
			if a.Status != 503 || a.Body != "come back" || a.Header.Get("X-Reason") != "later" {
				t.Errorf("%v", a)
			}
		}
	}
	// The body of a refusal is for the client, whose Accept the check repeats.
	h, _, _ := forwardAuthDoor(t, Options{CORS: httplimit.CORS{Origins: []string{"https://page.example"}}}, rules)
	for accept, want := range map[string]string{"": "application/problem+json",
		"application/json": "application/problem+json", "text/html,*/*;q=0.8": "text/html; charset=utf-8", "text/plain": "text/plain; charset=utf-8"} {
		for range 2 {
			a := check(h, edgeProxy, forwardedPath, "X-Forwarded-Uri", "/line", "X-Forwarded-For", "198.51.100.7",
				"Accept", accept, "Origin", "https://page.example")
			if a.Status == 429 && (a.Header.Get("Content-Type") != want ||
				a.Header.Get("Access-Control-Allow-Origin") != "https://page.example") {
				t.Errorf("%s: %v", accept, a.Header)
			}
		}
	}
	if a := checkBy(h, "HEAD", edgeProxy, forwardedPath, "X-Forwarded-Uri", "/line", "X-Forwarded-For", "198.51.100.7"); a.Status != 429 || a.Body != "" {
		t.Errorf("HEAD: %v", a)
	}
}

// Without a store the rules say what happens; nothing of the store is told.
func TestForwardAuthWithoutStore(t *testing.T) {
	const rules = `
domain: shop
limits:
  - {name: strict, when: {path: /strict}, allow: 1/hour, on_store_error: deny}
  - {name: open, when: {path: /open}, allow: 1/hour, on_store_error: allow}
`
	h, _, _ := forwardAuthOver(t, doortest.FailingStore{Err: doortest.ErrStore}, Options{Dedupe: true}, rules)
	for _, path := range []string{nginxPath, forwardedPath} {
		for range 2 {
			headers := []string{"X-Request-Id", "7", "X-Original-URI", "/open", "X-Forwarded-Uri", "/open"}
			if a := check(h, edgeProxy, path, headers...); a.Status != 200 || a.Body != "" ||
				a.Header["Ratelimit"] == nil {
				t.Errorf("%s: %v", path, a)
			}
			headers[3], headers[5] = "/strict", "/strict"
			a := check(h, edgeProxy, path, headers...)
			if a.Status != 503 || a.Header.Get("Retry-After") != "1" || a.Header.Get("Cache-Control") != "no-store" ||
				(a.Body == "") != (path == nginxPath) || strings.Contains(a.Body, doortest.ErrStore.Error()) {
				t.Errorf("%s: %v", path, a)
			}
		}
	}
}

// Checks by nginx keep their connection, those that are refused too.
func TestForwardAuthKeepAlive(t *testing.T) {
	h, _, _ := forwardAuthDoor(t, Options{ClientIP: httplimit.ClientIP{Trusted: doortest.Loopback}}, tenRules)
	s := httptest.NewUnstartedServer(h)
	var opened atomic.Int64
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	statuses := map[int]int{}
	for range 50 {
		// As nginx sends it: the answer's body is not read.
		fmt.Fprintf(conn,
			"GET %s HTTP/1.1\r\nHost: shop.example\r\nX-Original-URI: /api/x\r\nX-Original-Method: GET\r\nX-Forwarded-For: 198.51.100.7\r\nUser-Agent: a\r\n\r\n", nginxPath)
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		statuses[r.StatusCode]++
		if r.ContentLength != 0 || r.Close || len(r.TransferEncoding) != 0 {
			t.Fatalf("%d: length %d, %v", r.StatusCode, r.ContentLength, r.Header)
		}
	}
	if statuses[200] != 10 || statuses[403] != 40 || opened.Load() != 1 {
		t.Errorf("%v over %d connections", statuses, opened.Load())
	}
}

// The door reads a request as the proxy of this program does: net/http, then httplimit.Attributes.
func FuzzForwardAuth(f *testing.F) {
	for _, s := range [][4]string{
		{"GET", "/api/x?a=1", "shop.example", "198.51.100.7"}, {"POST", "//a/../b/%7e%2f?x=%zz&y", "Shop.example.:80", "1.2.3.4, 10.0.0.1"}, {"GET", "http://h/a?b", "x", ""},
		{"OPTIONS", "*", "a", "::1"}, {"GET", "/a#b", "a", "x"}, {"G,T", "a b", "a,b", ","}, {"GET", "/%", "[::1]:80", "[::1]:80"}, {"get", "/\x00", "\xff", "\x00"}, {"GET", "http://u:p@h:1?q#f", "h", "h"},
		{"GET", "/é?é=é", "é", "é"}, {"PRI", "http:opaque", "", ""}, {"GET", "http://[::1%25en0]/", "", ""}, {"GET", "x://%41/", "", ""},
	} {
		f.Add(s[0], s[1], s[2], s[3])
	}
	h, _, asked := forwardAuthDoor(f, Options{}, manyRules)
	f.Fuzz(func(t *testing.T, method, uri, host, client string) {
		a := check(h, edgeProxy, forwardedPath, "X-Forwarded-Method", method, "X-Forwarded-Uri", uri,
			"X-Forwarded-Host", host, "X-Forwarded-For", client)
		b := check(h, edgeProxy, nginxPath, "X-Original-Method", method, "X-Original-URI", uri, "X-Forwarded-For",
			client, "Host", host)
		if a.Status != b.Status || a.Status != 200 && a.Status != 400 {
			t.Fatalf("%d and %d", a.Status, b.Status)
		}
		all := asked()
		if a.Status == 400 {
			if len(all) != 0 {
				t.Fatal("a malformed check was decided")
			}
			return
		}
		if len(all) != 2 {
			t.Fatal(len(all))
		}
		if method == "" {
			method = "GET"
		}
		r, err := http.ReadRequest(bufio.NewReader(
			strings.NewReader(method + " " + uri + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")))
		if err != nil {
			t.Fatalf("net/http takes no such request: %v", err)
		}
		r.RemoteAddr = edgeProxy
		r.Header.Set("X-Forwarded-For", client)
		var attributes httplimit.Attributes
		attributes.Reset(r, trustEdge, nil)
		want := maps.Collect(attributes.All())
		for _, got := range all {
			for name, value := range got.attributes {
				if strings.HasPrefix(name, "header.") {
					continue
				}
				if want[name] != value {
					t.Errorf("%s is %q, and to the proxy %q", name, value, want[name])
				}
				delete(want, name)
			}
			for name, value := range want {
				if !strings.HasPrefix(name, "header.") {
					t.Errorf("%s is missing; to the proxy it is %q", name, value)
				}
			}
			want = maps.Collect(attributes.All())
		}
	})
}

// A check that passes allocates little.
func TestForwardAuthAllocations(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, tenRules)
	f := New(l, Options{ClientIP: trustEdge})
	r := httptest.NewRequest("GET", nginxPath, http.NoBody)
	r.RemoteAddr = edgeProxy
	for name, value := range map[string]string{"X-Original-Uri": "/other?a=1", "X-Original-Method": "POST",
		"X-Forwarded-For": "198.51.100.7"} {
		r.Header.Set(name, value)
	}
	w := &blindWriter{header: http.Header{}}
	if n := testing.AllocsPerRun(200, func() {
		clear(w.header)
		f.ServeHTTP(w, r)
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
	if w.status != 200 {
		t.Error(w.status)
	}
}

// blindWriter is a ResponseWriter that keeps the status.
type blindWriter struct {
	header http.Header
	status int
}

func (w *blindWriter) Header() http.Header         { return w.header }
func (w *blindWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *blindWriter) WriteHeader(status int)      { w.status = status }

func BenchmarkForwardAuth(b *testing.B) {
	for _, dedupe := range []bool{false, true} {
		b.Run(fmt.Sprintf("dedupe=%v", dedupe), func(b *testing.B) {
			l, _, _ := doortest.NewLimiter(b, manyRules)
			f := New(l, Options{ClientIP: trustEdge, Dedupe: dedupe})
			r := httptest.NewRequest("GET", nginxPath, http.NoBody)
			r.RemoteAddr = edgeProxy
			for name, value := range map[string]string{"X-Original-Uri": "/api/other?a=1", "X-Original-Method": "POST",
				"X-Forwarded-For": "198.51.100.7", "X-Request-Id": "",
				"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Accept": "text/html,application/xhtml+xml", "Accept-Language": "en", "Cookie": strings.Repeat("c", 200)} {
				r.Header.Set(name, value)
			}
			w := &blindWriter{header: http.Header{}}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				clear(w.header)
				r.Header["X-Request-Id"][0] = fmt.Sprintf("%032x", i)
				f.ServeHTTP(w, r)
			}
		})
	}
}
