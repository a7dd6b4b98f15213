package grpclimit_test

import (
	"context"
	"errors"
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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

func limiter(t testing.TB, rules string, options ...weir.Option) *weir.Limiter {
	t.Helper()
	set, _, err := rule.Load([]rule.Source{{Name: "rules.yaml", Data: []byte(rules)}}, rule.Options{})
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

// serve opens a real server with both interceptors, and connects to it.
func serve(t *testing.T, l *weir.Limiter, options ...grpclimit.Option) healthpb.HealthClient {
	t.Helper()
	s := grpc.NewServer(
		grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(l, options...)),
		grpc.StreamInterceptor(grpclimit.StreamServerInterceptor(l, options...)))
	healthpb.RegisterHealthServer(s, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return healthpb.NewHealthClient(conn)
}

func as(user string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "x-user-id", user)
}

func TestUnary(t *testing.T) {
	client := serve(t, limiter(t, `
limits:
- {name: checks, when: {path: /grpc.health.v1.Health/Check}, per: [user], allow: 2/hour, algorithm: token_bucket}
- {name: lists, when: {grpc.service: grpc.health.v1.Health, grpc.method: List}, allow: 0/hour}
`), grpclimit.WithIdentity("user", "X-User-Id"))
	var header metadata.MD
	for i, want := range []string{"1", "0"} {
		if _, err := client.Check(as("ada"), &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		if got := header.Get("ratelimit-remaining"); !slices.Equal(got, []string{want}) || header.Get("ratelimit-limit")[0] != "2" ||
			header.Get("retry-after") != nil {
			t.Errorf("call %d: %v", i, header)
		}
	}
	var trailer metadata.MD
	_, err := client.Check(as("ada"), &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted || !strings.HasPrefix(s.Message(), `rate limit "checks" exceeded; retry in `) {
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
	if v := quota.GetViolations(); len(v) != 1 || v[0].QuotaId != "checks" || v[0].Subject != "limit:checks" || v[0].QuotaValue != 2 ||
		v[0].Description != "at most 2 in 3600 s (token_bucket)" {
		t.Errorf("quota failure: %v", quota)
	}
	if _, err := client.Check(as("bob"), &healthpb.HealthCheckRequest{}); err != nil {
		t.Errorf("another user: %v", err)
	}

	_, err = client.List(as("ada"), &healthpb.HealthListRequest{}, grpc.Trailer(&trailer))
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || !strings.Contains(s.Message(), "can never pass") || len(s.Details()) != 2 {
		t.Errorf("a limit of zero: %v", err)
	}
	if trailer.Get("retry-after") != nil || trailer.Get("ratelimit-limit")[0] != "0" {
		t.Errorf("a limit of zero: %v", trailer)
	}
}

func TestStream(t *testing.T) {
	client := serve(t, limiter(t, "limits:\n- {name: w, when: {grpc.method: Watch}, per: [ip], allow: 1/hour}\n"))
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
	client := serve(t, limiter(t, "limits:\n- {name: streams, when: {grpc.method: Watch}, algorithm: concurrency, allow: 1}\n"))
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
	_, err := i(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Create"}, func(context.Context, any) (any, error) {
		handler()
		return nil, nil
	})
	return err
}

func TestLeakyBucketHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, "limits:\n- {name: q, allow: {rate: 1/s, burst: 2}, algorithm: leaky_bucket}\n")
		intercept := grpclimit.UnaryServerInterceptor(l, grpclimit.WithoutHeaders())
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
		intercept := grpclimit.UnaryServerInterceptor(l, grpclimit.WithoutHeaders())
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
	intercept := grpclimit.UnaryServerInterceptor(l, grpclimit.WithoutHeaders())
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
	for _, c := range []struct {
		name    string
		options []grpclimit.Option
		want    codes.Code
	}{
		{"no user, no limit", nil, codes.OK},
		{"an attribute of the program's own", []grpclimit.Option{grpclimit.WithAttributes(func(_ context.Context, method string) weir.Pairs {
			return weir.Pairs{{Name: "user", Value: "ada"}}
		}), grpclimit.WithHits(hits)}, codes.ResourceExhausted},
		{"another domain", []grpclimit.Option{grpclimit.WithDomain("other"), grpclimit.WithHits(hits), grpclimit.WithIdentity("user", ":authority")}, codes.OK},
		{"the domain's name", []grpclimit.Option{grpclimit.WithDomain("shop"), grpclimit.WithHits(hits), grpclimit.WithIdentity("user", ":authority")}, codes.ResourceExhausted},
		{"skipped", []grpclimit.Option{grpclimit.WithIdentity("user", ":authority"), grpclimit.WithHits(hits),
			grpclimit.WithSkip(func(method string) bool { return strings.HasPrefix(method, "/grpc.health.") })}, codes.OK},
	} {
		client := serve(t, limiter(t, "domain: shop\nlimits:\n- {name: n, per: [user], allow: 2/hour}\n"), c.options...)
		if _, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{}); status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func TestAttributes(t *testing.T) {
	var seen map[string]string
	l := limiter(t, "limits:\n- {name: n, allow: 5/hour}\n", weir.WithHooks(weir.Hooks{Decided: func(r *weir.Request, _ *weir.Decision) {
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
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-plan", "free", "x-plan", "paid", "x-user-id", "ada", "x-empty", "", ":authority", "shop.example"))
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
		if err := call(ctx, grpclimit.UnaryServerInterceptor(l, grpclimit.WithIdentity("user", "x-user-id"), grpclimit.WithIdentity("tenant", "x-empty")), func() {}); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"path": "/shop.Orders/Create", "grpc.service": "shop.Orders", "grpc.method": "Create", "host": "shop.example",
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

func (f *failingStore) Take(context.Context, []weir.Charge, []algo.Result) (int64, error) {
	f.calls.Add(1)
	return 0, errors.New("gone away")
}
func (f *failingStore) Release(context.Context, *rule.Counter, []byte, uint64) (bool, error) {
	return false, errors.New("gone away")
}
func (f *failingStore) Close() error { return nil }

func TestWithoutStore(t *testing.T) {
	for policy, want := range map[string]codes.Code{"allow": codes.OK, "deny": codes.Unavailable, "local": codes.Unavailable} {
		set, _, err := rule.Load([]rule.Source{{Name: "r.yaml", Data: []byte("limits:\n- {name: n, allow: 5/hour, on_store_error: " + policy + "}\n")}}, rule.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store := &failingStore{}
		l, err := weir.New(store, weir.WithRules(set))
		if err != nil {
			t.Fatal(err)
		}
		ran := false
		err = call(t.Context(), grpclimit.UnaryServerInterceptor(l), func() { ran = true })
		if status.Code(err) != want || ran != (want == codes.OK) || store.calls.Load() != 1 {
			t.Errorf("%s: %v, ran %v", policy, err, ran)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err = call(ctx, grpclimit.UnaryServerInterceptor(l), func() {}); status.Code(err) != codes.Canceled {
			t.Errorf("%s, hung up: %v", policy, err)
		}
	}
}
