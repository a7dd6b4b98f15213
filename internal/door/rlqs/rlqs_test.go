package rlqs

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door/rls"
	"github.com/weir-rl/weir/internal/leasing/broker"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

const rules = `
domain: edge
exempt: {tenant: internal}
limits:
  - name: tenant
    per: [tenant]
    allow: 6000/hour
    algorithm: token_bucket
    consistency: {lease: 25%, for: 11s}
  - name: fast
    when: {route: fast}
    allow: 1000/s
    algorithm: token_bucket
    consistency: {lease: 50%}
  - name: trial
    when: {route: trial}
    per: [route]
    allow: 50/hour
    algorithm: fixed_window
    on_limit: shadow
  - name: exact
    when: {route: exact}
    allow: 10/hour
    algorithm: leaky_bucket
  - name: nothing
    when: {route: nothing}
    allow: 0/s
`

// door is a served Service.
type door struct {
	*Service
	limiter *weir.Limiter
	store   *memory.Store
	conn    *grpc.ClientConn
	server  *rls.Server
}

func load(t testing.TB, text string, o file.Options) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(text)}}, o)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newDoor(t testing.TB, o Options, options ...weir.Option) *door {
	t.Helper()
	s, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return newDoorOver(t, s, s, rules, o, options...)
}

// newDoorOver is newDoor over a store that wraps m.
func newDoorOver(t testing.TB, m *memory.Store, s store.Store, text string, o Options, options ...weir.Option) *door {
	t.Helper()
	l, err := weir.New(s, append(options, weir.WithRules(load(t, text, file.Options{})))...)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Service: New(l, s, o), limiter: l, store: m}
	d.server = rls.NewServer(rls.New(l, rls.Options{}), rls.ServerOptions{Beside: d.Register})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go d.server.Serve(listener) //nolint:errcheck // ends with Stop
	t.Cleanup(d.server.Stop)
	d.conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.conn.Close() })
	return d
}

// client is an Envoy's end of a stream.
type client struct {
	t testing.TB
	rlqspb.RateLimitQuotaService_StreamRateLimitQuotasClient
}

func (d *door) stream(t testing.TB) client {
	t.Helper()
	c, err := rlqspb.NewRateLimitQuotaServiceClient(d.conn).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return client{t, c}
}

func id(entries ...string) *rlqspb.BucketId {
	m := map[string]string{}
	for i := 0; i < len(entries); i += 2 {
		m[entries[i]] = entries[i+1]
	}
	return &rlqspb.BucketId{Bucket: m}
}

// report sends a report of one bucket.
func (c client) report(allowed, denied uint64, entries ...string) {
	c.t.Helper()
	c.send("edge", &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId: id(entries...), NumRequestsAllowed: allowed, NumRequestsDenied: denied, TimeElapsed: durationpb.New(broker.Interval),
	})
}

func (c client) send(domain string, usages ...*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage) {
	c.t.Helper()
	if err := c.Send(&rlqspb.RateLimitQuotaUsageReports{Domain: domain, BucketQuotaUsages: usages}); err != nil {
		c.t.Fatal(err)
	}
}

// answer returns the last assignment of the next response, and how many actions there were.
func (c client) answer() (s *typepb.RateLimitStrategy, actions int) {
	c.t.Helper()
	m, err := c.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	list := m.GetBucketAction()
	q := list[len(list)-1].GetQuotaAssignmentAction()
	if q == nil {
		return nil, len(list)
	}
	if ttl := q.GetAssignmentTimeToLive(); ttl.GetSeconds() < 1 || ttl.GetNanos() != 0 {
		c.t.Errorf("an assignment lives for %v", ttl)
	}
	return q.GetRateLimitStrategy(), len(list)
}

// ends returns the code with which the stream ends.
func (c client) ends() codes.Code {
	for {
		if _, err := c.Recv(); err != nil {
			return status.Code(err)
		}
	}
}

// out is what a limit lends at the moment, and remains.
func (d *door) out(t testing.TB, limit string, attributes rule.Map) (out, remaining int64) {
	t.Helper()
	var decision weir.Decision
	r := weir.Request{Domain: "edge", Attributes: attributes, Peek: true}
	for _, c := range d.limiter.Phases().Charges(&r, &decision) {
		if c.Counter.Rule != limit {
			continue
		}
		ahead, results := make([]algo.Ahead, 1), make([]algo.Result, 1)
		if _, _, err := d.store.TakeAhead(t.Context(), 0, 0, []store.Charge{c}, ahead, results); err != nil {
			t.Fatal(err)
		}
		return ahead[0].Out, results[0].Remaining
	}
	t.Fatalf("%v does not meet %s", attributes, limit)
	return 0, 0
}

func TestAssigns(t *testing.T) {
	for _, c := range []struct {
		name    string
		entries []string
		want    func(s *typepb.RateLimitStrategy, actions int) bool
	}{
		{"units", []string{"tenant", "acme"}, func(s *typepb.RateLimitStrategy, n int) bool {
			return n == 2 && s.GetTokenBucket().GetMaxTokens() == 5 &&
				s.GetTokenBucket().GetFillInterval().GetSeconds() > 1e7
		}},
		{"a rate", []string{"route", "fast"}, func(s *typepb.RateLimitStrategy, n int) bool {
			b := s.GetTokenBucket()
			return n == 2 && b.GetMaxTokens() >= 1 && b.GetFillInterval().GetSeconds() <= 10 &&
				b.GetTokensPerFill().GetValue() >= 1
		}},
		{"exempt", []string{"tenant", "internal"}, isAll(typepb.RateLimitStrategy_ALLOW_ALL)},
		{"no limit", []string{"route", "other"}, isAll(typepb.RateLimitStrategy_ALLOW_ALL)},
		{"shadow", []string{"route", "trial"}, isAll(typepb.RateLimitStrategy_ALLOW_ALL)},
		{"a limit that cannot lend", []string{"route", "exact"}, isAll(typepb.RateLimitStrategy_DENY_ALL)},
		{"a limit of nothing", []string{"route", "nothing"}, isAll(typepb.RateLimitStrategy_DENY_ALL)},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newDoor(t, Options{}).stream(t)
			e.report(0, 1, c.entries...)
			if s, n := e.answer(); !c.want(s, n) {
				t.Errorf("%d actions, the last is %v", n, s)
			}
		})
	}
}

func isAll(r typepb.RateLimitStrategy_BlanketRule) func(s *typepb.RateLimitStrategy, n int) bool {
	return func(s *typepb.RateLimitStrategy, n int) bool {
		b, ok := s.GetStrategy().(*typepb.RateLimitStrategy_BlanketRule_)
		return n == 1 && ok && b.BlanketRule == r
	}
}

// TestOneBudget: what is assigned is gone for other doors, and what is reported is charged.
func TestOneBudget(t *testing.T) {
	d := newDoor(t, Options{Settings: broker.Settings{First: 1000, Buckets: 10}})
	e := d.stream(t)
	acme := rule.Map{"tenant": "acme"}
	e.report(0, 1, "tenant", "acme")
	if s, _ := e.answer(); s.GetTokenBucket().GetMaxTokens() != 1000 {
		t.Fatalf("%v", s)
	}
	if out, remaining := d.out(t, "tenant", acme); out != 1000 || remaining != 5000 {
		t.Errorf("%d are out, and %d remain", out, remaining)
	}
	for range 5000 {
		if dec, err := d.limiter.Allow(context.Background(), weir.Request{Domain: "edge", Attributes: acme}); err != nil || !dec.Allowed {
			t.Fatalf("%+v, %v", dec, err)
		}
	}
	// A few may have come back since the first one; not a thousand.
	refused := false
	for range 100 {
		dec, err := d.limiter.Allow(context.Background(), weir.Request{Domain: "edge", Attributes: acme})
		if err != nil {
			t.Fatal(err)
		}
		refused = refused || !dec.Allowed
	}
	if !refused {
		t.Error("another door spends what was assigned")
	}
	if s := d.Stats(); s.Streams != 1 || s.Buckets != 1 ||
		s.Limits[weir.RuleName{Domain: "edge", Name: "tenant"}].Assigned != 1000 {
		t.Errorf("%+v", s)
	}
}

// TestShadowCharged: limits in shadow are charged by the reports.
func TestShadowCharged(t *testing.T) {
	d := newDoor(t, Options{})
	e := d.stream(t)
	e.report(0, 1, "route", "trial")
	e.answer()
	e.report(30, 0, "route", "trial")
	e.answer()
	dec, err := d.limiter.Allow(context.Background(),
		weir.Request{Domain: "edge", Attributes: rule.Map{"route": "trial"}, Peek: true})
	if err != nil || len(dec.Limits) != 1 || dec.Limits[0].Remaining != 20 {
		t.Errorf("%+v, %v", dec.Limits, err)
	}
}

// TestPushes: bans, grants and rules are in force without a report.
func TestPushes(t *testing.T) {
	d := newDoor(t, Options{look: 10 * time.Millisecond})
	e := d.stream(t)
	e.report(0, 1, "tenant", "acme")
	e.answer()
	for {
		if _, err := d.limiter.Grants().Set(context.Background(), "edge", "tenant", []string{"acme"}, "unlimited", time.Now().Add(time.Hour), "test"); err != nil {
			t.Fatal(err)
		}
		if s, n := e.answer(); isAll(typepb.RateLimitStrategy_ALLOW_ALL)(s, n) {
			break
		}
	}
	d.limiter.SetRules(load(t, strings.ReplaceAll(rules, "6000/hour", "0/hour"), file.Options{}))
	if _, err := d.limiter.Grants().Revoke(context.Background(), "edge", "tenant", []string{"acme"}); err != nil {
		t.Fatal(err)
	}
	for {
		if s, n := e.answer(); isAll(typepb.RateLimitStrategy_DENY_ALL)(s, n) {
			break
		}
	}
}

// TestUsedUp: a bucket that has used up its limit gets units that come back, without a report: by a
// reset on another node, and by a grant.
func TestUsedUp(t *testing.T) {
	acme := rule.Map{"tenant": "acme"}
	for name, more := range map[string]func(d *door) error{
		"reset": func(d *door) error {
			var decision weir.Decision
			c := d.limiter.Phases().Charges(&weir.Request{Domain: "edge", Attributes: acme, Peek: true}, &decision)[0]
			_, err := d.store.Reset(t.Context(), c.Counter, c.Key)
			return err
		},
		"grant": func(d *door) error {
			_, err := d.limiter.Grants().Set(t.Context(), "edge", "tenant", []string{"acme"}, "60000/hour",
				time.Now().Add(time.Hour), "test")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDoor(t, Options{})
			if dec, err := d.limiter.Allow(t.Context(), weir.Request{Domain: "edge", Attributes: acme, Hits: 6000}); err != nil || !dec.Allowed {
				t.Fatalf("%+v, %v", dec, err)
			}
			e := d.stream(t)
			e.report(0, 1, "tenant", "acme")
			if s, n := e.answer(); !isAll(typepb.RateLimitStrategy_DENY_ALL)(s, n) {
				t.Fatalf("%v", s)
			}
			if err := more(d); err != nil {
				t.Fatal(err)
			}
			if s, _ := e.answer(); s.GetTokenBucket().GetMaxTokens() != 5 {
				t.Errorf("%v", s)
			}
		})
	}
}

// TestLent: limits of a domain of rlqs.domains lend a tenth, and decisions do not lease it.
func TestLent(t *testing.T) {
	d := newDoor(t, Options{})
	d.limiter.SetRules(
		load(t, "domain: edge\nlimits: [{name: tenant, per: [tenant], allow: 6000/hour, algorithm: token_bucket}]",
			file.Options{Lend: []string{"edge"}}))
	e := d.stream(t)
	e.report(0, 1, "tenant", "acme")
	if s, _ := e.answer(); s.GetTokenBucket().GetMaxTokens() != 5 {
		t.Errorf("%v", s)
	}
	if out, _ := d.out(t, "tenant", rule.Map{"tenant": "acme"}); out != 5 {
		t.Errorf("%d are out", out)
	}
}

// TestScheduleTurns: where the schedule of a limit turns, a bucket gets what the next entry allows,
// without a report, and nothing before. The clock of the test is at the end of a day.
func TestScheduleTurns(t *testing.T) {
	const text = "domain: edge\nlimits: [{name: timed, per: [tenant], allow: 6000/30d, algorithm: token_bucket, timezone: UTC, " +
		"consistency: {lease: 25%, for: 11s}, schedule: [{between: \"00:00-01:00\", allow: 60000/30d}]}]"
	midnight := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC).UnixMicro()
	// A machine that is busy may not have asked before the turn, and is then given more time.
	for left := time.Second / 4; ; left *= 2 {
		began := time.Now()
		clock := func() int64 { return midnight + (time.Since(began) - left).Microseconds() }
		m, err := memory.New(memory.Options{Clock: clock})
		if err != nil {
			t.Fatal(err)
		}
		d := newDoorOver(t, m, m, text, Options{}, weir.WithClock(clock))
		acme := rule.Map{"tenant": "acme"}
		dec, err := d.limiter.Allow(t.Context(), weir.Request{Domain: "edge", Attributes: acme, Hits: 6000})
		if err != nil {
			t.Fatal(err)
		}
		e := d.stream(t)
		e.report(0, 1, "tenant", "acme")
		s, n := e.answer()
		if clock() >= midnight {
			continue
		}
		if !dec.Allowed || !isAll(typepb.RateLimitStrategy_DENY_ALL)(s, n) {
			t.Fatalf("before the turn: %+v, %v", dec, s)
		}
		for s.GetTokenBucket() == nil {
			s, _ = e.answer()
		}
		if early := midnight - clock(); early > 0 || s.GetTokenBucket().GetMaxTokens() < 5 {
			t.Errorf("%v, %d µs before the turn", s, early)
		}
		return
	}
}

func TestRefuses(t *testing.T) {
	usage := func(entries ...string) *rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage {
		return &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: id(entries...)}
	}
	for _, c := range []struct {
		name string
		send func(c client)
		want codes.Code
	}{
		{"no domain", func(c client) { c.send("", usage("a", "b")) }, codes.InvalidArgument},
		{"a long domain", func(c client) { c.send(strings.Repeat("x", maxDomain+1), usage("a", "b")) }, codes.InvalidArgument},
		{"another domain", func(c client) { c.send("edge"); c.send("other") }, codes.InvalidArgument},
		{"a large message", func(c client) { _ = c.Send(&rlqspb.RateLimitQuotaUsageReports{Domain: strings.Repeat("x", 2<<20)}) }, codes.ResourceExhausted},
		{"a flood", func(c client) {
			m := &rlqspb.RateLimitQuotaUsageReports{Domain: "edge"}
			for c.Send(m) == nil {
			}
		}, codes.ResourceExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDoor(t, Options{})
			e := d.stream(t)
			c.send(e)
			if got := e.ends(); got != c.want {
				t.Errorf("the stream ended with %v, not with %v", got, c.want)
			}
			patience.Until(t, "the stream is gone", func() bool { return d.Stats().Streams == 0 })
		})
	}
}

// TestBadIDs: a bucket whose id is not taken is refused and forgotten, and the others are served.
func TestBadIDs(t *testing.T) {
	many := id()
	for i := range maxEntries + 1 {
		many.Bucket[fmt.Sprint(i)] = "x"
	}
	for _, c := range []struct {
		name     string
		id       *rlqspb.BucketId
		answered bool
	}{
		{"none", nil, false},
		{"no entries", id(), false},
		{"an empty key", id("", "b"), false},
		{"an empty value", id("a", ""), false},
		{"many entries", many, true},
		{"a long key", id(strings.Repeat("x", maxText+1), "a"), true},
		{"a long value", id("a", strings.Repeat("x", maxText+1)), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			d := newDoor(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			e := d.stream(t)
			for _, elapsed := range []time.Duration{0, broker.Interval} {
				e.send("edge", &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: c.id, NumRequestsDenied: 1,
					TimeElapsed: durationpb.New(elapsed)},
					&rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: id("tenant", "acme"),
						NumRequestsDenied: 1, TimeElapsed: durationpb.New(elapsed)})
				m, err := e.Recv()
				if err != nil {
					t.Fatal(err)
				}
				list := m.GetBucketAction()
				if last := list[len(list)-1]; last.GetBucketId().GetBucket()["tenant"] != "acme" ||
					last.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket().GetMaxTokens() == 0 {
					t.Errorf("another bucket got %v", last)
				}
				first := list[0]
				switch strategy := first.GetQuotaAssignmentAction().GetRateLimitStrategy(); {
				case !c.answered:
					if first.GetBucketId().GetBucket()["tenant"] != "acme" {
						t.Errorf("it was answered with %v", first)
					}
				case elapsed == 0 && !isAll(typepb.RateLimitStrategy_DENY_ALL)(strategy, 1),
					elapsed > 0 && first.GetAbandonAction() == nil:
					t.Errorf("after %v it was answered with %v", elapsed, first)
				}
			}
			if s := d.Stats(); s.Buckets != 1 || s.Streams != 1 || c.answered && s.AbandonedID != 1 {
				t.Errorf("%+v", s)
			}
			if text := log.String(); strings.Count(text, "is not taken") != 1 {
				t.Errorf("the log is %q", text)
			}
		})
	}
}

// TestDecode: a bucket whose id is no text is left out of its report, and a report that is none
// fails.
func TestDecode(t *testing.T) {
	text, err := proto.Marshal(&rlqspb.RateLimitQuotaUsageReports{Domain: "edge",
		BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			{BucketId: id("tenant", "acme"), NumRequestsAllowed: 3},
			{BucketId: id("tenant", "??"), NumRequestsAllowed: 4},
			{BucketId: id("tenant", "other"), NumRequestsAllowed: 5},
		}})
	if err != nil {
		t.Fatal(err)
	}
	m, dropped, err := decode(bytes.ReplaceAll(text, []byte("??"), []byte("\xff\xfe")))
	if err != nil || dropped != 1 || m.GetDomain() != "edge" || len(m.GetBucketQuotaUsages()) != 2 ||
		m.BucketQuotaUsages[0].GetNumRequestsAllowed() != 3 ||
		m.BucketQuotaUsages[1].GetBucketId().GetBucket()["tenant"] != "other" {
		t.Errorf("%v, %d left out, %v", m, dropped, err)
	}
	for _, bad := range [][]byte{text[:len(text)-1], bytes.ReplaceAll(text, []byte("edge"), []byte("\xff\xfe\xfd\xfc")),
		{0xff}} {
		if m, _, err := decode(bad); err == nil {
			t.Errorf("%q was taken as %v", bad, m)
		}
	}
}

// TestTooMany: buckets beyond the bound are refused, and forgotten at their next report.
func TestTooMany(t *testing.T) {
	s := broker.Defaults()
	s.Buckets = 2
	d := newDoor(t, Options{Settings: s})
	e := d.stream(t)
	for _, name := range []string{"a", "b"} {
		e.report(0, 1, "tenant", name)
		e.answer()
	}
	e.send("", &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: id("tenant", "c"), NumRequestsDenied: 1})
	if s, n := e.answer(); !isAll(typepb.RateLimitStrategy_DENY_ALL)(s, n) {
		t.Errorf("%v", s)
	}
	e.report(0, 9, "tenant", "c")
	if s, n := e.answer(); s != nil || n != 1 {
		t.Errorf("%v is not to be forgotten", s)
	}
	if s := d.Stats(); s.Buckets != 2 || s.AbandonedMany != 1 {
		t.Errorf("%+v", s)
	}
}

// TestIdle: a bucket without requests is forgotten, and what it had goes back.
func TestIdle(t *testing.T) {
	d := newDoor(t, Options{})
	e := d.stream(t)
	e.report(0, 1, "tenant", "acme")
	e.answer()
	for range 10 {
		e.report(0, 0, "tenant", "acme")
		if s, _ := e.answer(); s == nil {
			patience.Until(t, "no bucket is left", func() bool { return d.Stats().Buckets == 0 })
			return
		}
	}
	t.Error("the bucket is still there")
}

// TestDrain: streams are closed so that Envoy opens them elsewhere, and what was used is told.
func TestDrain(t *testing.T) {
	d := newDoor(t, Options{})
	e := d.stream(t)
	e.report(0, 1, "tenant", "acme")
	e.answer()
	d.Drain()
	if got := e.ends(); got != codes.Unavailable {
		t.Errorf("%v", got)
	}
	if err := d.server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if s := d.Stats(); s.Streams != 0 {
		t.Errorf("%+v", s)
	}
}

// lendless is a store that does not lend.
type lendlessStore struct{ store.Store }

// TestNoLender: the refusal says why, and the log once.
func TestNoLender(t *testing.T) {
	var log bytes.Buffer
	d := newDoor(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	d.lender = nil
	for range 3 {
		e := d.stream(t)
		_, err := e.Recv()
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "lends no units") {
			t.Error(err)
		}
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "lends no units") {
		t.Errorf("the log is %q", text)
	}
	if _, ok := store.As[store.Lender](lendlessStore{d.store}); ok {
		t.Error("a wrapped store lends")
	}
}

// away is a lender that cannot be reached.
type away struct{ store.Lender }

func (away) TakeAhead(context.Context, time.Duration, time.Duration, []store.Charge, []algo.Ahead,
	[]algo.Result) (int64, int64, error) {
	return 0, 0, context.DeadlineExceeded
}

// TestLenderAway: buckets get what the store decides without its other side.
func TestLenderAway(t *testing.T) {
	m, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Nothing comes back while the test runs.
	d := newDoorOver(t, m, m, strings.ReplaceAll(rules, "6000/hour", "6000/30d"), Options{})
	d.lender = away{d.lender}
	e := d.stream(t)
	e.report(0, 1, "tenant", "acme")
	if s, _ := e.answer(); s.GetTokenBucket().GetMaxTokens() != 5 {
		t.Errorf("%v", s)
	}
	if out, remaining := d.out(t, "tenant", rule.Map{"tenant": "acme"}); out != 0 || remaining != 5995 {
		t.Errorf("%d are out, %d remain", out, remaining)
	}
}

// TestReconnects: streams that break leave nothing behind.
func TestReconnects(t *testing.T) {
	d := newDoor(t, Options{})
	n := effort.Of(500, 2500)
	first := d.stream(t)
	first.report(0, 1, "tenant", "0")
	first.answer()
	before := runtime.NumGoroutine()
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		c, err := rlqspb.NewRateLimitQuotaServiceClient(d.conn).StreamRateLimitQuotas(ctx)
		if err != nil {
			t.Fatal(err)
		}
		e := client{t, c}
		e.report(0, 1, "tenant", fmt.Sprint(i%50))
		e.answer()
		cancel()
	}
	patience.Until(t, "only one stream is left",
		func() bool { s := d.Stats(); return s.Streams == 1 && s.Buckets == 1 })
	patience.Until(t, "their goroutines are gone", func() bool { return runtime.NumGoroutine() <= before+10 })
}

// What is left out of the settings is as by default.
func TestSettingsLeftOut(t *testing.T) {
	want := broker.Settings{First: 7, Buckets: broker.Defaults().Buckets}
	if s := New(nil, nil, Options{Settings: broker.Settings{First: 7}}); s.o.Settings != want {
		t.Errorf("%+v, want %+v", s.o.Settings, want)
	}
}
