package envoytest_test

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

type (
	action   = rlqs.RateLimitQuotaResponse_BucketAction
	strategy = typepb.RateLimitStrategy
)

func sizeOf(m proto.Message) int { return proto.Size(m) }

const (
	year = 365 * 24 * time.Hour
	long = time.Hour // a life that no test sees the end of
)

func denyAll() *strategy  { return blanket(typepb.RateLimitStrategy_DENY_ALL) }
func allowAll() *strategy { return blanket(typepb.RateLimitStrategy_ALLOW_ALL) }

func blanket(r typepb.RateLimitStrategy_BlanketRule) *strategy {
	return &strategy{Strategy: &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: r}}
}

// tokens is a token bucket of most tokens that gets fill each interval.
func tokens(most, fill uint32, interval time.Duration) *strategy {
	return &strategy{Strategy: &typepb.RateLimitStrategy_TokenBucket{TokenBucket: &typepb.TokenBucket{
		MaxTokens: most, TokensPerFill: wrapperspb.UInt32(fill), FillInterval: durationpb.New(interval),
	}}}
}

// units are n tokens and none after them.
func units(n uint32) *strategy { return tokens(n, 1, year) }

// perSecond is the strategy that Envoy's API has and Envoy has not.
func perSecond(n uint64) *strategy {
	return &strategy{Strategy: &typepb.RateLimitStrategy_RequestsPerTimeUnit_{RequestsPerTimeUnit: &typepb.RateLimitStrategy_RequestsPerTimeUnit{
		RequestsPerTimeUnit: n, TimeUnit: typepb.RateLimitUnit_SECOND,
	}}}
}

// bucket is one of Envoy's, with a client of one connection, so that one of Envoy's threads serves
// all its requests.
type bucket struct {
	t                         testing.TB
	server                    *server
	url, name, settings       string
	client                    *http.Client
	asked, admitted, refused  int
	headers                   http.Header
	markers                   *atomic.Int64
	lastAdmitted, lastRefused time.Time
}

// with returns the bucket for a client of another connection.
func (b *bucket) with(t testing.TB) *bucket {
	c := *b
	c.client = client(t)
	return &c
}

func client(t testing.TB) *http.Client {
	tr := &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// id returns the bucket's id, as Envoy builds it.
func (b *bucket) id() *rlqs.BucketId {
	return &rlqs.BucketId{Bucket: map[string]string{"case": b.name}}
}

// to is an action that assigns s to the bucket; ttl < 0 is none.
func (b *bucket) to(s *strategy, ttl time.Duration) *action {
	a := &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{RateLimitStrategy: s}
	if ttl >= 0 {
		a.AssignmentTimeToLive = durationpb.New(ttl)
	}
	return &action{BucketId: b.id(),
		BucketAction: &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{QuotaAssignmentAction: a}}
}

// abandoned is the action that makes Envoy forget the bucket.
func (b *bucket) abandoned() *action {
	return &action{BucketId: b.id(), BucketAction: &rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction_{
		AbandonAction: &rlqs.RateLimitQuotaResponse_BucketAction_AbandonAction{},
	}}
}

// ask sends a request and reports whether Envoy has admitted it.
func (b *bucket) ask() bool {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.url, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("X-Case", b.name)
	r.Header.Set("X-Settings", b.settings)
	answer, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		b.t.Fatal(err)
	}
	b.asked++
	b.headers = answer.Header
	switch answer.StatusCode {
	case http.StatusOK:
		b.admitted++
		b.lastAdmitted = time.Now()
		return true
	case http.StatusTooManyRequests:
		b.refused++
		b.lastRefused = time.Now()
		return false
	}
	b.t.Fatalf("status %d", answer.StatusCode)
	return false
}

// askTimes sends n requests and returns how many were admitted.
func (b *bucket) askTimes(n int) (admitted int) {
	b.t.Helper()
	for range n {
		if b.ask() {
			admitted++
		}
	}
	return admitted
}

// drain sends requests until one is refused, and returns how many were admitted before it.
func (b *bucket) drain() (admitted int) {
	b.t.Helper()
	for b.ask() {
		if admitted++; admitted > 5000 {
			b.t.Fatalf("the bucket %s admits everything", b.name)
		}
	}
	return admitted
}

// want checks how many of n requests are admitted.
func (b *bucket) want(what string, admitted, n int) {
	b.t.Helper()
	if got := b.askTimes(n); got != admitted {
		b.t.Errorf("%s: %d of %d requests were admitted, want %d", what, got, n, admitted)
	}
}

// subscribe sends the bucket's first request and waits until the server has heard of it.
func (b *bucket) subscribe() *bucket {
	b.t.Helper()
	before := len(b.server.of(b.name))
	b.ask()
	patience.Until(b.t, "the server hears of a new bucket", func() bool { return len(b.server.of(b.name)) > before })
	return b
}

// assign sends actions in one response and waits until they are in force for this client. What
// tells that they are is a bucket of its own, that the same response allows behind them.
func (b *bucket) assign(actions ...*action) {
	b.t.Helper()
	m := *b
	m.name, m.settings = fmt.Sprint("marker-", b.markers.Add(1)), "deny"
	m.subscribe()
	b.server.answer(append(actions, m.to(allowAll(), long))...)
	patience.Until(b.t, "an assignment is in force", m.ask)
	// Nothing of it is to be left in the reports that follow.
	b.server.answer(m.abandoned())
}

// reported returns the sum of the reports on the bucket.
func (b *bucket) reported() (allowed, denied int) {
	for _, u := range b.server.of(b.name) {
		allowed += int(u.allowed)
		denied += int(u.denied)
	}
	return allowed, denied
}
