package broker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

type actions = []*rlqspb.RateLimitQuotaResponse_BucketAction

// mutant changes what is said to Envoy, as somebody would who believes the API.
type mutant func(actions) actions

// mutants are each caught by the simulation: what is let through without being paid, or an Envoy
// that does not have what it was assigned.
var mutants = []struct {
	name  string
	paced bool // shows where a rate is assigned
	f     mutant
}{
	{"enlarge in place", false, func(list actions) actions {
		return slices.DeleteFunc(list, func(a *rlqspb.RateLimitQuotaResponse_BucketAction) bool {
			s := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
			_, is := s.GetStrategy().(*typepb.RateLimitStrategy_BlanketRule_)
			return is && s.GetBlanketRule() == typepb.RateLimitStrategy_DENY_ALL && len(list) > 1
		})
	}},
	{"unset ttl", false, func(list actions) actions {
		for _, a := range list {
			if q := a.GetQuotaAssignmentAction(); q != nil {
				q.AssignmentTimeToLive = nil
			}
		}
		return list
	}},
	{"a change of seconds alone", true, func(list actions) actions {
		for _, a := range list {
			if t := a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket(); t != nil {
				t.FillInterval.Nanos = 0
			}
		}
		return list
	}},
	{"an interval of 500 ms", true, func(list actions) actions {
		for _, a := range list {
			if t := a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket(); t != nil &&
				t.FillInterval.Seconds == 1 {
				t.FillInterval = durationpb.New(500 * time.Millisecond)
				t.TokensPerFill.Value = (t.TokensPerFill.Value + 1) / 2
			}
		}
		return list
	}},
	{"requests per time unit", true, func(list actions) actions {
		for _, a := range list {
			if s := a.GetQuotaAssignmentAction().GetRateLimitStrategy(); s.GetTokenBucket() != nil &&
				s.GetTokenBucket().FillInterval.Seconds < 100 {
				s.Strategy = &typepb.RateLimitStrategy_RequestsPerTimeUnit_{RequestsPerTimeUnit: &typepb.RateLimitStrategy_RequestsPerTimeUnit{
					RequestsPerTimeUnit: uint64(s.GetTokenBucket().TokensPerFill.Value), TimeUnit: typepb.RateLimitUnit_SECOND,
				}}
			}
		}
		return list
	}},
}

// world is Envoys, the streams from them to a node, and its store, in virtual time.
type world struct {
	now     int64 // ns
	store   *memory.Store
	limits  []Charge
	meets   func(name string) []int
	envoys  []*modelEnvoy
	streams []*stream
	mutate  mutant
	used    []int64 // requests let through, by limit
	bins    []int64 // requests let through, by 100 ms
	slow    func() int64
	pools   []Pool // one of each node; Envoys are dealt out to them
}

// stream is one connection of an Envoy.
type stream struct {
	w      *world
	envoy  *modelEnvoy
	holder *Holder
	pool   *Pool
	up     []upMessage
	down   []downMessage
}

type upMessage struct {
	at   int64
	list []modelReport
}

type downMessage struct {
	at   int64
	list []saidAction
}

type saidAction struct {
	a      Action
	list   actions
	limits []int
}

// newWorld makes a world of as many Envoys.
func newWorld(t rapid.TB, envoys int, limits ...algo.Config) *world {
	t.Helper()
	return newNodes(t, envoys, 1, limits...)
}

// newNodes makes a world of as many Envoys, and nodes that they report to.
func newNodes(t rapid.TB, envoys, nodes int, limits ...algo.Config) *world {
	t.Helper()
	w := &world{pools: make([]Pool, nodes), now: 1_000_000_000_000, slow: func() int64 { return 0 }}
	s, err := memory.New(memory.Options{Clock: func() int64 { return 1_900_000_000_000_000 + w.now/1000 }})
	if err != nil {
		t.Fatal(err)
	}
	w.store = s
	for i, c := range limits {
		l, err := algo.New(c)
		if err != nil {
			t.Fatal(err)
		}
		id := uint64(i+1)<<32 | uint64(2*i+1)
		w.limits = append(w.limits, Charge{
			Counter: &rule.Counter{ID: id, Limit: l, Lease: &rule.Counter{ID: id + 1<<16, Limit: l.Lease(), Index: -1}},
			Limit:   l, Key: "k", Cost: 1,
		})
	}
	w.used = make([]int64, len(limits))
	w.meets = func(string) []int {
		all := make([]int, len(limits))
		for i := range all {
			all[i] = i
		}
		return all
	}
	for i := range envoys {
		e := newModelEnvoy(w.now)
		w.envoys = append(w.envoys, e)
		w.streams = append(w.streams, w.connect(i))
	}
	return w
}

// connect opens a stream of an Envoy.
func (w *world) connect(envoy int) *stream {
	return &stream{w: w, envoy: w.envoys[envoy], holder: NewHolder(testSettings(), uint64(envoy)),
		pool: &w.pools[envoy%len(w.pools)]}
}

// terms are the terms of a bucket.
func (w *world) terms(name string) Terms {
	var t Terms
	for _, i := range w.meets(name) {
		t.Charges = append(t.Charges, w.limits[i])
	}
	return t
}

// request is a request at an Envoy.
func (w *world) request(i int, name string) bool {
	s := w.streams[i]
	ok, report := s.envoy.request(w.now, name)
	if report != nil {
		s.send([]modelReport{*report})
	}
	if ok {
		if b := s.envoy.buckets[name]; b.assigned.GetTokenBucket() != nil {
			for _, l := range b.limits {
				w.used[l] += w.limits[l].Cost
			}
		}
		bin := int(w.now / (secondNs / 10))
		for len(w.bins) <= bin-10_000 {
			w.bins = append(w.bins, 0)
		}
		w.bins[bin-10_000]++
	}
	return ok
}

// send puts a report on its way; nothing overtakes.
func (s *stream) send(list []modelReport) {
	at := s.w.now + s.w.slow()
	if n := len(s.up); n > 0 {
		at = max(at, s.up[n-1].at)
	}
	s.up = append(s.up, upMessage{at, list})
}

// advance lets time pass in steps in which something happens. check is called after each.
func (w *world) advance(t rapid.TB, d int64, check func()) {
	end := w.now + d
	for {
		next := end
		for _, s := range w.streams {
			next = min(next, s.envoy.tick, max(s.holder.Due(w.now, nil), w.now+1))
			if len(s.up) > 0 {
				next = min(next, s.up[0].at)
			}
			if len(s.down) > 0 {
				next = min(next, s.down[0].at)
			}
		}
		w.now = max(w.now, next)
		for _, s := range w.streams {
			s.step(t)
		}
		check()
		if w.now >= end && next >= end {
			return
		}
	}
}

// step does what is due on a stream.
func (s *stream) step(t rapid.TB) {
	w := s.w
	if w.now >= s.envoy.tick {
		s.envoy.tick += int64(Interval)
		s.send(s.envoy.report())
	}
	for len(s.up) > 0 && s.up[0].at <= w.now {
		for _, r := range s.up[0].list {
			s.holder.Report(w.now, r.name, Usage{r.allowed, r.denied}, w.terms(r.name))
		}
		s.up = s.up[1:]
		s.answer(t)
	}
	var due []string
	s.holder.Due(w.now, func(name string) { due = append(due, name) })
	for _, name := range due {
		s.holder.Look(name, w.terms(name))
	}
	if len(due) > 0 {
		s.answer(t)
	}
	for len(s.down) > 0 && s.down[0].at <= w.now {
		for _, said := range s.down[0].list {
			for _, a := range said.list {
				s.envoy.apply(w.now, said.a.Bucket, a, said.limits)
			}
			s.arrived(t, &said.a)
		}
		s.down = s.down[1:]
	}
}

// arrived fails unless Envoy has what it was newly assigned.
func (s *stream) arrived(t rapid.TB, a *Action) {
	b := s.envoy.buckets[a.Bucket]
	if b == nil || a.Abandon {
		return
	}
	if b.ends < s.w.now+int64(a.TTL) {
		t.Fatalf("an assignment for %v is over in %v", a.TTL, time.Duration(b.ends-s.w.now))
	}
	switch {
	case a.kind == assignUnits && a.New && b.tokens != float64(a.g):
		t.Fatalf("%d requests were assigned, and Envoy has %v", a.g, b.tokens)
	case a.kind == assignRate:
		if have, want := b.rate(), float64(a.fill)/float64(a.every)/float64(secondNs); have != want {
			t.Fatalf("a rate of %v was assigned, and Envoy has %v", want*float64(secondNs), have*float64(secondNs))
		}
	}
}

// answer asks the store, and puts the answer on its way.
func (s *stream) answer(t rapid.TB) {
	w := s.w
	asks := s.holder.Ask(w.now)
	s.pool.Bound(w.now, asks)
	w.takeAhead(t, asks)
	s.pool.Got(w.now, asks)
	var m downMessage
	for _, a := range s.holder.Granted(w.now, asks) {
		list := decoded(t, &a)
		if w.mutate != nil {
			list = w.mutate(list)
		}
		m.list = append(m.list, saidAction{a, list, w.meets(a.Bucket)})
	}
	if len(m.list) == 0 {
		return
	}
	m.at = w.now + w.slow()
	if n := len(s.down); n > 0 {
		m.at = max(m.at, s.down[n-1].at)
	}
	s.down = append(s.down, m)
}

// decoded is what Envoy reads of an action.
func decoded(t rapid.TB, a *Action) actions {
	id, err := AppendID(nil, &rlqspb.BucketId{Bucket: map[string]string{"name": a.Bucket}})
	if err != nil {
		t.Fatal(err)
	}
	var m rlqspb.RateLimitQuotaResponse
	if err := proto.Unmarshal(a.Append(nil, id), &m); err != nil {
		t.Fatal(err)
	}
	return m.BucketAction
}

// takeAhead asks the store, as the door does.
func (w *world) takeAhead(t rapid.TB, asks []Ask) {
	t.Helper()
	charges, ahead, results := make([]store.Charge, len(asks)), make([]algo.Ahead, len(asks)),
		make([]algo.Result, len(asks))
	for i := range asks {
		charges[i] = store.Charge{Counter: asks[i].Counter, Limit: asks[i].Limit, Key: asks[i].Key, Mode: rule.Shadow}
		ahead[i] = asks[i].Ahead
	}
	now, _, err := w.store.TakeAhead(context.Background(), 0, 0, charges, ahead, results)
	if err != nil {
		t.Fatal(err)
	}
	for i := range asks {
		asks[i].Ahead, asks[i].Result, asks[i].Now, asks[i].Asked = ahead[i], results[i], now, w.now
	}
}

// paid is what a limit counts: what was charged, and what is out.
func (w *world) paid(t rapid.TB, i int) int64 {
	t.Helper()
	var r [1]algo.Result
	c := &w.limits[i]
	if _, err := w.store.Take(context.Background(), []store.Charge{{Counter: c.Counter, Limit: c.Limit, Key: []byte(c.Key)}}, r[:]); err != nil {
		t.Fatal(err)
	}
	return r[0].Limit - r[0].Remaining
}

// invariant fails unless all that was let through, and all that may still be, is paid. It is for
// limits whose window does not end.
func (w *world) invariant(t rapid.TB) {
	for i := range w.limits {
		sum := float64(w.used[i])
		for _, s := range w.streams {
			// What is on its way may come after all that is there was used.
			for _, b := range s.envoy.buckets {
				if slices.Contains(b.limits, i) {
					sum += b.possible(w.now) * float64(w.limits[i].Cost)
				}
			}
			for _, m := range s.down {
				for _, said := range m.list {
					if slices.Contains(said.limits, i) {
						sum += float64(said.a.Requests() * w.limits[i].Cost)
					}
				}
			}
		}
		if paid := w.paid(t, i); float64(paid) < sum {
			t.Fatalf("at %v: limit %d has %d paid, and %d used: %v may be used", time.Duration(w.now), i, paid,
				w.used[i], sum)
		}
	}
}

// TestNeverMoreThanPaid: Envoys that are used at random, delays within Delay, streams that break
// with messages on them, and requests by other doors; two limits, one of them shared by all
// buckets, with costs. At every step all requests that were let through, and may still be, are
// paid.
func TestNeverMoreThanPaid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { runUnits(t, nil) })
}

func runUnits(t rapid.TB, m mutant) {
	r, _ := t.(*rapid.T)
	n := rapid.SampledFrom([]int64{50, 300, 5000}).Draw(r, "N")
	base := algo.Config{Algorithm: algo.FixedWindow, N: n, Window: 240 * time.Hour, Lease: 90,
		LeaseFor: 11 * time.Second}
	shared := base
	shared.N, shared.LeaseFor = 3*n, 17*time.Second
	w := newWorld(t, rapid.IntRange(1, 3).Draw(r, "envoys"), base, base, shared)
	w.limits[2].Cost = rapid.SampledFrom([]int64{1, 1, 3}).Draw(r, "cost")
	w.mutate = m
	rules := 0 // those that bucket c meets
	w.meets = func(name string) []int {
		switch name {
		case "a":
			return []int{0, 2}
		case "b":
			return []int{1, 2}
		}
		return [][]int{{2}, {0, 2}, {}}[rules]
	}
	w.slow = func() int64 { return rapid.Int64Range(0, delayNs).Draw(r, "delay") }
	for range rapid.IntRange(10, 60).Draw(r, "steps") {
		i := rapid.IntRange(0, len(w.streams)-1).Draw(r, "envoy")
		switch what := rapid.IntRange(0, 19).Draw(r, "what"); {
		case what < 12:
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "bucket")
			for range rapid.IntRange(1, 60).Draw(r, "requests") {
				w.request(i, name)
			}
		case what < 18:
			w.advance(t, rapid.Int64Range(0, 7*secondNs).Draw(r, "time"), func() { w.invariant(t) })
		case what == 18: // the stream breaks, with all that is on it
			s := w.streams[i]
			s.up, s.down = nil, nil
			leave := s.holder.Leave(w.now)
			w.takeAhead(t, leave)
			s.pool.Leave(s.holder)
			w.streams[i] = w.connect(i)
		default: // the rules change, which is pushed
			rules = rapid.IntRange(0, 2).Draw(r, "rules")
			for _, s := range w.streams {
				s.holder.Buckets(func(name string, _ *Bucket) { s.holder.Look(name, w.terms(name)) })
				s.answer(t)
			}
		}
		w.invariant(t)
	}
}

// TestLeftLimit: a bucket comes under one more limit and leaves it again. Its earlier assignments
// are not due to that limit, and cannot be distinguished from later ones: units that may have been
// used are not given back.
func TestLeftLimit(t *testing.T) {
	c := algo.Config{Algorithm: algo.FixedWindow, N: 50, Window: 240 * time.Hour, Lease: 90, LeaseFor: 11 * time.Second}
	w := newWorld(t, 1, c, c)
	var meets []int
	w.meets = func(string) []int { return meets }
	check := func() { w.invariant(t) }
	push := func(limits ...int) {
		meets = limits
		s := w.streams[0]
		s.holder.Buckets(func(name string, _ *Bucket) { s.holder.Look(name, w.terms(name)) })
		s.answer(t)
		w.advance(t, 1, check)
	}
	push(1)
	w.request(0, "c")
	w.advance(t, secondNs, check)
	push(0, 1)
	for i := range 5 {
		if !w.request(0, "c") {
			t.Fatalf("%d of 5 requests passed", i)
		}
	}
	w.advance(t, int64(Interval), check) // they are reported
	push()
	w.advance(t, 3*int64(Interval), check)
	if w.used[0] != 5 {
		t.Errorf("%d requests were let through", w.used[0])
	}
}

// TestMutants: each mutant of the messages to Envoy makes the simulation fail.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			failure := fails(func(t rapid.TB) { steady(t, m.f, m.paced) })
			if failure == "" {
				t.Fatal("nothing was noticed")
			}
			t.Log(failure)
		})
	}
	for _, paced := range []bool{false, true} {
		if failure := fails(func(t rapid.TB) { steady(t, nil, paced) }); failure != "" {
			t.Errorf("without a mutant, paced %v: %s", paced, failure)
		}
	}
}

// recorder is a rapid.TB whose failures are a panic with their text.
type recorder struct{ rapid.TB }

type failure string

func (recorder) Helper()                           {}
func (recorder) Fatal(args ...any)                 { panic(failure(fmt.Sprint(args...))) }
func (recorder) Fatalf(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }

// fails returns how f fails; "" if it does not.
func fails(f func(t rapid.TB)) (how string) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			how = string(p)
		default:
			panic(p)
		}
	}()
	f(recorder{})
	return ""
}

// steady is a run in which everything happens: demand that rises and falls, at two Envoys.
func steady(t rapid.TB, m mutant, paced bool) {
	c := algo.Config{Algorithm: algo.FixedWindow, N: 100_000, Window: 240 * time.Hour, Lease: 50,
		LeaseFor: 11 * time.Second}
	if !paced {
		steadyAt(t, m, c, func(w *world) { w.invariant(t) })
		return
	}
	for _, n := range []int64{60, 600} {
		c = algo.Config{Algorithm: algo.TokenBucket, N: n, Window: time.Minute, Burst: n, Lease: 90,
			LeaseFor: 2 * time.Second}
		steadyAt(t, m, c, func(w *world) { w.bounded(t, float64(n), float64(n)/60, 2) })
	}
}

func steadyAt(t rapid.TB, m mutant, c algo.Config, check func(w *world)) {
	w := newWorld(t, 2, c)
	w.mutate = m
	w.slow = func() int64 { return secondNs / 5 }
	for i := range 1200 { // 2 minutes
		per := []int{1, 3, 8, 2, 0, 4}[i/200%6]
		for range per {
			w.request(0, "a")
		}
		if i%400 < 200 {
			w.request(1, "a")
		}
		w.advance(t, secondNs/10, func() { check(w) })
	}
}

// bounded fails if more was let through in an interval, ending now, than a bucket of so many with
// so many a second and slack seconds of it would.
func (w *world) bounded(t rapid.TB, burst, perSecond, slack float64) {
	sum := int64(0)
	for i := len(w.bins) - 1; i >= 0; i-- {
		sum += w.bins[i]
		if most := burst + (float64(len(w.bins)-i)/10+slack)*perSecond; float64(sum) > most {
			t.Fatalf("%d requests in %d ms; there may be %v", sum, (len(w.bins)-i)*100, most)
		}
	}
}

// TestServesDemand: what a bucket gets follows the demand, and two Envoys share a limit.
func TestServesDemand(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit algo.Config
		load  int     // of each of two Envoys, in a second
		least float64 // share of the best possible admissions
	}{
		{"units below", algo.Config{Algorithm: algo.TokenBucket, N: 60_000, Window: time.Minute, Lease: 50, LeaseFor: 11 * time.Second}, 200, 0.99},
		{"units above", algo.Config{Algorithm: algo.TokenBucket, N: 60_000, Window: time.Minute, Lease: 50, LeaseFor: 11 * time.Second}, 1500, 0.9},
		{"paced below", algo.Config{Algorithm: algo.TokenBucket, N: 1000, Window: time.Second, Lease: 90}, 200, 0.99},
		{"paced above", algo.Config{Algorithm: algo.TokenBucket, N: 1000, Window: time.Second, Lease: 90}, 1500, 0.75},
		{"sliding window", algo.Config{Algorithm: algo.SlidingWindow, Buckets: 1, N: 6000, Window: time.Minute, Lease: 50, LeaseFor: 11 * time.Second}, 30, 0.95},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 2, c.limit)
			w.slow = func() int64 { return secondNs / 100 }
			admitted, asked := 0, 0
			var each [2]int
			const warm, all = 60, 120 // seconds; a bucket that is full at first is empty then
			for i := range all * 50 {
				for e := range 2 {
					for range (i+1)*c.load/50 - i*c.load/50 {
						ok := w.request(e, "a")
						if i < warm*50 {
							continue
						}
						if asked++; ok {
							admitted++
							each[e]++
						}
					}
				}
				w.advance(t, secondNs/50, func() {})
			}
			perSecond := float64(c.limit.N) / c.limit.Window.Seconds()
			best := min(float64(asked), perSecond*(all-warm))
			t.Logf("%d of %d, at best %.0f; %v", admitted, asked, best, each)
			if float64(admitted) < c.least*best {
				t.Errorf("%d were admitted of %d; at least %.0f could be", admitted, asked, c.least*best)
			}
			if lo, hi := min(each[0], each[1]), max(each[0], each[1]); float64(lo) < 0.7*float64(hi) {
				t.Errorf("two Envoys with the same demand got %v", each)
			}
			burst := float64(c.limit.N)
			w.bounded(t, burst, perSecond, 2)
		})
	}
}
