package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/storetest"
	"pgregory.net/rapid"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store { return newTest(t, Options{Clock: clock}) })
}

func newTest(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

var lastID atomic.Uint64

func counter(t testing.TB, c algo.Config) *rule.Counter {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("rule-%d", lastID.Add(1))
	return &rule.Counter{ID: lastID.Load(), Domain: "test", Rule: name, Window: name, Limit: l}
}

func take(t testing.TB, s *Store, c *rule.Counter, key string, cost int64) algo.Result {
	t.Helper()
	results := make([]algo.Result, 1)
	if _, err := s.Take(context.Background(), []store.Charge{{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}}, results); err != nil {
		t.Fatal(err)
	}
	return results[0]
}

func TestShardsShareNoCacheLine(t *testing.T) {
	if size := unsafe.Sizeof(shardCell{}); unsafe.Sizeof(uintptr(0)) == 8 && size%64 != 0 {
		t.Errorf("a shardCell has %d bytes: its padding must fill cache lines of 64", size)
	}
}

// fakeClock is a clock for tests.
type fakeClock struct{ now atomic.Int64 }

func newClock() *fakeClock {
	c := &fakeClock{}
	c.now.Store(1767225600_000000)
	return c
}

func (c *fakeClock) read() int64             { return c.now.Load() }
func (c *fakeClock) advance(d time.Duration) { c.now.Add(d.Microseconds()) }

// audit checks everything that must hold of the structures, and that the counts agree with them.
func audit(t testing.TB, s *Store) {
	t.Helper()
	keys, size := 0, 0
	for i := range s.shards {
		sh := &s.shards[i].shard
		sh.mu.Lock()
		n, long, exts := 0, 0, 0
		var before uint32
		gap := -1 // the last empty place
		for j := range sh.slots {
			e := &sh.slots[j]
			if e.tag == emptyTag {
				if *e != (slot{tag: emptyTag}) {
					t.Fatalf("shard %d: something in an empty slot", i)
				}
				gap = j
				continue
			}
			if e.tag < before || j == len(sh.slots)-1 {
				t.Fatalf("shard %d: tag %x after %x at %d of %d", i, e.tag, before, j, len(sh.slots))
			}
			before = e.tag
			if home := sh.home(e.tag); home > j || home <= gap {
				t.Fatalf("shard %d: an entry of home %d at %d, the last gap at %d", i, home, j, gap)
			}
			n++
			if e.long() {
				long += keySize(len(sh.keyOf(j)))
			}
			if h := s.hash(sh.keyOf(j)); h>>s.shift != uint64(i) || tagOf(h, s.limits.load()[e.limit()].id) != e.tag {
				t.Fatalf("shard %d: a key that does not belong here", i)
			}
			if e.ext() != 0 {
				exts++
			}
		}
		if n != sh.n || long != sh.used-sh.freed || exts != len(sh.exts)-len(sh.extFree) {
			t.Fatalf("shard %d: %d keys, %d bytes of long ones, %d variable parts, counted are %d, %d, %d", i, n, long,
				exts, sh.n, sh.used-sh.freed, len(sh.exts)-len(sh.extFree))
		}
		keys += n
		size += len(sh.slots)*int(unsafe.Sizeof(slot{})) + len(sh.arena) + cap(sh.exts)*24
		for _, e := range sh.exts {
			size += cap(e)
		}
		sh.mu.Unlock()
	}
	if st := s.Stats(); st.Keys != int64(keys) || st.Bytes != int64(size) {
		t.Fatalf("%d keys and %d bytes, counted are %+v", keys, size, st)
	}
}

// TestStructures drives one shard through random insertions, deletions and compactions beside a
// map.
func TestStructures(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		clock := newClock()
		s, err := New(Options{Clock: clock.read, MaxKeys: 200})
		if err != nil {
			rt.Fatal(err)
		}
		counters := []*rule.Counter{
			counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: time.Hour}),
			counter(t, algo.Config{Algorithm: algo.SlidingLog, N: 1000, Window: time.Hour}),
		}
		type name struct {
			c   *rule.Counter
			key string
		}
		want := map[name]int64{}
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			c := rapid.SampledFrom(counters).Draw(rt, "counter")
			n := rapid.IntRange(0, 20).Draw(rt, "key")
			key := fmt.Sprintf("%0*d", 1+n*n*2, n)
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				if got, has := reset(s, c, key), want[name{c, key}] > 0; got != has {
					rt.Fatalf("Reset: %v, want %v", got, has)
				}
				delete(want, name{c, key})
			default:
				take(t, s, c, key, 3)
				want[name{c, key}] += 3
			}
			audit(t, s)
		}
		for n, used := range want {
			if info, ok := peek(s, n.c, []byte(n.key)); !ok || info.Result.Remaining != 1000-used {
				rt.Fatalf("%d left of key %q, want %d", info.Result.Remaining, n.key, 1000-used)
			}
		}
		for _, c := range counters {
			for _, k := range allOf(s, c) {
				if k.Result.Remaining != 1000-want[name{c, string(k.Key)}] {
					rt.Fatalf("Scan: key %q has %d left", k.Key, k.Result.Remaining)
				}
				delete(want, name{c, string(k.Key)})
			}
		}
		if len(want) != 0 {
			rt.Fatalf("Scan left out %d keys", len(want))
		}
	})
}

func TestForgetsWhatIsFresh(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Minute})
	const n = 50_000
	for i := range n {
		take(t, s, c, fmt.Sprint("first ", i), 1)
	}
	full := s.Stats()
	if full.Keys != n {
		t.Fatalf("%d keys, want %d", full.Keys, n)
	}
	clock.advance(time.Hour)
	// As many others, and the first are gone: an insertion looks at several.
	for i := range n {
		take(t, s, c, fmt.Sprint("second ", i), 1)
	}
	audit(t, s)
	if st := s.Stats(); st.Keys > n+n/10 || st.Evictions != 0 {
		t.Errorf("%+v after %d keys became fresh and as many others came", st, n)
	}
	// All but a few fresh: the memory is given back.
	clock.advance(time.Hour)
	for i := range n {
		take(t, s, c, fmt.Sprint("third ", i), 1)
		if i%100 == 99 {
			clock.advance(time.Hour)
		}
	}
	audit(t, s)
	if st := s.Stats(); st.Bytes > full.Bytes/2 || st.Keys > n/10 {
		t.Errorf("%+v with hardly a key alive; with %d keys it was %+v", st, n, full)
	}
	// What a decision leaves fresh is not remembered at all.
	before := s.Stats().Keys
	zero := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 0, Window: time.Minute})
	for i := range 100 {
		take(t, s, c, fmt.Sprint("peek ", i), 0)
		take(t, s, c, fmt.Sprint("never ", i), 1000)
		take(t, s, c, fmt.Sprint("refund ", i), -1)
		take(t, s, zero, fmt.Sprint("zero ", i), 1)
	}
	if after := s.Stats().Keys; after != before {
		t.Errorf("%d keys after decisions that leave nothing, %d before", after, before)
	}
}

// TestBound asks with many more keys than there is room for. WEIR_BOUND_KEYS sets their number.
func TestBound(t *testing.T) {
	distinct := effort.Of(300_000, 1_000_000)
	if v, err := strconv.Atoi(os.Getenv("WEIR_BOUND_KEYS")); err == nil {
		distinct = v
	}
	const maxKeys, refused = 100_000, 1000
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, MaxKeys: maxKeys})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: 24 * time.Hour})
	for i := range refused {
		take(t, s, c, fmt.Sprint("refused ", i), 10)
	}
	charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
	key := make([]byte, 16)
	var high int64
	for i := range distinct {
		binary.BigEndian.PutUint64(key, uint64(i)*0x9E3779B97F4A7C15)
		charges[0] = store.Charge{Counter: c, Limit: c.Limit, Key: key, Ask: algo.Ask{Cost: 1 + int64(i%3)}}
		if _, err := s.Take(context.Background(), charges, results); err != nil {
			t.Fatal(err)
		}
		st := s.Stats()
		if st.Keys > maxKeys {
			t.Fatalf("%d keys after %d, the bound is %d", st.Keys, i, maxKeys)
		}
		high = max(high, st.Bytes)
	}
	if high > maxKeys*100 {
		t.Errorf("%d bytes for %d keys", high, maxKeys)
	}
	audit(t, s)
	for i := range refused {
		if take(t, s, c, fmt.Sprint("refused ", i), 1).Allowed {
			t.Fatalf("key %d, refused before, is admitted after %d others", i, distinct)
		}
	}
	if st := s.Stats(); st.Evictions < uint64(distinct-maxKeys)*9/10 || st.Overflows > uint64(distinct/100) {
		t.Errorf("%+v: it should have forgotten the keys furthest from their limit", st)
	}
}

// TestOverflow fills the store with keys that are refused; all newcomers together get what the
// overflow cells hold.
func TestOverflow(t *testing.T) {
	clock := newClock()
	const maxKeys = 1000
	s := newTest(t, Options{Clock: clock.read, MaxKeys: maxKeys})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 2, Window: time.Hour})
	for i := range 3 * maxKeys {
		take(t, s, c, fmt.Sprint("refused ", i), 2)
	}
	st := s.Stats()
	if st.Keys != maxKeys || st.Evictions != 0 || st.Overflows != 2*maxKeys {
		t.Errorf("%+v: all keys were refused, none may be forgotten", st)
	}
	admitted := 0
	for i := range 20_000 {
		if take(t, s, c, fmt.Sprint("new ", i), 1).Allowed {
			admitted++
		}
	}
	if admitted > 2<<overflowBits {
		t.Errorf("%d newcomers admitted by %d cells of 2", admitted, 1<<overflowBits)
	}
	// Several in one call, on the same cells.
	for range 20 {
		charges, results := make([]store.Charge, 3000), make([]algo.Result, 3000)
		other := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 2, Window: time.Hour})
		for i := range charges {
			charges[i] = store.Charge{Counter: other, Limit: other.Limit, Key: fmt.Appendf(nil, "batch %d", i),
				Ask: algo.Ask{Cost: 1}, Mode: rule.Shadow}
		}
		if _, err := s.Take(context.Background(), charges, results); err != nil {
			t.Fatal(err)
		}
		cells := map[uint32]int{}
		for i := range charges {
			k := s.overflowKey(other.ID, s.hash(charges[i].Key))
			if cells[k.cell]++; results[i].Allowed != (cells[k.cell] <= 2) {
				t.Fatalf("charge %d, the %d. on its cell: %+v", i, cells[k.cell], results[i])
			}
		}
	}
	audit(t, s)
	// Room again: the cells are no longer used, but a key that was charged on one does not get a
	// second share.
	key := "new 0"
	if take(t, s, c, key, 1).Allowed {
		t.Fatalf("key %q should be refused", key)
	}
	for i := range maxKeys / 2 {
		reset(s, c, fmt.Sprintf("refused %d", i))
	}
	before := s.Stats().Overflows
	if take(t, s, c, key, 1).Allowed {
		t.Error("a key refused by its overflow cell is admitted once there is room")
	}
	if after := s.Stats().Overflows; after != before {
		t.Errorf("%d decisions on overflow cells though there is room", after-before)
	}
	clock.advance(2 * time.Hour)
	if !take(t, s, c, key, 2).Allowed {
		t.Error("an overflow cell is refused after its window")
	}
}

func TestOverflowConcurrency(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, MaxKeys: 1})
	blocker := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	take(t, s, blocker, "k", 1)
	c := counter(t, algo.Config{Algorithm: algo.Concurrency, N: 1})
	results := make([]algo.Result, 2)
	for _, n := range []int{1, 2} { // alone, and in a call of two
		charges := []store.Charge{
			{Counter: c, Limit: c.Limit, Key: []byte("newcomer"), Ask: algo.Ask{Cost: 1}},
			{Counter: blocker, Limit: blocker.Limit, Key: []byte("l"), Ask: algo.Ask{Cost: 0}},
		}
		if _, err := s.Take(context.Background(), charges[:n], results[:n]); err != nil || !results[0].Allowed {
			t.Fatalf("%+v, %v", results, err)
		}
		if take(t, s, c, "newcomer", 1).Allowed {
			t.Error("two slots of one")
		}
		if ok, _ := s.Release(context.Background(), c, []byte("newcomer"), charges[0].Ask.Slot); !ok {
			t.Error("a slot of an overflow cell cannot be released")
		}
	}
	if st := s.Stats(); st.Keys != 1 || st.Overflows == 0 {
		t.Errorf("%+v", st)
	}
}

func TestBoundOnBytes(t *testing.T) {
	clock := newClock()
	const maxBytes = 4 << 20
	s := newTest(t, Options{Clock: clock.read, MaxBytes: maxBytes})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Hour})
	log := counter(t, algo.Config{Algorithm: algo.SlidingLog, N: 1000, Window: time.Hour})
	take(t, s, c, "refused", 10)
	for i := range 200_000 {
		switch i % 3 {
		case 0:
			take(t, s, c, fmt.Sprintf("%0*d", 16+i%100, i), 1)
		case 1:
			take(t, s, log, fmt.Sprint(i), 1)
		default:
			take(t, s, log, fmt.Sprint(i%50), 3)
		}
		if st := s.Stats(); st.Bytes > maxBytes+maxBytes/10 {
			t.Fatalf("%+v after %d, the bound is %d bytes", st, i, maxBytes)
		}
	}
	audit(t, s)
	st := s.Stats()
	if st.Evictions == 0 || st.Bytes < maxBytes/2 {
		t.Errorf("%+v", st)
	}
	if take(t, s, c, "refused", 1).Allowed {
		t.Error("a refused key was forgotten")
	}
}

// TestLimitsCollected changes definitions without end, as an elastic limit does.
func TestLimitsCollected(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Window: 24 * time.Hour})
	for i := range 200 {
		take(t, s, c, fmt.Sprint("stays ", i), 1)
	}
	for i := range 20 * minCollect {
		l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: int64(1000 + i), Window: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		results := make([]algo.Result, 1)
		if _, err := s.Take(context.Background(), []store.Charge{{Counter: c, Limit: l, Key: []byte("elastic"), Ask: algo.Ask{Cost: 1}}}, results); err != nil {
			t.Fatal(err)
		}
		if results[0].Remaining != int64(1000-1) {
			t.Fatalf("%d left after %d under a growing limit", results[0].Remaining, i)
		}
		if i%1000 == 0 {
			s.collectLimits()
		}
	}
	s.collectLimits()
	s.limits.mu.RLock()
	live, numbers := len(s.limits.index), len(*s.limits.entries.Load())
	s.limits.mu.RUnlock()
	if live != 2 || numbers > 3*minCollect {
		t.Errorf("%d definitions in use and %d numbers, of %d", live, numbers, 20*minCollect)
	}
	for i := range 200 {
		if r := take(t, s, c, fmt.Sprint("stays ", i), 0); r.Remaining != 999_999 {
			t.Fatalf("key %d: %d left", i, r.Remaining)
		}
	}
}

// TestCollectWhileDeciding lets collections run beside decisions under changing definitions.
func TestCollectWhileDeciding(t *testing.T) {
	s := newTest(t, Options{})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1 << 20, Window: 300 * 24 * time.Hour})
	var limits []*algo.Limit
	for i := range 50 {
		l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: int64(1<<20 + i), Window: 300 * 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		limits = append(limits, l)
	}
	var deciders, collector sync.WaitGroup
	stop := make(chan struct{})
	collector.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.collectLimits()
				allOf(s, c)
			}
		}
	})
	const goroutines, rounds = 4, 5000
	for g := range goroutines {
		deciders.Go(func() {
			results := make([]algo.Result, 1)
			for i := range rounds {
				l := limits[(i*7+g)%len(limits)]
				if _, err := s.Take(context.Background(), []store.Charge{{Counter: c, Limit: l, Key: fmt.Appendf(nil, "key %d", i%500), Ask: algo.Ask{Cost: 1}}}, results); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	deciders.Wait()
	close(stop)
	collector.Wait()
	audit(t, s)
	for i := range 500 {
		if r := take(t, s, c, fmt.Sprint("key ", i), 0); r.Remaining != 1<<20-goroutines*rounds/500 {
			t.Fatalf("key %d: %d left", i, r.Remaining)
		}
	}
}

// Scan gives each key of the counter once, in pages as large as they are asked for, and knows how
// many there are.
func TestScan(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: time.Hour})
	other := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	for i := range 9000 {
		take(t, s, c, fmt.Sprintf("key %04d", i), 1)
		take(t, s, other, fmt.Sprintf("key %04d", i), 1)
	}
	for _, most := range []int{1, 1000, 18_000, 1 << 30} {
		seen, pages, looked := map[string]int{}, 0, 0
		for from := ""; ; pages++ {
			out, err := s.Scan(t.Context(), viewOf(c), from, most, func(k store.KeyState) { seen[string(k.Key)]++ })
			if err != nil || out.Of != 18_000 || out.Looked > most+visitBatch || out.Looked == 0 {
				t.Fatalf("%+v, %v", out, err)
			}
			looked += out.Looked
			if from = out.Next; from == "" {
				break
			}
		}
		if len(seen) != 9000 || looked != 18_000 || most > 18_000 && pages > 0 || most == 1000 && pages < 9 {
			t.Errorf("pages of %d: %d keys seen, %d looked at, %d pages", most, len(seen), looked, pages+1)
		}
		for key, n := range seen {
			if n != 1 {
				t.Fatalf("%s was seen %d times", key, n)
			}
		}
	}
	for _, from := range []string{"x", "-1.0", "99999.0", "1.99999999999"} {
		if _, err := s.Scan(t.Context(), viewOf(c), from, 10, func(store.KeyState) {}); err != nil {
			t.Errorf("from %q: %v", from, err)
		}
	}
	clock.advance(2 * time.Hour)
	if left := allOf(s, c); len(left) != 0 {
		t.Errorf("%d keys though all are fresh", len(left))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Scan(ended, viewOf(c), "", 10, nil); err == nil {
		t.Error("nobody waits for it any more")
	}
}

// viewOf looks at keys under their counter's own numbers.
func viewOf(c *rule.Counter) *store.View {
	return &store.View{Counter: c, MaxDelay: -1, Limit: func([]byte) *algo.Limit { return c.Limit }}
}

// allOf are all keys of a counter.
func allOf(s *Store, c *rule.Counter) (all []store.KeyState) {
	_, _ = s.Scan(context.Background(), viewOf(c), "", 1<<30, func(k store.KeyState) {
		k.Key = bytes.Clone(k.Key)
		all = append(all, k)
	})
	return all
}

func reset(s *Store, c *rule.Counter, key string) bool {
	ok, _ := s.Reset(context.Background(), c, []byte(key))
	return ok
}

func TestPeekAndReset(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 4, Window: time.Minute})
	if _, ok := peek(s, c, []byte("k")); ok {
		t.Error("a key that nobody charged")
	}
	take(t, s, c, "k", 3)
	for range 2 {
		info, ok := peek(s, c, []byte("k"))
		if !ok || string(info.Key) != "k" || info.Result.Remaining != 1 || info.Result.ResetAfter != 45_000_000 {
			t.Errorf("%+v, %v", info, ok)
		}
	}
	next := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 4, Window: 2 * time.Minute})
	next.Previous = []*rule.Counter{c}
	if info, ok := peek(s, next, []byte("k")); !ok || info.Result.Remaining != 1 {
		t.Errorf("under the next identity: %+v, %v", info, ok)
	}
	if !reset(s, next, "k") || reset(s, next, "k") {
		t.Error("Reset says the wrong thing")
	}
	if r := take(t, s, c, "k", 4); !r.Allowed {
		t.Error("refused after Reset")
	}
	clock.advance(time.Minute)
	if _, ok := peek(s, c, []byte("k")); ok {
		t.Error("a key that is fresh again")
	}
	if reset(s, c, "k") {
		t.Error("a fresh key was reset")
	}
	if reset(s, nil, "") {
		t.Error("nothing was reset")
	}
	if _, ok := peek(s, nil, nil); ok {
		t.Error("a state of nothing")
	}
}

func TestNewRefuses(t *testing.T) {
	for _, o := range []Options{{MaxKeys: -1}, {MaxBytes: -1}, {SnapshotEvery: -1},
		{Snapshot: "no/such/folder/snapshot"}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
}

func TestWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c wallClock
		c.init()
		for _, d := range []time.Duration{0, time.Microsecond, time.Millisecond, time.Second, time.Hour,
			1000 * time.Hour} {
			time.Sleep(d)
			if got, want := c.now(), time.Now().UnixMicro(); got != want {
				t.Errorf("after %v: %d, want %d", d, got, want)
			}
		}
	})
	// The wall clock was set: the reading follows once the last one is old enough.
	synctest.Test(t, func(t *testing.T) {
		var c wallClock
		c.init()
		c.offset.Add(int64(time.Hour))
		if got := c.now(); got <= time.Now().UnixMicro() {
			t.Error("the offset is not used")
		}
		time.Sleep(time.Duration(resyncAfter) + 1)
		if got, want := c.now(), time.Now().UnixMicro(); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	})
}

// TestOvertaken: a Take whose reading of the clock is older than another one's, which got the lock
// first, reads it again.
func TestOvertaken(t *testing.T) {
	readings := []int64{100_000_000, 90_000_000, 110_000_000, 80_000_000, 80_000_000}
	i := -1
	s := newTest(t, Options{Clock: func() int64 { i++; return readings[i] }})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Hour})
	for _, want := range []int64{100_000_000, 110_000_000, 80_000_000} {
		now, err := s.Take(context.Background(), []store.Charge{{Counter: c, Limit: c.Limit, Ask: algo.Ask{Cost: 1}}},
			make([]algo.Result, 1))
		if err != nil || now != want {
			t.Errorf("decided at %d, %v, want %d", now, err, want)
		}
	}
	i = -1
	both := []store.Charge{{Counter: c, Limit: c.Limit, Ask: algo.Ask{Cost: 1}},
		{Counter: c, Limit: c.Limit, Key: []byte("k"), Ask: algo.Ask{Cost: 1}}}
	s = newTest(t, Options{Clock: s.clock})
	for _, want := range []int64{100_000_000, 110_000_000, 80_000_000} {
		if now, err := s.Take(context.Background(), both, make([]algo.Result, 2)); err != nil || now != want {
			t.Errorf("decided at %d, %v, want %d", now, err, want)
		}
	}
}

// peek returns how a key stands under its counter's own limit; ok is false if it is fresh.
func peek(s *Store, c *rule.Counter, key []byte) (store.KeyState, bool) {
	k, ok, _ := storetest.Peek(context.Background(), s, c, key)
	return k, ok
}
