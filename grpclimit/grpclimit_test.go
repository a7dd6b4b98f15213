package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

func limiter(t testing.TB, rules string, options ...weir.Option) *weir.Limiter {
	t.Helper()
	return limiterOf(t, []string{rules}, options...)
}

// limiterOf is limiter for several files.
func limiterOf(t testing.TB, files []string, options ...weir.Option) *weir.Limiter {
	t.Helper()
	var sources []file.Source
	for i, text := range files {
		sources = append(sources, file.Source{Name: fmt.Sprintf("rules%d.yaml", i), Data: []byte(text)})
	}
	set, _, err := file.Load(sources, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{Clock: func() int64 { return time.Now().UnixMicro() }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l, err := weir.New(store, append(options, weir.WithRules(set))...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// byUser is an Options.Identity.
var byUser = map[string]string{"user": "x-user-id"}

func newGate(t testing.TB, l *weir.Limiter, o grpclimit.Options) *grpclimit.Gate {
	t.Helper()
	g, err := grpclimit.New(l, o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// serve opens a real server with both interceptors, and connects to it.
func serve(t *testing.T, l *weir.Limiter, o grpclimit.Options) healthpb.HealthClient {
	t.Helper()
	client, _ := serveGate(t, l, o)
	return client
}

func as(user string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "x-user-id", user)
}

func TestUnary(t *testing.T) {
	client := serve(t, limiter(t, `
limits:
- {name: checks, when: {path: /grpc.health.v1.Health/Check}, per: [user], allow: 2/hour, algorithm: token_bucket}
- {name: lists, when: {grpc.service: grpc.health.v1.Health, grpc.method: List}, allow: 0/hour}
`), grpclimit.Options{Identity: map[string]string{"user": "X-User-Id"}})
	var header metadata.MD
	for i, want := range []string{"1", "0"} {
		if _, err := client.Check(as("ada"), &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		if got := header.Get("ratelimit-remaining"); !slices.Equal(got, []string{want}) ||
			header.Get("ratelimit-limit")[0] != "2" ||
			header.Get("retry-after") != nil {
			t.Errorf("call %d: %v", i, header)
		}
	}
	var trailer metadata.MD
	_, err := client.Check(as("ada"), &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted ||
		!strings.HasPrefix(s.Message(), `rate limit "checks" exceeded; retry in `) {
		t.Fatalf("the third call: %v", err)
	}
	if trailer.Get("retry-after") == nil || trailer.Get("ratelimit-remaining")[0] != "0" {
		t.Errorf("the trailer of a refusal: %v", trailer)
	}
	var retry *errdetails.RetryInfo
	var quota *errdetails.QuotaFailure
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.QuotaFailure:
			quota = d
		}
	}
	if delay := retry.GetRetryDelay().AsDuration(); delay <= 0 || delay > 30*time.Minute {
		t.Errorf("retry info: %v", retry)
	}
	if v := quota.GetViolations(); len(v) != 1 || v[0].QuotaId != "checks" || v[0].Subject != "limit:checks" ||
		v[0].QuotaValue != 2 ||
		v[0].Description != "at most 2 in 3600 s (token_bucket)" {
		t.Errorf("quota failure: %v", quota)
	}
	if _, err := client.Check(as("bob"), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("another user: %v", err)
	}

	_, err = client.List(as("ada"), &healthpb.HealthListRequest{}, grpc.Trailer(&trailer))
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted ||
		!strings.Contains(s.Message(), "can never pass") || len(s.Details()) != 2 {
		t.Errorf("a limit of zero: %v", err)
	}
	if trailer.Get("retry-after") != nil || trailer.Get("ratelimit-limit")[0] != "0" {
		t.Errorf("a limit of zero: %v", trailer)
	}
}

func TestStream(t *testing.T) {
	client := serve(t,
		limiter(t,
			"limits:\n- {name: w, when: {grpc.method: Watch}, per: [ip], allow: 1/hour, algorithm: sliding_log}\n"),
		grpclimit.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	first, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Recv(); err != nil {
		t.Fatal(err)
	}
	if md, err := first.Header(); err != nil || md.Get("ratelimit-remaining")[0] != "0" {
		t.Errorf("header: %v, %v", md, err)
	}
	second, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the second stream: %v", err)
	}
}

func TestConcurrency(t *testing.T) {
	client := serve(t,
		limiter(t,
			"limits:\n- {name: streams, when: {grpc.method: Watch}, algorithm: concurrency, allow: 1}\n"),
		grpclimit.Options{})
	for i := range 3 { // each finds the slot of the one before given back
		ctx, cancel := context.WithCancel(context.Background())
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for {
			_, err = stream.Recv()
			if status.Code(err) != codes.ResourceExhausted {
				break
			}
			// The server may not have seen yet that the stream before has ended.
			if stream, err = client.Watch(ctx, &healthpb.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
		if other, err := client.Watch(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		} else if _, err := other.Recv(); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("two at a time: %v", err)
		}
		cancel()
	}
}

// call runs an interceptor without a network; handler tells whether and when it ran.
func call(ctx context.Context, i grpc.UnaryServerInterceptor, handler func()) error {
	_, err := i(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Create"},
		func(context.Context, any) (any, error) {
			handler()
			return nil, nil
		})
	return err
}

func TestLeakyBucketHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, "limits:\n- {name: q, allow: {rate: 1/s, burst: 2}, algorithm: leaky_bucket}\n")
		intercept := newGate(t, l, grpclimit.Options{NoHeaders: true}).Unary
		start := time.Now()
		type outcome struct {
			at  time.Duration
			err error
		}
		ran := make(chan outcome, 4)
		for range 4 {
			go func() {
				var at time.Duration
				err := call(t.Context(), intercept, func() { at = time.Since(start) })
				ran <- outcome{at, err}
			}()
			synctest.Wait()
		}
		if o := <-ran; o.err != nil || o.at != 0 {
			t.Errorf("the first: %+v", o)
		}
		if o := <-ran; status.Code(o.err) != codes.ResourceExhausted {
			t.Errorf("the fourth finds the queue full: %+v", o)
		}
		for i := range 2 {
			if o := <-ran; o.err != nil || o.at != time.Duration(i+1)*time.Second {
				t.Errorf("turn %d: %+v", i+1, o)
			}
		}
	})
}

func TestHungUpWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, "limits:\n- {name: q, allow: {rate: 1/s, burst: 1}, algorithm: leaky_bucket}\n")
		intercept := newGate(t, l, grpclimit.Options{NoHeaders: true}).Unary
		if err := call(t.Context(), intercept, func() {}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- call(ctx, intercept, func() { t.Error("the handler ran") }) }()
		synctest.Wait()
		cancel()
		if err := <-done; status.Code(err) != codes.Canceled {
			t.Errorf("%v", err)
		}
		// The turn was given back, so there is room for another.
		start := time.Now()
		if err := call(t.Context(), intercept, func() {}); err != nil || time.Since(start) != time.Second {
			t.Errorf("the next: %v after %v", err, time.Since(start))
		}
	})
}

func TestPanicGivesTheSlotBack(t *testing.T) {
	l := limiter(t, "limits:\n- {name: c, algorithm: concurrency, allow: 1}\n")
	intercept := newGate(t, l, grpclimit.Options{NoHeaders: true}).Unary
	func() {
		defer func() { _ = recover() }()
		_ = call(t.Context(), intercept, func() { panic("a handler's own") })
	}()
	if err := call(t.Context(), intercept, func() {}); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	hits := func(context.Context, string) int64 { return 3 }
	byAuthority := map[string]string{"user": ":authority"}
	for _, c := range []struct {
		name    string
		options grpclimit.Options
		want    codes.Code
	}{
		{"no user, no limit", grpclimit.Options{}, codes.OK},
		{"an attribute of the program's own",
			grpclimit.Options{Attributes: map[string]func(context.Context, string) string{
				"user": func(context.Context, string) string { return "ada" },
			}, Hits: hits}, codes.ResourceExhausted},
		{"another domain", grpclimit.Options{Domain: "other", Hits: hits, Identity: byAuthority}, codes.OK},
		{"the domain's name", grpclimit.Options{Domain: "shop", Hits: hits, Identity: byAuthority}, codes.ResourceExhausted},
		{"skipped", grpclimit.Options{Identity: byAuthority, Hits: hits,
			Skip: func(method string) bool { return strings.HasPrefix(method, "/grpc.health.") }}, codes.OK},
	} {
		client := serve(t, limiter(t, "domain: shop\nlimits:\n- {name: n, per: [user], allow: 2/hour, algorithm: sliding_log}\n"), c.options)
		if _, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{}); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// What cannot work is said when the Gate is made, not left without effect.
func TestBadOptions(t *testing.T) {
	l := limiter(t, "domain: shop\nlimits:\n- {name: n, per: [user], allow: 2/hour}\n")
	none := func(context.Context, string) string { return "" }
	for want, o := range map[string]grpclimit.Options{
		"no metadata key": {Identity: map[string]string{"user": ""}},
		"no attribute":    {Identity: map[string]string{"": "x-user-id"}},
		"nil function":    {Attributes: map[string]func(context.Context, string) string{"user": nil}},
		"has no name":     {Attributes: map[string]func(context.Context, string) string{"": none}},
		"in Identity":     {Attributes: map[string]func(context.Context, string) string{"user": none}, Identity: byUser},
		"set Messages":    {MessageHits: func(context.Context, string, any) int64 { return 2 }},
	} {
		if g, err := grpclimit.New(l, o); g != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if _, err := grpclimit.New(nil, grpclimit.Options{}); err == nil || !strings.Contains(err.Error(), "weir.New") {
		t.Error(err)
	}
	two := limiterOf(t, []string{"domain: a\nlimits: [{name: n, allow: 1/s}]",
		"domain: b\nlimits: [{name: n, allow: 1/s}]"})
	if _, err := grpclimit.New(two, grpclimit.Options{}); err == nil || !strings.Contains(err.Error(), "a, b") {
		t.Error(err)
	}
	if _, err := grpclimit.New(two, grpclimit.Options{Domain: "b"}); err != nil {
		t.Error(err)
	}
}

// A rule that needs an attribute which no call has is logged, and limits nothing.
func TestRulesThatLackAnAttribute(t *testing.T) {
	l := limiter(t, `
limits:
- {name: by-user, per: [user], allow: 2/hour}
- {name: by-query, when: {query.q: x}, allow: 2/hour}
- {name: by-service, when: {grpc.service: shop.Orders}, per: [ip, host, header.x-a], allow: 2/hour}
- {name: messages, when: {grpc.message: received}, allow: 2/hour}
`)
	user := map[string]func(context.Context,
		string) string{"user": func(context.Context, string) string { return "ada" }}
	for _, c := range []struct {
		o    grpclimit.Options
		want string
	}{
		{grpclimit.Options{}, "by-user (no user), by-query (no query.q), messages (no grpc.message)"},
		{grpclimit.Options{Identity: byUser, Messages: true}, "by-query (no query.q)"},
		{grpclimit.Options{Attributes: user, Identity: map[string]string{"query.q": "q"}}, "messages (no grpc.message)"},
		{grpclimit.Options{Attributes: user, Identity: map[string]string{"query.q": "q"}, Messages: true}, ""},
	} {
		var log strings.Builder
		c.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		newGate(t, l, c.o)
		if !strings.Contains(log.String(), c.want) || (log.Len() > 0) != (c.want != "") {
			t.Errorf("logged %q, want %q", &log, c.want)
		}
	}
}

// A function of Options.Attributes is called when a rule asks, once for a call, and its name stands
// before one that the call has of itself.
func TestAttributesOfTheProgram(t *testing.T) {
	var asked []string
	note := func(value string) func(context.Context, string) string {
		return func(_ context.Context, method string) string {
			asked = append(asked, value+method)
			return value
		}
	}
	var seen map[string]string
	l := limiter(t,
		"limits:\n- {name: n, per: [user], allow: 5/hour, algorithm: sliding_log}\n- {name: m, when: {path: /shop.Orders/Delete}, per: [plan], allow: 5/hour, algorithm: sliding_log}\n", weir.WithHooks(weir.Hooks{Decided: func(r *weir.Request, _ *weir.Decision) {
			if len(asked) != 1 {
				t.Errorf("asked %q", asked)
			}
			seen = maps.Collect(r.Attributes.All())
		}}))
	g := newGate(t, l, grpclimit.Options{Attributes: map[string]func(context.Context, string) string{
		"user": note("ada"), "plan": note("free"), "none": note(""), "host": note("mine"),
	}})
	for range 2 {
		asked = nil
		if err := call(t.Context(), g.Unary, func() {}); err != nil {
			t.Fatal(err)
		}
		if _, found := seen["none"]; found || seen["user"] != "ada" || seen["plan"] != "free" ||
			seen["host"] != "mine" || len(asked) != 4 {
			t.Errorf("%v, asked %q", seen, asked)
		}
	}
}

func TestAttributes(t *testing.T) {
	var seen map[string]string
	l := limiter(t, "limits:\n- {name: n, allow: 5/hour}\n",
		weir.WithHooks(weir.Hooks{Decided: func(r *weir.Request, _ *weir.Decision) {
			seen = maps.Collect(r.Attributes.All())
			for name, value := range seen {
				if v, ok := r.Attributes.Attribute(name); !ok || v != value {
					t.Errorf("%s is %q, %v; All says %q", name, v, ok, value)
				}
			}
			if _, ok := r.Attributes.Attribute("header.absent"); ok {
				t.Error("an absent header")
			}
			if _, ok := r.Attributes.Attribute("absent"); ok {
				t.Error("an absent attribute")
			}
		}}))
	ctx := metadata.NewIncomingContext(t.Context(),
		metadata.Pairs("x-plan", "free", "x-plan", "paid", "x-user-id", "ada", "x-empty", "", ":authority",
			"shop.example"))
	for _, c := range []struct {
		addr net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 9}, "192.0.2.1"},
		{&net.TCPAddr{IP: net.ParseIP("::ffff:192.0.2.1"), Port: 9}, "192.0.2.1"},
		{&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0", Port: 9}, "fe80::1"},
		{&net.UnixAddr{Name: "@socket", Net: "unix"}, ""},
	} {
		ctx := peer.NewContext(ctx, &peer.Peer{Addr: c.addr})
		if err := call(ctx, newGate(t, l, grpclimit.Options{Identity: map[string]string{"user": "x-user-id", "tenant": "x-empty"}}).Unary, func() {}); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"path": "/shop.Orders/Create", "grpc.service": "shop.Orders", "grpc.method": "Create",
			"host": "shop.example",
			"user": "ada", "header.x-plan": "free, paid", "header.x-user-id": "ada", "header.x-empty": "", "header.:authority": "shop.example"}
		if c.want != "" {
			want["ip"] = c.want
		}
		if !maps.Equal(seen, want) {
			t.Errorf("got  %v\nwant %v", seen, want)
		}
	}
}

// failingStore is a store that can be reached no more.
type failingStore struct{ calls atomic.Int64 }

func (f *failingStore) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	f.calls.Add(1)
	return 0, errors.New("gone away")
}
func (f *failingStore) Release(context.Context, *rule.Counter, []byte, uint64) (bool, error) {
	return false, errors.New("gone away")
}
func (f *failingStore) Close() error { return nil }

func TestWithoutStore(t *testing.T) {
	for policy, want := range map[string]codes.Code{"allow": codes.OK, "deny": codes.Unavailable,
		"local": codes.Unavailable} {
		set, _, err := file.Load([]file.Source{{Name: "r.yaml",
			Data: []byte("limits:\n- {name: n, allow: 5/hour, on_store_error: " + policy + "}\n")}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store := &failingStore{}
		l, err := weir.New(store, weir.WithRules(set))
		if err != nil {
			t.Fatal(err)
		}
		ran := false
		err = call(t.Context(), newGate(t, l, grpclimit.Options{}).Unary, func() { ran = true })
		if status.Code(err) != want || ran != (want == codes.OK) || store.calls.Load() != 1 {
			t.Errorf("%s: %v, ran %v", policy, err, ran)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err = call(ctx, newGate(t, l, grpclimit.Options{}).Unary, func() {}); status.Code(err) != codes.Canceled {
			t.Errorf("%s, hung up: %v", policy, err)
		}
	}
}

// A limit without per holds for all calls together.
func TestSingleLimit(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l, err := weir.New(store, weir.Limit("all", "2/year"))
	if err != nil {
		t.Fatal(err)
	}
	client := serve(t, l, grpclimit.Options{})
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != want {
			t.Errorf("call %d: %v, want %v", i+1, err, want)
		}
	}
}
