package doors

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/rueidis"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/forwardauth"
	"github.com/weir-rl/weir/internal/door/httpapi"
	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/door/resp"
	"github.com/weir-rl/weir/internal/door/rls"
	"github.com/weir-rl/weir/internal/door/spoe"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// sameRules has a path for each algorithm, with a counter for each door.
const sameRules = `
domain: same
limits:
  - {name: log, when: {path: /log}, per: [door], allow: 5/min, algorithm: sliding_log}
  - {name: bucket, when: {path: /bucket}, per: [door], allow: {rate: 7/min, burst: 3}}
  - {name: fixed, when: {path: /fixed}, per: [door], allow: 5/min, algorithm: fixed_window}
  - {name: window, when: {path: /window}, per: [door], allow: 5/min, algorithm: sliding_window}
  - {name: buckets, when: {path: /buckets}, per: [door], allow: 5/min, algorithm: sliding_window, buckets: 12}
  - {name: several, when: {path: /several}, per: [door], allow: [3/min, 6/hour]}
  - {name: soft, when: {path: /soft}, per: [door], allow: 4/min, algorithm: sliding_log, throttle: {soft: 25%}}
  - {name: cost, when: {path: /cost}, per: [door], allow: 20/min, algorithm: sliding_log, cost: 4}
  - {name: nobody, when: {path: /nobody}, per: [door], allow: 0/min, algorithm: sliding_log}
  - {name: trial, when: {path: /trial}, per: [door], allow: 1/min, on_limit: shadow}
descriptors:
  - key: path
    value: /lyft
    descriptors:
      - {key: door, rate_limit: {unit: minute, requests_per_unit: 5}}
  - key: path
    value: /lyft-bucket
    descriptors:
      - {key: door, rate_limit: {algorithm: token_bucket, allow: {rate: 7/min, burst: 3}}}
  - key: path
    value: /lyft-trial
    descriptors:
      - {key: door, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: path
    value: /lyft-free
    descriptors:
      - {key: door, rate_limit: {unlimited: true}}
  - key: path
    value: /shared
    descriptors:
      - {key: nothing, rate_limit: {unit: hour, requests_per_unit: 1}}
      - key: door
        value: "*"
        share_threshold: true
        rate_limit: {unit: hour, requests_per_unit: 1000}
`

// said is a door's answer with one decision.
type said struct {
	allowed    bool
	remaining  int64 // of the nearest limit; untold if there is none
	retryAfter int64 // in the door's unit, rounded up; algo.Never
}

// untold stands for a value that is not said.
const untold = math.MinInt64

// teller is a door that is asked for a path, in the name of the door.
type teller struct {
	name string
	unit int64 // of its times, in µs
	ask  func(t *testing.T, path string) said
	// unsaid: the door does not tell what remains.
	unsaid bool
}

// TestSameness: the same request through every door on the same rules gives the same decision,
// remaining and retry_after, in whatever unit the door tells it.
func TestSameness(t *testing.T) {
	t.Parallel()
	var clock servertest.Standing
	clock.Store(time.Date(2026, 11, 22, 8, 59, 41, 300_000_000, time.UTC).UnixMicro())
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(sameRules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{Clock: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.WithRules(set), weir.WithClock(clock.Now))
	if err != nil {
		t.Fatal(err)
	}
	doors := tellers(t, limiter, store)
	paths := []string{"/log", "/bucket", "/fixed", "/window", "/buckets", "/several", "/soft", "/cost", "/nobody",
		"/trial", "/free",
		"/lyft", "/lyft-bucket", "/lyft-trial", "/lyft-free"}
	asked := 0
	for step, wait := range []time.Duration{0, 0, 0, 0, 0, 1234567 * time.Microsecond, 0, 7 * time.Second, 0,
		10100 * time.Millisecond, 0, 0, 41 * time.Second, 0, time.Minute, 0, 0, 0, 0, time.Hour, 0} {
		clock.Add(wait.Microseconds())
		for _, path := range paths {
			want := decided(t, limiter, path, "reference")
			for _, d := range doors {
				got, want := d.ask(t, path), want.in(d.unit)
				if d.unsaid {
					want.remaining = untold
				}
				if path == "/lyft-trial" {
					// Envoy sees the numbers of shadow_mode, as with envoyproxy/ratelimit
					got.remaining = want.remaining
				}
				if got != want {
					t.Errorf("step %d, %s through %s: %+v, want %+v", step, path, d.name, got, want)
				}
				asked++
			}
		}
	}
	if asked < 1000 {
		t.Errorf("only %d requests were asked", asked)
	}
	// What descriptors and attributes spend of one rule is one budget.
	left := decided(t, limiter, "/shared", "reference").remaining
	for _, d := range doors {
		got := d.ask(t, "/shared")
		if left--; !got.allowed || !d.unsaid && got.remaining != left {
			t.Errorf("/shared through %s: %+v, want %d remaining", d.name, got, left)
		}
	}
}

// decided asks the limiter itself. A request that met no enforcing limit has nothing remaining to
// tell.
func decided(t *testing.T, l *weir.Limiter, path, door string) said {
	t.Helper()
	d, err := l.Allow(t.Context(), weir.Request{Domain: "same",
		Attributes: weir.Pairs{{Name: "path", Value: path}, {Name: "door", Value: door}}})
	if err != nil {
		t.Fatal(err)
	}
	s := said{allowed: d.Allowed, remaining: untold, retryAfter: d.RetryAfter}
	if near := d.Nearest(); near != nil {
		s.remaining = near.Remaining
	}
	return s
}

// in rounds the time up to a unit.
func (s said) in(unit int64) said {
	if s.retryAfter != algo.Never {
		s.retryAfter = (s.retryAfter + unit - 1) / unit
	}
	return s
}

func tellers(t *testing.T, l *weir.Limiter, store store.Store) []teller {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	at, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	identity, err := httplimit.ParseIdentity(map[string]string{"door": "header:X-Door"}, "")
	if err != nil {
		t.Fatal(err)
	}
	serve := func(h http.Handler) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	service := rls.New(l, rls.Options{ResponseHeaders: true})
	api := serve(httpapi.New(l, httpapi.Options{
		JSON: rls.NewJSON(service, func(*http.Request) bool { return true }),
		ForwardAuth: forwardauth.New(l, forwardauth.Options{
			Identity: identity, ClientIP: httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
		}),
	}))
	// check makes the request of a proxy that asks about another one.
	check := func(family, prefix string) func(path string) *http.Request {
		return func(path string) *http.Request {
			r, _ := http.NewRequest(http.MethodGet, api+"/api/v1/forward-auth/"+family, nil)
			r.Header.Set(prefix+"-Method", "GET")
			r.Header.Set(prefix+"-Uri", path+"?not=looked-at")
			r.Header.Set("X-Forwarded-For", "192.0.2.1")
			return r
		}
	}
	p, err := proxy.New(l, proxy.Options{Upstream: at, Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New(l, httplimit.Options{Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	list := []teller{
		postTeller("post", api, "/api/v1/limit", `{"attributes": {"path": %q, "door": "post"}}`,
			func(body []byte) (judgement, error) {
				var v judgement
				return v, json.Unmarshal(body, &v)
			}),
		postTeller("batch", api, "/api/v1/limit/batch", `{"requests": [{"attributes": {"path": %q, "door": "batch"}}]}`,
			func(body []byte) (judgement, error) {
				var v struct{ Responses []judgement }
				if err := json.Unmarshal(body, &v); err != nil || len(v.Responses) != 1 {
					return judgement{}, fmt.Errorf("%s: %v", body, err)
				}
				return v.Responses[0], nil
			}),
		queryTeller(api),
		rlsTeller(t, service),
		jsonTeller(api),
		headerTeller("proxy", http.StatusTooManyRequests, servertest.Below(serve(p))),
		headerTeller("httplimit", http.StatusTooManyRequests,
			servertest.Below(serve(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))))),
		headerTeller("forwarded", http.StatusTooManyRequests, check("forwarded", "X-Forwarded")),
		headerTeller("nginx", http.StatusForbidden, check("nginx", "X-Original")),
		respTeller(t, l, store),
		grpcTeller(t, l),
	}
	// Without it the other doors are compared, and the skip of a subtest says so.
	installed := false
	t.Run("haproxy", func(t *testing.T) { installed = servertest.HaproxyPath(t) != "" })
	if installed {
		list = append(list, headerTeller("haproxy", http.StatusTooManyRequests,
			servertest.Below("http://"+servertest.StartHAProxy(t, spoeAgent(t, l), at.Host))))
	}
	return list
}

// judgement is the JSON of the HTTP API.
type judgement struct {
	Allowed    bool
	RetryAfter *float64 `json:"retry_after"`
	Limits     []struct {
		Allowed    bool
		Shadow     bool
		Limit      int64
		Remaining  int64
		RetryAfter *float64 `json:"retry_after"`
		ResetAfter float64  `json:"reset_after"`
	}
}

// said finds the nearest limit as the documentation defines it.
func (v judgement) said() said {
	s := said{allowed: v.Allowed, remaining: untold, retryAfter: algo.Never}
	if v.RetryAfter != nil {
		s.retryAfter = int64(math.Round(*v.RetryAfter * 1e6))
	}
	longest, reset, of := -1.0, -1.0, int64(1)
	for _, l := range v.Limits {
		if l.Shadow {
			continue
		}
		if !v.Allowed {
			retry := math.Inf(1)
			if l.RetryAfter != nil {
				retry = *l.RetryAfter
			}
			if !l.Allowed && retry > longest {
				longest, s.remaining = retry, l.Remaining
			}
			continue
		}
		share, least := l.Remaining*of, s.remaining*l.Limit // as whole numbers
		if s.remaining == untold || share < least || share == least && l.ResetAfter > reset {
			s.remaining, reset, of = l.Remaining, l.ResetAfter, l.Limit
		}
	}
	return s
}

func postTeller(name, base, path, body string, read func([]byte) (judgement, error)) teller {
	return teller{name: name, unit: 1, ask: func(t *testing.T, asked string) said {
		t.Helper()
		answer, err := http.Post(base+path, "application/json", strings.NewReader(fmt.Sprintf(body, asked)))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		v, err := read(text)
		if err != nil {
			t.Fatal(err)
		}
		return v.said()
	}}
}

func queryTeller(base string) teller {
	return teller{name: "get", unit: 1, ask: func(t *testing.T, path string) said {
		t.Helper()
		_, _, body := servertest.Get(t, base+"/api/v1/limit?door=get&path="+url.QueryEscape(path))
		var v judgement
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		return v.said()
	}}
}

func rlsTeller(t *testing.T, service *rls.Service) teller {
	g := rls.NewServer(service, rls.ServerOptions{})
	conn, err := grpc.NewClient(listening(t, g.Serve, g.Shutdown),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := rlspb.NewRateLimitServiceClient(conn)
	return teller{name: "rls", unit: 1e6, ask: func(t *testing.T, path string) said {
		t.Helper()
		answer, err := client.ShouldRateLimit(t.Context(),
			&rlspb.RateLimitRequest{Domain: "same", Descriptors: []*ratelimitpb.RateLimitDescriptor{{
				Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "path", Value: path}, {Key: "door", Value: "rls"}},
			}}})
		if err != nil {
			t.Fatal(err)
		}
		header := http.Header{}
		for _, h := range answer.ResponseHeadersToAdd {
			header.Set(h.Key, h.Value)
		}
		return saidInHeaders(t, answer.OverallCode == rlspb.RateLimitResponse_OK, header, "RateLimit-Remaining")
	}}
}

// saidInHeaders reads what a door that answers in headers tells.
func saidInHeaders(t *testing.T, allowed bool, h http.Header, remaining string) said {
	t.Helper()
	number := func(name string, missing int64) int64 {
		text := h.Get(name)
		if text == "" {
			return missing
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	out := said{allowed: allowed, remaining: number(remaining, untold)}
	if !allowed {
		out.retryAfter = number("Retry-After", algo.Never)
	}
	return out
}

func jsonTeller(base string) teller {
	return teller{name: "json", unit: 1e6, ask: func(t *testing.T, path string) said {
		t.Helper()
		answer, err := http.Post(base+"/json", "application/json", strings.NewReader(fmt.Sprintf(
			`{"domain": "same", "descriptors": [{"entries": [{"key": "path", "value": %q}, {"key": "door", "value": "json"}]}]}`, path)))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var v struct {
			OverallCode          string
			ResponseHeadersToAdd []struct{ Key, Value string }
		}
		if err := json.NewDecoder(answer.Body).Decode(&v); err != nil {
			t.Fatal(err)
		}
		header := http.Header{}
		for _, h := range v.ResponseHeadersToAdd {
			header.Set(h.Key, h.Value)
		}
		return saidInHeaders(t, v.OverallCode == "OK", header, "RateLimit-Remaining")
	}}
}

// headerTeller reads a door that answers in headers. ask makes the request.
func headerTeller(name string, refused int, ask func(path string) *http.Request) teller {
	return teller{name: name, unit: 1e6, ask: func(t *testing.T, path string) said {
		t.Helper()
		r := ask(path)
		r.Header.Set("X-Door", name)
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != http.StatusOK && answer.StatusCode != refused {
			t.Fatalf("%s: %s", path, answer.Status)
		}
		return saidInHeaders(t, answer.StatusCode == http.StatusOK, answer.Header, "X-RateLimit-Remaining")
	}}
}

func grpcTeller(t *testing.T, l *weir.Limiter) teller {
	t.Helper()
	gate, err := grpclimit.New(l, grpclimit.Options{Identity: map[string]string{"door": "x-door"}})
	if err != nil {
		t.Fatal(err)
	}
	return teller{name: "grpclimit", unit: 1, unsaid: true, ask: func(t *testing.T, path string) said {
		t.Helper()
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-door", "grpclimit"))
		_, err := gate.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: path},
			func(context.Context, any) (any, error) { return nil, nil })
		if err == nil {
			return said{allowed: true, remaining: untold}
		}
		s := status.Convert(err)
		if s.Code() != codes.ResourceExhausted {
			t.Fatal(err)
		}
		out := said{remaining: untold, retryAfter: algo.Never}
		for _, d := range s.Details() {
			if retry, ok := d.(*errdetails.RetryInfo); ok {
				out.retryAfter = retry.RetryDelay.AsDuration().Microseconds()
			}
		}
		return out
	}}
}

// listening serves on a free port until the test ends.
func listening(t *testing.T, serve func(net.Listener) error, shutdown func(context.Context) error) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience.Left(t))
		defer cancel()
		if err := errors.Join(shutdown(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// respTeller asks as a Redis client.
func respTeller(t *testing.T, l *weir.Limiter, store store.Store) teller {
	s := resp.New(l, store, resp.Options{})
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{listening(t, s.Serve, s.Shutdown)},
		ForceSingleClient: true, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return teller{name: "resp", unit: 1000, ask: func(t *testing.T, path string) said {
		t.Helper()
		answer, err := client.Do(t.Context(), client.B().Arbitrary("WEIR.LIMIT", "same", "1", "path", path, "door",
			"resp").Build()).ToArray()
		if err != nil || len(answer) != 6 {
			t.Fatal(answer, err)
		}
		var n [5]int64
		for i := range n {
			if n[i], err = answer[i].AsInt64(); err != nil {
				t.Fatal(err)
			}
		}
		out := said{allowed: n[0] == 1, remaining: n[2], retryAfter: n[3]}
		if out.remaining < 0 {
			out.remaining = untold
		}
		return out
	}}
}

func spoeAgent(t *testing.T, l *weir.Limiter) string {
	a := spoe.New(l, spoe.Options{})
	return listening(t, a.Serve, a.Shutdown)
}
