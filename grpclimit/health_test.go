package grpclimit_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/rule/file"
)

// probed is a real server with the options as they are, and a client of its health service.
func probed(t *testing.T, g *grpclimit.Gate) healthpb.HealthClient {
	t.Helper()
	s := grpc.NewServer(grpc.UnaryInterceptor(g.Unary), grpc.StreamInterceptor(g.Stream))
	healthpb.RegisterHealthServer(s, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
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

// watchHealth opens a stream of the health service, and returns how that ended or began.
func watchHealth(t *testing.T, client healthpb.HealthClient) codes.Code {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	return status.Code(err)
}

// Health checks pass whatever the rules say, and are counted, unless a rule names them, which then
// limits them alone, or the program says which methods pass.
func TestHealthChecks(t *testing.T) {
	const refused = codes.ResourceExhausted
	never, always := func(string) bool { return false }, func(string) bool { return true }
	for _, c := range []struct {
		name, rules  string
		skip         func(string) bool
		check, watch codes.Code
		passed       uint64 // without a decision, of the three checks and the watch
	}{
		{"a limit of all calls", "limits: [{name: all, allow: 0/hour}]", nil, codes.OK, codes.OK, 4},
		{"a limit of a path", "limits: [{name: all, when: {path: /**}, allow: 0/hour}]", nil, codes.OK, codes.OK, 4},
		{"one that leaves them out", `limits: [{name: all, when: {grpc.service: "!grpc.health.v1.Health"}, allow: 0/hour}]`, nil, codes.OK, codes.OK, 4},
		{"a limit that names another method", "limits: [{name: all, allow: 0/hour}, {name: watch, when: {path: /grpc.health.v1.Health/Watch}, allow: 0/hour}]", nil, codes.OK, refused, 0},
		{"a limit that names the method", "limits: [{name: all, allow: 0/hour}, {name: check, when: {path: /grpc.health.v1.Health/Check}, allow: 0/hour}]", nil, refused, codes.OK, 0},
		{"a limit that names the service", "limits: [{name: all, allow: 0/hour}, {name: service, when: {grpc.service: grpc.health.v1.Health}, allow: 2/hour}]", nil, refused, refused, 0},
		{"a glob", "limits: [{name: service, when: {path: /grpc.health.v1.Health/*}, allow: 0/hour}]", nil, refused, refused, 0},
		{"an expression", `limits: [{name: if, if: 'path.startsWith("/grpc.health.v1.Health/")', allow: 0/hour}]`, nil, refused, refused, 0},
		{"another expression", `limits: [{name: if, if: 'path.startsWith("/grpc.health.")', allow: 0/hour}]`, nil, refused, refused, 0},
		{"a wide glob", "limits: [{name: service, when: {path: /grpc.health.*/**}, allow: 0/hour}]", nil, refused, refused, 0},
		{"a regular expression", `limits: [{name: service, when: {path: '~^/grpc\.health\.v1\.Health/'}, allow: 0/hour}]`, nil, refused, refused, 0},
		{"a descriptor", "domain: d\ndescriptors: [{key: path, value: /grpc.health.v1.Health/Check, rate_limit: {unit: hour, requests_per_unit: 0}}, {key: path, rate_limit: {unit: hour, requests_per_unit: 0}}]", nil, refused, codes.OK, 0},
		{"a program that leaves out nothing", "limits: [{name: all, allow: 0/hour}]", never, refused, refused, 0},
		{"a program that leaves out all", "limits: [{name: check, when: {path: /grpc.health.v1.Health/Check}, allow: 0/hour}]", always, codes.OK, codes.OK, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t, limiter(t, c.rules), grpclimit.Options{Skip: c.skip})
			client := probed(t, g)
			last := codes.OK
			for range 3 {
				_, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
				last = status.Code(err)
			}
			if last != c.check {
				t.Errorf("a check: %v, want %v", last, c.check)
			}
			if got := watchHealth(t, client); got != c.watch {
				t.Errorf("a watch: %v, want %v", got, c.watch)
			}
			if got := g.Stats().HealthChecks; got != c.passed {
				t.Errorf("%d passed without a decision, want %d", got, c.passed)
			}
		})
	}
}

// New rules that name the health service limit it from then on, and no longer when they are gone.
func TestHealthChecksFollowTheRules(t *testing.T) {
	l := limiter(t, "limits: [{name: all, allow: 0/hour}]")
	client := probed(t, newGate(t, l, grpclimit.Options{}))
	for i, c := range []struct {
		rules string
		want  codes.Code
	}{
		{"limits: [{name: all, allow: 0/hour}]", codes.OK},
		{"limits: [{name: check, when: {path: /grpc.health.v1.Health/Check}, allow: 0/hour}]", codes.ResourceExhausted},
		{"limits: [{name: all, allow: 0/hour}]", codes.OK},
	} {
		set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(c.rules)}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		l.SetRules(set)
		if _, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{}); status.Code(err) != c.want {
			t.Errorf("rules %d: %v, want %v", i, err, c.want)
		}
	}
}

// A call whose turn comes after its deadline is refused at once, with the time to come back, and
// takes no turn.
func TestRefusedBeforeItsDeadline(t *testing.T) {
	for name, rule := range map[string]string{
		"leaky_bucket": "{name: q, algorithm: leaky_bucket, allow: {rate: 1/hour, burst: 5}}",
		"token_bucket": "{name: q, algorithm: token_bucket, allow: {rate: 1/hour, burst: 1}, on_limit: {wait: 2h}}",
	} {
		t.Run(name, func(t *testing.T) {
			client, g := serveGate(t, limiter(t, "limits: ["+rule+"]"), grpclimit.Options{})
			for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted, codes.ResourceExhausted} {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
				s := status.Convert(err)
				if s.Code() != want {
					t.Fatalf("call %d: %v", i, err)
				}
				if want == codes.OK {
					continue
				}
				var retry time.Duration
				for _, d := range s.Details() {
					if d, ok := d.(*errdetails.RetryInfo); ok {
						retry = d.RetryDelay.AsDuration()
					}
				}
				if retry < 20*time.Minute || retry > time.Hour {
					t.Errorf("call %d: to come back in %v: %v", i, retry, err)
				}
			}
			if s := g.Stats(); s.Total != 0 || s.HungUp != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}
