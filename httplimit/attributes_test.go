package httplimit

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"

	"github.com/weir-rl/weir/rule"
)

var _ rule.Attributes = (*Attributes)(nil)

func TestAttributes(t *testing.T) {
	id, err := ParseIdentity(map[string]string{"user": "header:X-User-Id", "plan": "cookie:plan"}, "")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("POST",
		"http://Shop.example.:8080//a/./b/%7Euser%2Fx?q=1&q=2&e=&f&s=a+b%21&%71q=3&bad=%zz", nil)
	r.RemoteAddr = "10.0.0.1:99"
	r.Header = http.Header{"X-Forwarded-For": {"::ffff:192.0.2.7"}, "X-User-Id": {"ada"}, "X-Plan": {"a", "b"},
		"User-Agent": {"u"}, "Host": {"spoofed"}}
	var a Attributes
	a.Reset(r, ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, id)
	want := map[string]string{
		"method": "POST", "path": "/a/b/~user%2Fx", "host": "Shop.example:8080", "ip": "192.0.2.7", "user": "ada",
		"header.x-forwarded-for": "::ffff:192.0.2.7", "header.x-user-id": "ada", "header.x-plan": "a, b", "header.user-agent": "u", "header.host": "Shop.example:8080",
		"query.q": "1", "query.e": "", "query.f": "", "query.s": "a b!", "query.qq": "3", "query.bad": "%zz",
	}
	for name, value := range want {
		if got, ok := a.Attribute(name); !ok || got != value {
			t.Errorf("%s is %q, %v; want %q", name, got, ok, value)
		}
	}
	for _, name := range []string{"plan", "header.X-Plan", "header.", "header.nope", "query.nope", "query.", "nope", "",
		"Path", "query.%71"} {
		if got, ok := a.Attribute(name); ok {
			t.Errorf("%s is %q", name, got)
		}
	}
	if got := maps.Collect(a.All()); !maps.Equal(got, want) {
		t.Errorf("All: %v\nwant %v", got, want)
	}
	for range a.All() {
		break
	}

	a.SetTarget("GET", "other.", "/x/../login?q=9&q=8")
	for name, value := range map[string]string{"method": "GET", "path": "/login", "host": "other",
		"header.host": "other", "user": "ada", "query.q": "9"} {
		if got, _ := a.Attribute(name); got != value {
			t.Errorf("after SetTarget %s is %q, want %q", name, got, value)
		}
	}
	if _, ok := a.Attribute("query.e"); ok {
		t.Error("the query of the request that asks is still there")
	}
	if r.URL.RawQuery == "" || r.Host == "other" {
		t.Error("SetTarget changed the request")
	}
	a.Reset(nil, ClientIP{}, nil)
}

// The name in a certificate, and the Host, are not taken from the connection by which a proxy asks.
func TestTargetIdentity(t *testing.T) {
	id, err := ParseIdentity(map[string]string{"who": "tls", "site": "header:Host", "user": "basic"}, "")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "https://weir.internal/check", nil)
	certificate := &x509.Certificate{Subject: pkix.Name{CommonName: "the proxy"}}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate},
		VerifiedChains: [][]*x509.Certificate{{certificate}}}
	r.SetBasicAuth("ada", "secret")
	var a Attributes
	a.Reset(r, ClientIP{}, id)
	if got, _ := a.Attribute("who"); got != "the proxy" {
		t.Fatalf("the test has no certificate: %q", got)
	}
	a.Reset(r, ClientIP{}, id)
	a.SetTarget("GET", "shop.example", "/")
	want := map[string]string{"site": "shop.example", "user": "ada"}
	got := map[string]string{}
	for name, value := range a.All() {
		if id.index(name) >= 0 {
			got[name] = value
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if value, ok := a.Attribute("who"); ok {
		t.Errorf("the proxy's certificate names the client %q", value)
	}
}

func TestRawPath(t *testing.T) {
	for raw, want := range map[string]string{
		"/": "/", "/a%2fb": "/a%2fb", `/a%2Fb"c`: `/a%2Fb"c`, "//x": "//x", "/a;b=(c)!": "/a;b=(c)!", "/%6cogin": "/%6cogin", "/é": "/é", "/a#b": "/a#b",
	} {
		u, err := url.ParseRequestURI(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := rawPath(u); got != want {
			t.Errorf("%s: %s", raw, got)
		}
	}
	// A handler in front that changed only Path is obeyed.
	if got := rawPath(&url.URL{Path: "/new", RawPath: "/o%6cd"}); got != "/new" {
		t.Errorf("a stale RawPath gave %s", got)
	}
}

func TestAttributesAllocations(t *testing.T) {
	id, err := ParseIdentity(map[string]string{"user": "header:X-User-Id"}, "")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/api/v1/things?a=1&b=2", nil)
	r.Header.Set("X-User-Id", "ada")
	r.Header.Set("X-Weir-Test-Plan", "free")
	var a Attributes
	a.Reset(r, ClientIP{}, id)
	names := []string{"method", "path", "host", "ip", "user", "header.x-weir-test-plan", "query.b", "nope"}
	if n := testing.AllocsPerRun(100, func() {
		a.Reset(r, ClientIP{}, id)
		for _, name := range names {
			a.Attribute(name)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
