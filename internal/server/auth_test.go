package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/httplimit"
)

func testTokens(t *testing.T, tokens ...string) *Tokens {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte(strings.Join(tokens, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := new(Tokens)
	if err := out.Load(path); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestGuessing: after ten wrong tokens within a minute an address learns nothing more, not even of the right one; the others
// go on, and so does it after a while.
func TestGuessing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := testTokens(t, "sesame", "simsim")
		var log bytes.Buffer
		tokens.Logger = slog.New(slog.NewTextHandler(&log, nil))
		const thief, owner = "192.0.2.1:5", "192.0.2.2:5"
		for i := range 15 {
			want := Wrong
			if i >= 10 {
				want = TooMany
			}
			if got := tokens.Check(thief, fmt.Sprint("guess-", i)); got != want {
				t.Errorf("guess %d: %v, want %v", i, got, want)
			}
		}
		for _, c := range []struct {
			address string
			want    Verdict
		}{
			{thief, TooMany}, {"192.0.2.1:99", TooMany}, {"[::ffff:192.0.2.1]:7", TooMany}, {owner, Right}, {"@", Right},
		} {
			if got := tokens.Check(c.address, "sesame"); got != c.want {
				t.Errorf("%s: %v, want %v", c.address, got, c.want)
			}
		}
		if s := tokens.Stats(); s != (TokenStats{Wrong: 10, TooMany: 8}) {
			t.Errorf("got %+v", s)
		}
		time.Sleep(6 * time.Second) // one guess is forgiven
		if got := tokens.Check(thief, "simsim"); got != Right {
			t.Errorf("after a while: %v", got)
		}
		if a, b := tokens.Check(thief, "x"), tokens.Check(thief, "sesame"); a != Wrong || b != TooMany {
			t.Errorf("one more guess: %v, %v", a, b)
		}
		// A network of IPv6 counts as one address, and those of a unix socket as one.
		for i := range 10 {
			tokens.Check(fmt.Sprintf("[2001:db8::%x]:5", i), "x")
			tokens.Check("@", "x")
		}
		for address, want := range map[string]Verdict{"[2001:db8::ffff]:5": TooMany, "[2001:db8:0:1::1]:5": Right, "@": TooMany} {
			if got := tokens.Check(address, "sesame"); got != want {
				t.Errorf("%s: %v, want %v", address, got, want)
			}
		}
		if n := strings.Count(log.String(), "wrong tokens"); n != 1 || strings.Contains(log.String(), "guess-") {
			t.Errorf("told %d times:\n%s", n, &log)
		}
		time.Sleep(time.Minute)
		tokens.Check(thief, "x")
		if n := strings.Count(log.String(), "wrong tokens"); n != 2 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
	})
}

// TestManyGuessers: what is remembered is bounded, and those who come together get no more guesses than apart.
func TestManyGuessers(t *testing.T) {
	tokens := testTokens(t, "sesame")
	address := netip.MustParseAddr("2001:db8::")
	for i := range 3 * maxGuessers {
		b := address.As16()
		b[5], b[6], b[7] = byte(i>>16), byte(i>>8), byte(i)
		tokens.check(netip.AddrFrom16(b), "x")
	}
	if n := len(tokens.guesses.mu.states); n > maxGuessers {
		t.Errorf("%d addresses are remembered", n)
	}
	var all sync.WaitGroup
	before := tokens.Stats().Wrong
	for range 100 {
		all.Go(func() { tokens.Check("192.0.2.1:5", "x") })
	}
	all.Wait()
	if got := tokens.Stats().Wrong - before; got > guessesPerMinute+1 {
		t.Errorf("%d guesses at once", got)
	}
	var none *Tokens
	if none.Check("@", "") == Right || none.CheckBearer("@", "Bearer ") == Right || new(Tokens).Check("@", "") == Right {
		t.Error("where there are no tokens one is right")
	}
}

// TestRequireToken: a door that needs a token decides nothing without one.
func TestRequireToken(t *testing.T) {
	tokens := testTokens(t, "sesame")
	tokens.ClientIP = httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	seen := 0
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen++ })
	both := RequireToken(h, tokens, TokenDoors{HTTP: true, ForwardAuth: true})
	one := RequireToken(h, tokens, TokenDoors{HTTP: true})
	other := RequireToken(h, tokens, TokenDoors{ForwardAuth: true})
	const stranger = "192.0.2.1:5"
	token, proxy := []string{"Authorization", "Bearer sesame"}, []string{"X-Weir-Token", "sesame"}
	for _, c := range []struct {
		name    string
		h       http.Handler
		path    string
		headers []string
		status  int
	}{
		{"none", both, "/api/v1/limit", nil, 401},
		{"the right one", both, "/api/v1/limit", token, 200},
		{"another scheme", both, "/api/v1/limit", []string{"Authorization", "Basic sesame"}, 401},
		{"small letters", both, "/api/v1/limit", []string{"Authorization", "bearer sesame"}, 200},
		{"a wrong one", both, "/api/v1/limit", []string{"Authorization", "Bearer sesam"}, 401},
		{"of forward auth", both, "/api/v1/limit", proxy, 401},
		{"health", both, "/healthcheck", nil, 200},
		{"what is not there", both, "/nothing", nil, 401},
		{"forward auth, none", both, "/api/v1/forward-auth/nginx/shop", nil, 401},
		{"forward auth, the client's", both, "/api/v1/forward-auth/nginx/shop", token, 401},
		{"forward auth, the proxy's", both, "/api/v1/forward-auth/nginx/shop", proxy, 200},
		{"forward auth, both", both, "/api/v1/forward-auth", append(proxy, token...), 200},
		{"forward auth where only the API needs one", one, "/api/v1/forward-auth", nil, 200},
		{"the API where it needs one", one, "/api/v1/limit", nil, 401},
		{"the API where only forward auth needs one", other, "/api/v1/limit", nil, 200},
		{"forward auth where it needs one", other, "/api/v1/forward-auth/", nil, 401},
	} {
		seen = 0
		a := ask(c.h, stranger, "POST", "http://weir"+c.path, "{}", c.headers...)
		if a.status != c.status || (seen == 1) != (c.status == 200) {
			t.Errorf("%s: got %d %s, %d seen", c.name, a.status, a.body, seen)
		}
		if c.status == 401 && (!strings.HasPrefix(a.header.Get("WWW-Authenticate"), `Bearer realm="weir"`) || a.header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %v", c.name, a.header)
		}
	}
	twice := httptest.NewRequest("GET", "/api/v1/forward-auth", nil)
	twice.Header["X-Weir-Token"] = []string{"sesame", "sesame"} // the client's, and the proxy's
	w := httptest.NewRecorder()
	if both.ServeHTTP(w, twice); w.Code != 401 {
		t.Errorf("forward auth, two tokens: %d", w.Code)
	}
	// The guesses of a proxy's client are its own: neither the proxy nor others suffer.
	const fromProxy = "10.0.0.1:5"
	guess := func(client, token string) int {
		return ask(both, fromProxy, "POST", "http://weir/api/v1/limit", "{}", "X-Forwarded-For", client, "Authorization", "Bearer "+token).status
	}
	for range 10 {
		if status := guess("198.51.100.1", "x"); status != 401 {
			t.Errorf("a guess: %d", status)
		}
	}
	if a, b := guess("198.51.100.1", "sesame"), guess("198.51.100.2", "sesame"); a != 429 || b != 200 {
		t.Errorf("got %d and %d, want 429 and 200", a, b)
	}
	// What a client writes into the header of forward auth's proxies is no guess of theirs, if it is in Authorization.
	for range 20 {
		ask(both, "10.0.0.2:5", "GET", "http://weir/api/v1/forward-auth", "", "Authorization", "Bearer x", "X-Weir-Token", "sesame")
	}
	if a := ask(both, "10.0.0.2:5", "GET", "http://weir/api/v1/forward-auth", "", "X-Weir-Token", "sesame"); a.status != 200 {
		t.Errorf("the proxy is shut out: %d", a.status)
	}
}

// TestAdminGuessing: the admin port says no more after ten wrong tokens, and scrapers that send tokens of others are no thieves.
func TestAdminGuessing(t *testing.T) {
	tokens := testTokens(t, "sesame")
	h, _ := newTestAdmin(t, AdminOptions{Tokens: tokens, Metrics: http.NotFoundHandler()})
	status := func(path, token string) int {
		return onAdmin(h, "GET", path, "", "Authorization", "Bearer "+token).status
	}
	for range 50 {
		status("/metrics", "of-prometheus")
		status("/readyz", "of-prometheus")
	}
	if s := status("/api/v1/rules", "sesame"); s != 200 {
		t.Fatalf("after scraping: %d", s)
	}
	for i := range 12 {
		want := 401
		if i >= 10 {
			want = 429
		}
		if s := status("/api/v1/rules", "x"); s != want {
			t.Errorf("guess %d: %d, want %d", i, s, want)
		}
	}
	a := onAdmin(h, "GET", "/api/v1/rules", "", "Authorization", "Bearer sesame")
	if a.status != 429 || a.header.Get("Retry-After") == "" {
		t.Errorf("the right one: %d %v", a.status, a.header)
	}
	if s := status("/healthz", "x"); s != 200 {
		t.Errorf("health: %d", s)
	}
}

// TestGRPCToken: calls without a token are refused, but for health.
func TestGRPCToken(t *testing.T) {
	l, _, _ := newTestLimiter(t, loginRules)
	s := NewGRPCServer(NewRLS(l, RLSOptions{}), GRPCOptions{Authorize: testTokens(t, "sesame").Authorizer()})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	defer func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := rlspb.NewRateLimitServiceClient(conn)
	question := &rlspb.RateLimitRequest{Domain: "shop"}
	ask := func(authorization ...string) codes.Code {
		ctx := t.Context()
		for _, a := range authorization {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", a)
		}
		_, err := client.ShouldRateLimit(ctx, question)
		return status.Code(err)
	}
	for _, c := range []struct {
		authorization string
		want          codes.Code
	}{
		{"", codes.Unauthenticated}, {"Bearer x", codes.Unauthenticated}, {"sesame", codes.Unauthenticated},
		{"Bearer sesame", codes.InvalidArgument}, // it is looked at, and has no descriptors
	} {
		if got := ask(c.authorization); got != c.want {
			t.Errorf("%q: %v, want %v", c.authorization, got, c.want)
		}
	}
	if got := ask(); got != codes.Unauthenticated {
		t.Errorf("without metadata: %v", got)
	}
	health := healthpb.NewHealthClient(conn)
	if r, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if stream, err := health.Watch(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	} else if _, err := stream.Recv(); err != nil {
		t.Errorf("watch: %v", err)
	}
	for range 9 {
		ask("Bearer x")
	}
	if got := ask("Bearer sesame"); got != codes.ResourceExhausted {
		t.Errorf("after ten wrong ones: %v", got)
	}
}

// TestUnixPeers: whoever comes over a unix socket is trusted only if that is said.
func TestUnixPeers(t *testing.T) {
	for _, c := range []struct {
		trust   Trust
		address string
		want    bool
	}{
		{Trust{}, "@", false}, {Trust{Unix: true}, "@", true}, {Trust{Unix: true}, "", false}, {Trust{Unix: true}, "192.0.2.1:5", false},
		{Trust{Peers: loopback}, "@", false}, {Trust{Peers: []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}}, "@", false},
	} {
		if got := c.trust.TrustedPeer(c.address); got != c.want {
			t.Errorf("%+v, %q: %v", c.trust, c.address, got)
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = c.address
		if got := c.trust.Trusted(r); got != c.want {
			t.Errorf("%+v, request from %q: %v", c.trust, c.address, got)
		}
	}
}
