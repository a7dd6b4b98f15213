package envoytest_test

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/envoytest"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// bed is an Envoy with two quota servers: one for most tests, and one that may hang up.
type bed struct {
	envoy        *envoytest.Envoy
	server, lost *server
	markers      atomic.Int64
}

// bucket returns a bucket of the listener called front.
func (b *bed) bucket(t testing.TB, settings string) *bucket {
	return b.at(t, "front", settings)
}

// at returns a bucket of a listener, that has a name of its own.
func (b *bed) at(t testing.TB, listener, settings string) *bucket {
	t.Helper()
	s := b.server
	if listener == "lost" {
		s = b.lost
	}
	return &bucket{
		t: t, server: s, markers: &b.markers, client: client(t), settings: settings,
		url: "http://" + b.envoy.Address(listener) + "/", name: fmt.Sprint("bucket-", b.markers.Add(1)),
	}
}

// TestMain runs more tests at once than there are processors: they wait for Envoy's clock.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "12"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// TestQuota: what Envoy's filter for rate limit quotas does, and what its API does not say. The
// table in docs/guides/rlqs.md has a line for each. One Envoy with two worker threads serves all.
func TestQuota(t *testing.T) {
	effort.Long(t, "Envoy reports every five seconds")
	b := &bed{}
	clusters := map[string]int{}
	b.server, clusters["quota"] = serve(t)
	b.lost, clusters["lost"] = serve(t)
	b.envoy = envoytest.Start(t, config([]listener{
		{"front", "quota", "quota"}, {"twin", "quota", "quota"}, {"threads", "quota", "quota"}, {"lost", "lost", "lost"},
	}, clusters), "--concurrency", "2", "--log-level", "warning", "--component-log-level", "rate_limit_quota:info")
	// Reports of the clock cover more than one bucket; see server.add.
	for _, listener := range []string{"front", "lost"} {
		for range 2 {
			b.at(t, listener, "allow").subscribe()
		}
	}
	t.Run("all", func(t *testing.T) {
		for _, c := range []struct {
			name string
			test func(*testing.T, *bed)
		}{
			{"without a stream assignments live on, and counts are lost", testLost},
			{"reporting_interval is ignored, all buckets are reported every 5 s", testReportingInterval},
			{"a bucket is reported at once when it is new", testSubscription},
			{"requests_per_time_unit is refused, and what was assigned stays", testRequestsPerTimeUnit},
			{"a token bucket is shared by all threads and starts full", testThreads},
			{"a token bucket is refilled all the time, not each interval", testRefill},
			{"fill_interval counts in whole seconds", testFillInterval},
			{"a fill_interval below a second is no limit at all", testShortInterval},
			{"another number of seconds in fill_interval is no change", testSecondsOnly},
			{"a changed token bucket keeps the share of tokens that was left", testShare},
			{"an equal assignment lives longer and keeps the tokens", testRenewal},
			{"after DENY_ALL in the same response a token bucket is full", testHandOver},
			{"assignment_time_to_live counts in whole seconds", testLife},
			{"an assignment without assignment_time_to_live is over at once", testNoLife},
			{"the fallback of an expired assignment may be a token bucket", testExpired},
			{"the fallback without a time-out is over at once", testExpiredTimeout},
			{"reuse_last_assignment does nothing", testReuse},
			{"no_assignment_behavior decides until the first assignment", testNoAssignment},
			{"an abandoned bucket is forgotten, with what was not reported", testAbandon},
			{"an assignment of an unknown bucket is dropped", testUnknown},
			{"idle buckets are reported for ever", testMany},
			{"each request counts as one", testHits},
			{"a refusal has the headers of the configuration and no numbers", testHeaders},
			{"filters of one domain and cluster share a stream and buckets", testTwins},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, b)
			})
		}
	})
	// Each token bucket of a response writes a line at level info.
	lines := strings.Count(b.envoy.Log(), "new TokenBucket has been configured") +
		strings.Count(b.envoy.Log(), "is carried over during")
	if sent := b.server.tokens + b.lost.tokens; lines != sent {
		t.Errorf("%d token buckets were sent, and Envoy wrote %d lines about them", sent, lines)
	}
}

// attempts calls try until it succeeds, a few times: what one attempt shows may have been undone by
// a machine that stood still.
func attempts(t *testing.T, what string, try func() bool) {
	t.Helper()
	for range 8 {
		if try() {
			return
		}
	}
	t.Error("not seen in 8 attempts: " + what)
}

func testReportingInterval(t *testing.T, b *bed) {
	often, seldom := b.bucket(t, "every second").subscribe(), b.bucket(t, "every minute").subscribe()
	b.server.ticks(t, 3)
	reports := map[int]int{}
	for _, u := range append(b.server.of(often.name)[1:], b.server.of(seldom.name)[1:]...) {
		reports[u.report]++
	}
	both := 0
	for _, n := range reports {
		if n == 2 {
			both++
		}
	}
	if both < 2 {
		t.Errorf("%d reports told of both buckets, want 3\n%+v\n%+v", both, b.server.of(often.name),
			b.server.of(seldom.name))
	}
	// The first one of the clock covers the time since the bucket began.
	for _, u := range b.server.of(often.name)[2:] {
		if u.seconds < 3 {
			t.Errorf("a report after %d s", u.seconds)
		}
	}
}

func testSubscription(t *testing.T, b *bed) {
	const n = 20
	attempts(t, "buckets become known sooner than the clock reports them", func() bool {
		_, before := b.server.opened()
		for range n {
			s := b.bucket(t, "deny").subscribe()
			u := b.server.of(s.name)[0]
			if !u.alone || u.denied != 1 || u.allowed != 0 || u.seconds != 0 {
				t.Errorf("the first report of a bucket is %+v", u)
			}
		}
		// Had each waited for the clock there would have been as many of its reports.
		_, now := b.server.opened()
		return now.grid-before.grid <= n/2
	})
}

func testRequestsPerTimeUnit(t *testing.T, b *bed) {
	s := b.bucket(t, "deny").subscribe()
	s.assign(s.to(perSecond(1000), long))
	s.want("only requests_per_time_unit", 0, 5)
	s.assign(s.to(units(6), long))
	s.want("units", 2, 2)
	s.assign(s.to(perSecond(1000), long))
	s.want("requests_per_time_unit after units", 4, 10)
	if !strings.Contains(b.envoy.Log(), "RequestsPerTimeUnit rate limit strategies are not yet supported") {
		t.Error("Envoy's log says nothing of it")
	}
}

func testThreads(t *testing.T, b *bed) {
	first := b.at(t, "threads", "deny").subscribe()
	clients := []*bucket{first}
	connections := regexp.MustCompile(`\.worker_([01])\.downstream_cx_total: ([0-9]+)`)
	served := func() (both bool) {
		found := connections.FindAllStringSubmatch(b.envoy.Admin("/stats?filter=listener.threads.worker_"), -1)
		return len(found) == 2 && found[0][2] != "0" && found[1][2] != "0"
	}
	for !served() {
		if len(clients) > 200 {
			t.Fatalf("200 connections came to one thread\n%s", b.envoy.Admin("/stats?filter=worker_"))
		}
		c := first.with(t)
		c.ask()
		clients = append(clients, c)
	}
	first.assign(first.to(units(10), long))
	for _, c := range clients {
		c.assign() // the thread knows what came before
	}
	admitted := 0
	for range 20 {
		for _, c := range clients {
			admitted += c.askTimes(1)
		}
	}
	if admitted != 10 {
		t.Errorf("two threads admitted %d, want 10", admitted)
	}
}

func testRefill(t *testing.T, b *bed) {
	s := b.bucket(t, "deny").subscribe()
	s.assign(s.to(tokens(10, 10, 20*time.Second), long))
	s.drain()
	attempts(t, "a token at a time", func() bool {
		patience.Until(t, "a token is there", s.ask)
		return s.askTimes(3) < 3
	})
}

func testFillInterval(t *testing.T, b *bed) {
	half, whole := b.bucket(t, "deny").subscribe(), b.bucket(t, "deny").subscribe()
	whole.assign(half.to(tokens(400, 20, 1500*time.Millisecond), long), whole.to(tokens(400, 20, time.Second), long))
	patience.Until(t, "both are in force", func() bool { return half.ask() && whole.ask() })
	rate := func(s *bucket, since time.Time) float64 {
		return float64(s.drain()) / s.lastRefused.Sub(since).Seconds()
	}
	half.drain()
	whole.drain()
	attempts(t, "20 tokens in 1.5 s are as many as in 1 s", func() bool {
		halfSince, wholeSince := half.lastRefused, whole.lastRefused
		b.server.ticks(t, 1)
		a, b := rate(half, halfSince), rate(whole, wholeSince)
		t.Logf("%.1f and %.1f a second", a, b)
		return a > 0.85*b && b > 0.85*a // 1.5 would be 0.67
	})
}

func testShortInterval(t *testing.T, b *bed) {
	s := b.bucket(t, "deny").subscribe()
	s.assign(s.to(tokens(10, 1, 500*time.Millisecond), long))
	s.want("10 tokens, one each 500 ms", 200, 200)
}

func testSecondsOnly(t *testing.T, b *bed) {
	s, refilled := b.bucket(t, "deny").subscribe(), b.bucket(t, "deny").subscribe()
	s.assign(s.to(tokens(5, 1, time.Hour), long), refilled.to(tokens(5, 1, time.Second), long))
	s.drain()
	s.assign(s.to(tokens(5, 1, time.Second), long))
	refilled.client = s.client
	refilled.drain()
	for range 3 {
		patience.Until(t, "a token is there", refilled.ask)
	}
	s.want("an hour became a second", 0, 5)
	// With another number of nanoseconds it is a change, and they do not count.
	s.assign(s.to(tokens(5, 1, time.Second+time.Nanosecond), long))
	patience.Until(t, "a token is there after a change of nanoseconds", s.ask)
	// So it is with another number of tokens.
	s.assign(s.to(tokens(5, 1, time.Hour), long))
	s.drain()
	s.assign(s.to(tokens(5, 3600, time.Hour), long))
	patience.Until(t, "a token is there after a change of tokens_per_fill", s.ask)
}

func testShare(t *testing.T, b *bed) {
	s := b.bucket(t, "deny").subscribe()
	s.assign(s.to(units(10), long))
	s.want("units", 5, 5)
	s.assign(s.to(units(100), long))
	s.want("half of 100", 50, 60)
	s = b.bucket(t, "deny").subscribe()
	s.assign(s.to(units(20), long))
	s.want("units", 10, 10)
	s.assign(s.to(units(10), long))
	s.want("half of 10", 5, 10)
}

func testRenewal(t *testing.T, b *bed) {
	const life = 8 * time.Second
	attempts(t, "a renewal in time", func() bool {
		s, not := b.bucket(t, "deny").subscribe(), b.bucket(t, "allow").subscribe()
		not.client = s.client
		s.assign(s.to(units(10), life), not.to(denyAll(), life))
		s.want("units", 5, 5)
		s.assign(s.to(units(10), long))
		if not.ask() {
			return false // it was too late
		}
		patience.Until(t, "what was not renewed has expired", not.ask)
		s.want("what was left", 5, 10)
		return true
	})
}

func testHandOver(t *testing.T, b *bed) {
	s := b.bucket(t, "deny").subscribe()
	s.assign(s.to(units(7), long))
	s.want("7 units", 3, 3)
	s.assign(s.to(denyAll(), long), s.to(units(5), long))
	s.want("5 units", 3, 3)
	s.assign(s.to(denyAll(), long), s.to(units(5), long))
	s.want("5 units again", 5, 10)
	s.assign(s.to(denyAll(), long), s.to(units(3), long))
	s.want("3 units", 3, 10)
}

func testLife(t *testing.T, b *bed) {
	attempts(t, "1.9 s are over when 1.0 s are", func() bool {
		long, short := b.bucket(t, "allow").subscribe(), b.bucket(t, "allow").subscribe()
		short.client = long.client
		long.assign(long.to(denyAll(), 1900*time.Millisecond), short.to(denyAll(), time.Second))
		patience.Until(t, "one has expired", short.ask)
		patience.Until(t, "the other has expired", long.ask)
		// The first that was admitted tells when it had expired.
		late := long.lastAdmitted.Sub(short.lastAdmitted)
		t.Logf("1.9 s ended %v after 1.0 s", late)
		return short.refused > 0 && late < 500*time.Millisecond
	})
}

func testNoLife(t *testing.T, b *bed) {
	for _, ttl := range []time.Duration{-1, 0, 900 * time.Millisecond} {
		attempts(t, fmt.Sprintf("a life of %v is over at once", ttl), func() bool {
			none, five := b.bucket(t, "allow").subscribe(), b.bucket(t, "allow").subscribe()
			five.client = none.client
			none.assign(none.to(denyAll(), ttl), five.to(denyAll(), 5*time.Second))
			patience.Until(t, "it has expired", none.ask)
			return !five.ask()
		})
	}
}

// expire assigns DENY_ALL to a bucket and to another, and returns when the other's has expired, and
// a report of the clock came.
func (s *bucket) expire(b *bed) {
	s.t.Helper()
	other := b.bucket(s.t, "allow").subscribe()
	other.client = s.client
	s.assign(s.to(denyAll(), 2*time.Second), other.to(denyAll(), 2*time.Second))
	patience.Until(s.t, "an assignment has expired", other.ask)
	b.server.ticks(s.t, 1)
}

func testExpired(t *testing.T, b *bed) {
	s := b.bucket(t, "three when expired").subscribe()
	s.want("before the first assignment", 5, 5)
	s.expire(b)
	s.want("the fallback", 3, 10)
}

func testExpiredTimeout(t *testing.T, b *bed) {
	s := b.bucket(t, "denied when expired, without a time-out").subscribe()
	s.expire(b)
	s.want("the fallback, or rather what no_assignment_behavior allows", 5, 5)
}

func testReuse(t *testing.T, b *bed) {
	s := b.bucket(t, "reused when expired").subscribe()
	s.expire(b)
	s.want("DENY_ALL again, or rather what no_assignment_behavior allows", 5, 5)
}

func testNoAssignment(t *testing.T, b *bed) {
	b.bucket(t, "allow").want("ALLOW_ALL", 5, 5)
	b.bucket(t, "deny").want("DENY_ALL", 0, 5)
}

func testAbandon(t *testing.T, b *bed) {
	s := b.bucket(t, "allow").subscribe()
	s.assign(s.to(denyAll(), long))
	s.want("DENY_ALL", 0, 3)
	s.assign(s.abandoned())
	b.bucket(t, "deny").subscribe() // so that what was reported before has come
	known := len(b.server.of(s.name))
	b.server.ticks(t, 2)
	if now := len(b.server.of(s.name)); now > known {
		t.Errorf("an abandoned bucket was reported %d times", now-known)
	}
	s.subscribe()
	if now := b.server.of(s.name); !now[len(now)-1].alone || s.admitted != 2 {
		t.Errorf("the next request is no first one: %+v, admitted %d", now, s.admitted)
	}
	attempts(t, "what was not reported is lost", func() bool {
		s := b.bucket(t, "allow").subscribe()
		s.askTimes(5)
		s.assign(s.abandoned())
		allowed, _ := s.reported()
		return allowed < 6 // else a report came between
	})
}

func testLost(t *testing.T, b *bed) {
	s := b.at(t, "lost", "deny").subscribe()
	s.assign(s.to(units(10), long))
	s.want("units", 3, 3)
	patience.Until(t, "all is reported", func() bool {
		allowed, denied := s.reported()
		if allowed > 3 || denied > s.refused {
			t.Fatalf("reported are %d and %d", allowed, denied)
		}
		return allowed == 3 && denied == s.refused
	})
	b.lost.hangUp(true)
	s.want("units without a stream", 4, 4)
	before := b.lost.calls()
	var fresh []*bucket
	for range 20 {
		f := b.at(t, "lost", "allow")
		f.want("no_assignment_behavior without a stream", 1, 1)
		fresh = append(fresh, f)
	}
	if calls := b.lost.calls() - before; calls > 10 {
		t.Errorf("Envoy called %d times for 20 new buckets; only the clock should make it", calls)
	}
	patience.Until(t, "Envoy has called in vain three times", func() bool { return b.lost.calls() >= 3 })
	refused := b.lost.takeCalls()
	if gap := refused[2].Sub(refused[0]); gap < 5*time.Second {
		t.Errorf("Envoy called three times in %v; its clock has 5 s", gap)
	}
	patience.Until(t, "Envoy has a stream again",
		func() bool { n, now := b.lost.opened(); return n == 2 && now.grid > 0 })
	if allowed, _ := s.reported(); allowed != 3 {
		t.Errorf("%d were reported, 7 admitted; the 4 without a stream should be lost", allowed)
	}
	for _, f := range fresh {
		if all := b.lost.of(f.name); len(all) == 0 || all[0].allowed+all[0].denied > 0 || all[0].alone {
			t.Errorf("a bucket that began without a stream: %+v; want it reported by the clock, its request lost", all)
		}
	}
	s.want("what is left of the units", 3, 10)

	// Where the clock finds a server at once, nothing is lost but first requests.
	b.lost.hangUp(false)
	known := fresh[0]
	reported, _ := known.reported()
	known.want("no_assignment_behavior without a stream", 5, 5)
	// The clock may come while they are asked: then the next report tells of some.
	patience.Until(t, "the 5 from between two streams are reported", func() bool {
		n, _ := b.lost.opened()
		now, _ := known.reported()
		if now > reported+5 {
			t.Fatalf("%d were reported, want 5", now-reported)
		}
		return n == 3 && now == reported+5
	})
}

func testUnknown(t *testing.T, b *bed) {
	s := b.bucket(t, "allow")
	s.assign(s.to(denyAll(), long))
	s.subscribe()
	s.want("an assignment ahead of the first request", 5, 5)
}

func testMany(t *testing.T, b *bed) {
	const n = 300
	for range n {
		b.bucket(t, "deny").subscribe()
	}
	for range 2 {
		b.server.ticks(t, 1)
		_, now := b.server.opened()
		if now.buckets < n {
			t.Errorf("a report of %d buckets, want more than %d", now.buckets, n)
		}
		t.Logf("%d buckets, %d bytes of each", now.buckets, now.bytes/now.buckets)
	}
}

func testHits(t *testing.T, b *bed) {
	s := b.bucket(t, "deny").subscribe()
	s.assign(s.to(units(20), long))
	s.askTimes(50)
	patience.Until(t, "all is reported", func() bool {
		allowed, denied := s.reported()
		if allowed > s.admitted || denied > s.refused {
			t.Fatalf("reported are %d and %d, were %d and %d", allowed, denied, s.admitted, s.refused)
		}
		return allowed == s.admitted && denied == s.refused
	})
}

func testHeaders(t *testing.T, b *bed) {
	s := b.bucket(t, "an answer of its own").subscribe()
	s.assign(s.to(units(3), long))
	s.drain()
	if why := s.headers.Get("X-Why"); why != "quota" {
		t.Errorf("X-Why is %q", why)
	}
	for name := range s.headers {
		if name == "Retry-After" || strings.Contains(strings.ToLower(name), "ratelimit") {
			t.Errorf("a header %s: %v", name, s.headers)
		}
	}
}

func testTwins(t *testing.T, b *bed) {
	s := b.bucket(t, "deny").subscribe()
	twin := b.at(t, "twin", "deny")
	twin.name = s.name
	s.assign(s.to(units(6), long))
	twin.assign()
	s.want("units", 2, 2)
	twin.want("the rest of them", 4, 10)
	s.want("none", 0, 5)
	if streams, _ := b.server.opened(); streams != 1 {
		t.Errorf("%d streams, want 1", streams)
	}
}

// TestQuotaCrash: a token bucket in no_assignment_behavior ends Envoy at the second request.
func TestQuotaCrash(t *testing.T) {
	s, port := serve(t)
	e := envoytest.Start(t, config([]listener{{"front", "quota", "quota"}}, map[string]int{"quota": port}),
		"--concurrency", "1", "--log-level", "critical")
	b := &bucket{t: t, server: s, client: client(t), url: "http://" + e.Address("front") + "/", name: "only",
		settings: "tokens without an assignment"}
	b.subscribe()
	if e.Ended() {
		t.Fatal("it ended at the first request")
	}
	patience.Until(t, "Envoy ends", func() bool {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Case", b.name)
		r.Header.Set("X-Settings", b.settings)
		if answer, err := b.client.Do(r); err == nil {
			answer.Body.Close()
		}
		return e.Ended()
	})
	var exit *exec.ExitError
	if err := e.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGSEGV {
		t.Errorf("it ended with %v, want SIGSEGV", err)
	}
}
