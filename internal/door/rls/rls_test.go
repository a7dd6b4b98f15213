package rls

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// start is the virtual time at which tests begin: a Thursday, and the start of a second, minute,
// hour, day and week; the 24th day of a month of 30 days, and the 14th of a year of 365.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bed is a server on a free port over an embedded store with a virtual clock.
type bed struct {
	limiter *weir.Limiter
	rls     *Service
	server  *Server
	addr    string
	conn    *grpc.ClientConn
	client  rlspb.RateLimitServiceClient
	now     atomic.Int64
}

func newBed(t testing.TB, rules string, o Options, so ServerOptions) *bed {
	t.Helper()
	return newBedOn(t, rules, o, so, func(s store.Store) store.Store { return s })
}

// newBedOn is newBed over what wrap makes of the store.
func newBedOn(t testing.TB, rules string, o Options, so ServerOptions,
	wrap func(store.Store) store.Store, more ...weir.Option) *bed {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		t.Fatalf("rules do not load: %v\n%s", err, rules)
	}
	b := &bed{}
	b.now.Store(start.UnixMicro())
	inner, err := memory.New(memory.Options{Clock: b.now.Load})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	if b.limiter, err = weir.New(wrap(inner), append(more, weir.WithRules(set))...); err != nil {
		t.Fatal(err)
	}
	b.serve(t, o, so)
	return b
}

// serve opens the door over b.limiter, and a connection to it.
func (b *bed) serve(t testing.TB, o Options, so ServerOptions) {
	t.Helper()
	o.Logger = doortest.LogTo(func(m string) { t.Error(m) })
	b.rls = New(b.limiter, o)
	b.server = NewServer(b.rls, so)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	done := make(chan error, 1)
	go func() { done <- b.server.Serve(l) }()
	b.conn = dial(t, b.addr)
	b.client = rlspb.NewRateLimitServiceClient(b.conn)
	t.Cleanup(func() {
		b.server.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

func dial(t testing.TB, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (b *bed) ask(t testing.TB, ask string) string {
	t.Helper()
	request := parseRequest(t, ask)
	answer, err := b.client.ShouldRateLimit(context.Background(), request)
	return show(answer, err)
}

// parseRequest reads "domain+hits: key=value key=value; key=value @5/HOUR +3": a request of two
// descriptors. +3 are a descriptor's own hits, -3 the same as a refund, - a refund without a number
// of its own, @5/4 a limit of its own, with the unit by name or number.
func parseRequest(t testing.TB, s string) *rlspb.RateLimitRequest {
	t.Helper()
	number := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("bad test request %q: %v", s, err)
		}
		return n
	}
	head, rest, ok := strings.Cut(s, ":")
	if !ok {
		t.Fatalf("bad test request %q", s)
	}
	m := &rlspb.RateLimitRequest{}
	domain, hits, ok := strings.Cut(head, "+")
	m.Domain = domain
	if ok {
		m.HitsAddend = uint32(number(hits))
	}
	if strings.TrimSpace(rest) == "" {
		return m
	}
	for _, part := range strings.Split(rest, ";") {
		d := &ratelimitpb.RateLimitDescriptor{}
		for _, token := range strings.Fields(part) {
			switch {
			case token == "none":
			case token == "-":
				d.IsNegativeHits = true
			case token[0] == '-':
				d.IsNegativeHits = true
				d.HitsAddend = wrapperspb.UInt64(number(token[1:]))
			case token[0] == '+':
				d.HitsAddend = wrapperspb.UInt64(number(token[1:]))
			case token[0] == '@':
				requests, unit, _ := strings.Cut(token[1:], "/")
				u, ok := typepb.RateLimitUnit_value[unit]
				if !ok {
					u = int32(number(unit))
				}
				d.Limit = &ratelimitpb.RateLimitDescriptor_RateLimitOverride{
					RequestsPerUnit: uint32(number(requests)), Unit: typepb.RateLimitUnit(u)}
			default:
				key, value, _ := strings.Cut(token, "=")
				d.Entries = append(d.Entries, &ratelimitpb.RateLimitDescriptor_Entry{Key: key, Value: value})
			}
		}
		m.Descriptors = append(m.Descriptors, d)
	}
	return m
}

// show writes an answer as "OVER_LIMIT: OVER_LIMIT name 5/HOUR left 0 reset 3600; OK".
func show(m *rlspb.RateLimitResponse, err error) string {
	if err != nil {
		s := status.Convert(err)
		return fmt.Sprintf("%v: %s", s.Code(), s.Message())
	}
	parts := make([]string, len(m.Statuses))
	for i, s := range m.Statuses {
		parts[i] = s.Code.String()
		if l := s.CurrentLimit; l != nil {
			if l.Name != "" {
				parts[i] += " " + l.Name
			}
			parts[i] += fmt.Sprintf(" %d/%s left %d", l.RequestsPerUnit, l.Unit, s.LimitRemaining)
		} else if s.LimitRemaining != 0 {
			parts[i] += fmt.Sprintf(" left %d", s.LimitRemaining)
		}
		if s.DurationUntilReset != nil {
			parts[i] += " reset " + strconv.FormatInt(s.DurationUntilReset.Seconds, 10)
			if s.DurationUntilReset.Nanos != 0 {
				parts[i] += " and a fraction"
			}
		}
	}
	return m.OverallCode.String() + ": " + strings.Join(parts, "; ")
}

type step struct {
	at   time.Duration // since start
	ask  string
	want string
}

type testCase struct {
	name        string
	descriptors []string // in YAML's flow style, of the domain d
	limits      []string // native ones, the same
	more        string   // more of the file
	steps       []step
}

func (c *testCase) file() string {
	text := "domain: d\n" + c.more
	if c.descriptors != nil {
		text += "descriptors:\n- " + strings.Join(c.descriptors, "\n- ") + "\n"
	}
	if c.limits != nil {
		text += "limits:\n- " + strings.Join(c.limits, "\n- ") + "\n"
	}
	return text
}

func TestRLS(t *testing.T) {
	if len(cases) < 60 {
		t.Fatalf("only %d cases", len(cases))
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, c.file(), Options{}, ServerOptions{})
			for i, s := range c.steps {
				b.now.Store(start.Add(s.at).UnixMicro())
				if got := b.ask(t, s.ask); got != s.want {
					t.Fatalf("step %d at %v: %s\n got %s\nwant %s\nrules:\n%s", i+1, s.at, s.ask, got, s.want, c.file())
				}
			}
		})
	}
}

// TestRLSMessage runs the same table through ShouldRateLimit itself, which makes messages instead
// of bytes.
func TestRLSMessage(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, c.file(), Options{}, ServerOptions{})
			for i, s := range c.steps {
				b.now.Store(start.Add(s.at).UnixMicro())
				if got := show(b.rls.ShouldRateLimit(context.Background(), parseRequest(t, s.ask))); got != s.want {
					t.Fatalf("step %d at %v: %s\n got %s\nwant %s", i+1, s.at, s.ask, got, s.want)
				}
			}
		})
	}
}
