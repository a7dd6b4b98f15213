package spoe

import (
	"context"
	"maps"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/store"
)

var client = netip.MustParseAddr("192.0.2.7")

func TestHello(t *testing.T) {
	addr := serve(t, New(newLimiter(t, apiRules), Options{}))
	base := []any{"supported-versions", "2.0", "max-frame-size", uint32(16380), "capabilities", "pipelining,async"}
	for name, c := range map[string]struct {
		items        []any
		size         int64
		capabilities string
		bad          status // if there is one, what it is
		closes       bool
	}{
		"2.6":                     {append(slices.Clone(base), "engine-id", "x"), 16380, "pipelining", 0, false},
		"3.x":                     {[]any{"supported-versions", "2.0", "max-frame-size", uint32(16380), "capabilities", "pipelining", "engine-id", "x"}, 16380, "pipelining", 0, false},
		"without pipelining":      {[]any{"supported-versions", "2.0", "max-frame-size", uint32(16380), "capabilities", ""}, 16380, "", 0, false},
		"health check of 2.6":     {[]any{"supported-versions", "2.0", "max-frame-size", uint32(16380), "capabilities", "", "healthcheck", true}, 16380, "", 0, true},
		"no health check":         {append(slices.Clone(base), "healthcheck", false), 16380, "pipelining", 0, false},
		"larger frames":           {[]any{"supported-versions", "2.0", "max-frame-size", uint32(1 << 30), "capabilities", "pipelining"}, 65536, "pipelining", 0, false},
		"the smallest frames":     {[]any{"supported-versions", "2.0", "max-frame-size", 256, "capabilities", " async , pipelining "}, 256, "pipelining", 0, false},
		"several versions":        {[]any{"supported-versions", "3.1, 2.4 ,1.5", "max-frame-size", uint64(300), "capabilities", "pipelining"}, 300, "pipelining", 0, false},
		"items nobody knows":      {append([]any{"later", []byte{1, 2}, "more", nil, "and", netip.MustParseAddr("::1")}, base...), 16380, "pipelining", 0, false},
		"no version":              {base[2:], 0, "", statusNoVersion, true},
		"no frame size":           {slices.Concat(base[:2], base[4:]), 0, "", statusNoFrameSize, true},
		"no capabilities":         {base[:4], 0, "", statusNoCapability, true},
		"an old version":          {slices.Concat([]any{"supported-versions", "1.0"}, base[2:]), 0, "", statusBadVersion, true},
		"a version of words":      {slices.Concat([]any{"supported-versions", "2.x"}, base[2:]), 0, "", statusBadVersion, true},
		"too small frames":        {slices.Concat(base[:2], []any{"max-frame-size", uint32(255)}, base[4:]), 0, "", statusBadFrameSize, true},
		"a negative frame size":   {slices.Concat(base[:2], []any{"max-frame-size", int32(-1)}, base[4:]), 0, "", statusBadFrameSize, true},
		"a version, not text":     {slices.Concat([]any{"supported-versions", 2}, base[2:]), 0, "", statusInvalid, true},
		"a frame size of text":    {slices.Concat(base[:2], []any{"max-frame-size", "16380"}, base[4:]), 0, "", statusInvalid, true},
		"capabilities, not text":  {slices.Concat(base[:4], []any{"capabilities", true}), 0, "", statusInvalid, true},
		"a health check of words": {append(slices.Clone(base), "healthcheck", "yes"), 0, "", statusInvalid, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := dial(t, addr)
			p.send(rawFrame(1, 1, 0, 0, pairs(c.items...)))
			if c.bad != 0 {
				p.ends(c.bad)
				return
			}
			r := p.next()
			want := map[string]any{"version": "2.0", "max-frame-size": c.size, "capabilities": c.capabilities}
			if got := r.keys(); r.kind != 101 || r.stream != 0 || r.id != 0 || !maps.Equal(got, want) {
				t.Fatalf("frame %d: %v, want %v", r.kind, got, want)
			}
			if c.closes {
				p.gone()
				return
			}
			if v := p.ask("ip", client, "path", "/other"); v["deny"] != false {
				t.Errorf("%v", v)
			}
		})
	}
}

// Hosts and paths that servers read in different ways are refused, as at the other doors.
func TestTargets(t *testing.T) {
	const rules = `limits: [{name: login, when: {host: shop.example, path: /login}, allow: 0/min}]`
	addr := serve(t, New(newLimiter(t, rules), Options{}))
	p := dial(t, addr)
	p.greet()
	for _, c := range []struct {
		host, path string
		status     any // nil for one that passes
	}{
		{"shop.example", "/login", int64(429)}, {"SHOP.example.:80", "//login", int64(429)}, {"shop.example:", "/x/../login", int64(429)},
		{"shop.example:0", "/login?a=%2F", int64(429)}, {"shop.example", "/login%23", nil}, {"other.example", "/login", nil}, {"shop.example", "/a;b", nil},
		{"shop.example..", "/login", int64(400)}, {"shop.example:http", "/login", int64(400)}, {".shop.example", "/login", int64(400)}, {"a@shop.example", "/login", int64(400)},
		{"b\u00fccher.example", "/", int64(400)}, {"[fe80::1%eth0]", "/", int64(400)}, {"shop%2Eexample", "/login", int64(400)},
		{"shop.example", "/%2Flogin", int64(400)}, {"shop.example", "/x%2f..%2flogin", int64(400)}, {"shop.example", `/\login`, int64(400)}, {"shop.example", "/login%00", int64(400)},
		{"shop.example", "/x#/../login", int64(400)}, {"shop.example", "/login#", int64(400)}, {"shop.example", "/login?a#b", int64(400)},
	} {
		v := p.ask("host", c.host, "path", c.path)
		if v["status"] != c.status || v["deny"] != (c.status != nil) ||
			(c.status == int64(400)) != (v["error"] != nil) {
			t.Errorf("%s %s: %v", c.host, c.path, v)
		}
	}
	if v := p.ask("host", "shop.example", "path", "/a%2Fb"); !strings.Contains(v["error"].(string),
		"fields.encoded_slash: keep") || !strings.Contains(v["body"].(string), "fields.encoded_slash: keep") {
		t.Errorf("%v", v)
	}
	p = dial(t, serve(t, New(newLimiter(t, rules), Options{EncodedSlash: httplimit.KeepEncodedSlash})))
	p.greet()
	for _, items := range [][]any{{"path", "/x#/../login"}, {"path", "/", "query", "a=1#&b"},
		{"path", "/#", "query", "a"}} {
		v := p.ask(items...)
		if told, _ := v["error"].(string); v["status"] != int64(400) || !strings.Contains(told, "holds #") {
			t.Errorf("%v: %v", items, v)
		}
	}
	if v := p.ask("host", "shop.example", "path", "/a%2Fb"); v["deny"] != false {
		t.Errorf("kept: %v", v)
	}
}

// TestLargeRequests: a request may be as large as those from a HAProxy with a tune.bufsize of 64
// KiB, and a HAProxy that sends larger ones is logged.
func TestLargeRequests(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		var log logged
		o.Logger = log.logger()
		addr := serve(t, New(limiterFor(t, o, apiRules), o))
		for i, size := range []uint32{65532, 131068, 131068} {
			p := dial(t, addr)
			p.send(rawFrame(1, 1, 0, 0, pairs("supported-versions", "2.0", "max-frame-size", size, "capabilities",
				"pipelining")))
			if r := p.next(); r.kind != 101 {
				t.Fatalf("frame %d", r.kind)
			}
			if v := p.ask("ip", client, "path", "/api/x", "query", strings.Repeat("a", 65400)); v["remaining"] != int64(
				2-i) {
				t.Errorf("%v", v)
			}
			if n, want := strings.Count(log.text(), "tune.bufsize"), min(i, 1); n != want {
				t.Errorf("%d: %d warnings, want %d: %s", size, n, want, log.text())
			}
		}
	})
}

// TestVariables: the fourth request is refused, and the variables say what the headers of other
// doors say.
func TestVariables(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		l := limiterFor(t, o, apiRules)
		p := dial(t, serve(t, New(l, o))).greet()
		ask := func() map[string]any {
			v := p.ask("ip", client, "method", "GET", "path", "/api/x", "host", "shop.example", "key", nil)
			if len(v) != len(Variables) {
				t.Fatalf("%d variables, want all %d, set or unset: %v", len(v), len(Variables), v)
			}
			return v
		}
		for i := range 3 {
			v := ask()
			if v["deny"] != false || v["status"] != nil || v["limit"] != int64(3) || v["remaining"] != int64(2-i) ||
				v["reset"] == nil || v["retry_after"] != nil || v["body"] != nil {
				t.Fatalf("%d: %v", i, v)
			}
			if v["ratelimit_policy"] != `"per-address";q=3;w=3600` ||
				!strings.HasPrefix(v["ratelimit"].(string), `"per-address";r=`) {
				t.Fatalf("%d: %v", i, v)
			}
		}
		v := ask()
		if v["deny"] != true || v["status"] != int64(429) || v["remaining"] != int64(0) ||
			v["limited_by"] != "per-address" || v["error"] != nil || v["soft"] != false {
			t.Fatalf("%v", v)
		}
		if retry, _ := v["retry_after"].(int64); retry < 3500 || retry > 3600 || v["reset"] != v["retry_after"] {
			t.Errorf("retry_after %v, reset %v", v["retry_after"], v["reset"])
		}
		if id, _ := v["decision"].(string); id == "" || v["content_type"] != "application/problem+json" ||
			!strings.Contains(v["body"].(string), `"violated-policies":["per-address"]`) {
			t.Errorf("%v", v)
		}
		// What nothing limits passes without numbers.
		v = p.ask("ip", client, "path", "/free")
		for name, value := range v {
			if want := name == "deny" || name == "soft"; (value != nil) != want {
				t.Errorf("%s is %v", name, value)
			}
		}
	})
}

// TestSameAsHeaders: the variables hold, to the letter, what httplimit writes and refuses with for
// the same decisions.
func TestSameAsHeaders(t *testing.T) {
	const rules = `
limits:
  - {name: quick, per: [key], allow: 5/min, algorithm: token_bucket, warn: 50%, throttle: {soft: 20%}}
  - {name: slow, per: [key], allow: {rate: 7/hour, burst: 7}, algorithm: leaky_bucket, response: {status: 503, headers: {Retry-After: "77"}, content_type: text/html, body: "<p>{{.Limit}}</p>"}}
  - {name: shadow, per: [key], allow: 1/day, algorithm: sliding_log, on_limit: shadow}
`
	p := dial(t, serve(t, New(newLimiter(t, rules), Options{}))).greet()
	reference := newLimiter(t, rules)
	statuses := map[any]int{}
	for i := range 12 {
		v := p.ask("key", "ada", "header.Accept", "text/plain")
		d, err := reference.Allow(t.Context(), weir.Request{Attributes: weir.Map{"key": "ada"}, MaxDelay: 0})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		if d.Allowed {
			httplimit.Headers(0).Write(w.Header(), d)
		} else {
			httplimit.Headers(0).Refuse(w, httptest.NewRequest("GET", "/", nil), d)
		}
		statuses[v["status"]]++
		text := func(name string) string {
			switch x := v[name].(type) {
			case int64:
				return strconv.FormatInt(x, 10)
			case string:
				return x
			}
			return ""
		}
		for name, header := range map[string]string{
			"limit": "X-RateLimit-Limit", "remaining": "X-RateLimit-Remaining", "ratelimit_policy": "RateLimit-Policy", "warning": "X-RateLimit-Warning",
		} {
			if got, want := text(name), w.Header().Get(header); got != want {
				t.Errorf("%d: %s is %q, %s is %q", i, name, got, header, want)
			}
		}
		if got, want := v["soft"], w.Header().Get("X-RateLimit-Soft") != ""; got != want {
			t.Errorf("%d: soft is %v, want %v", i, got, want)
		}
		if got := v["deny"]; got != !d.Allowed {
			t.Fatalf("%d: deny is %v", i, got)
		}
		if !d.Allowed {
			if text("status") != strconv.Itoa(w.Code) ||
				(text("retry_after") == "") != (w.Header().Get("Retry-After") == "") {
				t.Errorf("%d: %v, want %d %v", i, v, w.Code, w.Header())
			}
			if near := d.Nearest().Window.Name; v["limited_by"] != strings.Join(d.LimitedBy(nil), ",") ||
				near == "slow" && (text("retry_after") != "77" || v["body"] != "<p>slow</p>" ||
					v["content_type"] != "text/html") {
				t.Errorf("%d: %v", i, v)
			}
		}
	}
	if len(statuses) < 2 {
		t.Errorf("the rules should pass some and refuse some: %v", statuses)
	}
}

// TestAttributes: what HAProxy sends meets rules as it does at the HTTP doors.
func TestAttributes(t *testing.T) {
	for name, c := range map[string]struct {
		when, per string // without when, per is an expression
		items     []any
		met       bool
	}{
		"path":                    {"path: /api/*", "path", []any{"path", "/api/x"}, true},
		"path in normal form":     {"path: /api/x", "path", []any{"path", "//api/y/../%78?page=2"}, true},
		"path with a query":       {"path: /api/x", "path", []any{"path", "/api/x?y"}, true},
		"path of http://host":     {"path: /", "path", []any{"path", nil}, true},
		"path of http://host, 2":  {"path: /**", "path", []any{"path", ""}, true},
		"no path is told":         {"path: /**", "path", []any{"host", "shop.example"}, false},
		"method":                  {"method: GET", "method", []any{"method", "get"}, true},
		"host":                    {"host: shop.example", "host", []any{"host", "SHOP.example.:8443"}, true},
		"header.host":             {"header.host: shop.example", "host", []any{"host", "shop.example."}, true},
		"IPv4":                    {"ip: 192.0.2.0/24", "ip", []any{"ip", client}, true},
		"IPv4 in IPv6":            {"ip: 192.0.2.0/24", "ip", []any{"ip", netip.MustParseAddr("::ffff:192.0.2.7")}, true},
		"IPv6":                    {"ip: 2001:db8::/32", "ip", []any{"ip", netip.MustParseAddr("2001:db8::1")}, true},
		"IP as text":              {"ip: 192.0.2.0/24", "ip", []any{"ip", "192.0.2.7"}, true},
		"another IP":              {"ip: 192.0.2.0/24", "ip", []any{"ip", netip.MustParseAddr("198.51.100.1")}, false},
		"header by dots":          {"header.x-plan: gold", "header.x-plan", []any{"header.x-plan", "gold"}, true},
		"header, written in caps": {"header.x-plan: gold", "header.x-plan", []any{"header.X-Plan", "gold"}, true},
		"query":                   {"query.page: '2 3'", "query.page", []any{"query", "a=1&page=2+3"}, true},
		"query by name":           {"query.page: '2'", "query.page", []any{"query.page", "2", "query", "page=9"}, true},
		"no query":                {"query.page: '2'", "query.page", []any{"query", "a=1"}, false},
		"bool":                    {"tls: 'true'", "tls", []any{"tls", true}, true},
		"not so":                  {"tls: 'false'", "tls", []any{"tls", false}, true},
		"int64":                   {"port: '-5'", "port", []any{"port", -5}, true},
		"int32":                   {"port: '-6'", "port", []any{"port", int32(-6)}, true},
		"uint32":                  {"port: '4294967295'", "port", []any{"port", uint32(1<<32 - 1)}, true},
		"uint64":                  {"port: '18446744073709551615'", "port", []any{"port", uint64(1<<64 - 1)}, true},
		"binary":                  {"user: ada", "user", []any{"user", []byte("ada")}, true},
		"NULL":                    {"user: '*'", "user", []any{"user", nil}, false},
		"empty":                   {"user: '*'", "user", []any{"user", ""}, false},
		"the first that is there": {"user: ada", "user", []any{"user", nil, "user", "", "user", "ada", "user", "eve"}, true},
		"without a name":          {"user: ada", "user", []any{"", "eve", "user", "ada"}, true},
		"all of them":             {"", `query == {"a": "b", "c": "d"} && header == {"x-y": "1", "host": "h"} && attr.size() == 6`, []any{"user", "u", "query", "a=b&c=d&a=e", "header.X-Y", 1, "header.x-y", 2, "host", "h"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			rules := "limits: [{name: met, when: {" + c.when + "}, per: [" + c.per +
				"], allow: 1/day, algorithm: sliding_log}]"
			if c.when == "" {
				rules = "limits: [{name: met, per: [user], allow: 1/day, algorithm: sliding_log, if: '" + c.per + "'}]"
			}
			o := Options{Fields: &httplimit.FieldGuard{Repeated: httplimit.KeepRepeatedFields}}
			p := dial(t, serve(t, New(newLimiter(t, rules), o))).greet()
			first, second := p.ask(c.items...), p.ask(c.items...)
			if first["deny"] != false || second["deny"] != c.met {
				t.Errorf("met: %v, want %v (%v)", second["deny"], c.met, second)
			}
		})
	}
}

// TestMessages: the messages of one NOTIFY are one request.
func TestMessages(t *testing.T) {
	p := dial(t, serve(t, New(newLimiter(t, apiRules), Options{}))).greet()
	for i := range 4 {
		p.send(notify(0, uint64(i), message("a", "ip", client), message("b"),
			message("c", "path", "/api/x", "ip", netip.MustParseAddr("192.0.2.9"))))
		r := p.next()
		if v := r.vars(t); r.stream != 0 || r.id != uint64(i) || v["deny"] != (i == 3) {
			t.Fatalf("%d: stream %d, id %d: %v", i, r.stream, r.id, v)
		}
	}
	p.send(notify(1<<40, 1<<63))
	if r := p.next(); r.stream != 1<<40 || r.id != 1<<63 || len(r.payload) != 0 {
		t.Errorf("without a message: %+v", r)
	}
	// What is given up is not decided, nor answered.
	p.send(rawFrame(3, 3, 1, 1, message("a", "ip", netip.MustParseAddr("192.0.2.10"), "path", "/api/x")))
	p.send(rawFrame(0, 3, 1, 1, nil))
	p.send(rawFrame(77, 1, 1, 1, []byte("of a later version")))
	if v := p.ask("ip", netip.MustParseAddr("192.0.2.10"), "path", "/api/x"); v["remaining"] != int64(2) {
		t.Errorf("%v", v)
	}
}

func TestDomains(t *testing.T) {
	const other = "domain: other\nlimits: [{name: o, per: [user], allow: 1/day}]\n"
	t.Run("the only one", func(t *testing.T) {
		p := dial(t, serve(t, New(newLimiter(t, apiRules), Options{}))).greet()
		if v := p.ask("ip", client, "path", "/api/x"); v["limit"] != int64(3) {
			t.Errorf("%v", v)
		}
		if v := p.ask("domain", "nobody", "ip", client, "path", "/api/x"); v["deny"] != false || v["limit"] != nil ||
			v["warning"] != "unknown_domain" {
			t.Errorf("a domain that no rule knows: %v", v)
		}
	})
	t.Run("several", func(t *testing.T) {
		var log logged
		p := dial(t, serve(t, New(newLimiter(t, apiRules, other), Options{Logger: log.logger()}))).greet()
		for range 3 {
			v := p.ask("ip", client, "path", "/api/x")
			if v["deny"] != nil || v["error"] != errorDomain {
				t.Errorf("%v", v)
			}
		}
		if n := strings.Count(log.text(), "default_domain"); n != 1 {
			t.Errorf("it was logged %d times: %s", n, log.text())
		}
		if v := p.ask("domain", "other", "user", "ada"); v["limit"] != int64(1) || v["error"] != nil {
			t.Errorf("%v", v)
		}
	})
	t.Run("configured", func(t *testing.T) {
		p := dial(t, serve(t, New(newLimiter(t, apiRules, other), Options{Domain: "other"}))).greet()
		if v := p.ask("user", "ada", "domain", nil); v["limit"] != int64(1) {
			t.Errorf("%v", v)
		}
		if v := p.ask("domain", "api", "ip", client, "path", "/api/x"); v["limit"] != int64(3) {
			t.Errorf("%v", v)
		}
	})
}

func TestHits(t *testing.T) {
	l := newLimiter(t, "limits: [{name: units, per: [user], allow: 5000/day, algorithm: sliding_log}]")
	trusted := dial(t,
		serve(t,
			New(l, Options{Trusted: func(peer string) bool { return strings.HasPrefix(peer, "127.0.0.1:") }}))).greet()
	stranger := dial(t, serve(t, New(l, Options{}))).greet()
	for i, c := range []struct {
		p         *peer
		hits      any
		remaining any
		status    any
	}{
		{stranger, nil, int64(4999), nil},
		{stranger, 4, int64(4995), nil},
		{stranger, "5", int64(4990), nil},
		{stranger, uint32(0), int64(4990), nil},
		{stranger, 1000, int64(3990), nil},
		{stranger, 1001, nil, int64(403)},
		{stranger, -1, nil, int64(403)},
		{stranger, "-1", nil, int64(403)},
		{stranger, "many", nil, int64(400)},
		{stranger, true, nil, int64(400)},
		{stranger, uint64(1 << 63), nil, int64(400)},
		{trusted, uint64(1 << 31), nil, int64(400)},
		{trusted, "99999999999999999999", nil, int64(400)},
		{trusted, 1010, int64(2980), nil},
		{trusted, -2000, int64(4980), nil},
	} {
		v := c.p.ask("user", "ada", "hits", c.hits)
		if v["remaining"] != c.remaining || v["status"] != c.status || v["deny"] != (c.status != nil) ||
			(v["error"] == nil) != (c.status == nil) {
			t.Errorf("%d: hits %v: %v", i, c.hits, v)
		}
	}
}

// TestSmallFrames: what does not fit is left out, first what matters least, and no frame is larger
// than agreed.
func TestSmallFrames(t *testing.T) {
	for _, size := range []int{256, 300, 400, 600, 900, 16380} {
		p := dial(t,
			serve(t,
				New(
					newLimiter(t,
						"limits: [{name: the-limit-of-each-client-address, per: [ip], allow: 1/day, algorithm: sliding_log}]"),
					Options{})))
		p.send(rawFrame(1, 1, 0, 0, pairs("supported-versions", "2.0", "max-frame-size", size, "capabilities",
			"pipelining")))
		p.next()
		var v map[string]any
		for range 2 {
			p.send(notify(1<<63, 1<<63, message("m", "ip", client)))
			r := p.next()
			if r.size > size {
				t.Fatalf("a frame of %d bytes, %d are agreed", r.size, size)
			}
			if v = r.vars(t); len(v) != len(Variables) {
				t.Fatalf("%d bytes: %d variables are set or unset, want %d", size, len(v), len(Variables))
			}
		}
		if v["deny"] != true || v["status"] != int64(429) || v["retry_after"] == nil {
			t.Errorf("%d bytes: %v", size, v)
		}
		if whole := size > 800; (v["body"] != nil) != whole || (v["content_type"] != nil) != whole {
			t.Errorf("%d bytes: body %v, content_type %v", size, v["body"], v["content_type"])
		}
	}
}

// TestWait: a delay cannot be told to HAProxy, so that what would have to wait is refused.
func TestWait(t *testing.T) {
	p := dial(t,
		serve(t,
			New(
				newLimiter(t,
					"limits: [{name: slow, per: [ip], allow: {rate: 1/hour, burst: 9}, algorithm: leaky_bucket, on_limit: {wait: 10h}}]"), Options{}))).greet()
	if v := p.ask("ip", client); v["deny"] != false {
		t.Errorf("%v", v)
	}
	if v := p.ask("ip", client); v["deny"] != true || v["retry_after"] == nil {
		t.Errorf("%v", v)
	}
}

// brokenStore fails.
type brokenStore struct{ store.Store }

func (brokenStore) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	return 0, context.DeadlineExceeded
}

func TestStoreErrors(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		for policy, deny := range map[string]bool{"allow": false, "deny": true} {
			l := newLimiterOver(t, brokenStore{}, "limits: [{name: a, per: [ip], allow: 1/day, on_store_error: "+policy+
				"}]")
			p := dial(t, serve(t, New(l, o))).greet()
			v := p.ask("ip", client)
			if v["deny"] != deny || v["limit"] != nil {
				t.Errorf("%s: %v", policy, v)
			}
			if deny && (v["status"] != int64(503) || v["retry_after"] != int64(1) || v["error"] != errorStore ||
				v["body"] == nil) {
				t.Errorf("%s: %v", policy, v)
			}
		}
	})
}
