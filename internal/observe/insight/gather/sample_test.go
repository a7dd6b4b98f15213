package gather

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
	"pgregory.net/rapid"
)

func hashOf(seed uint64, i int) uint64 {
	return hashKey(seed, binary.LittleEndian.AppendUint64(nil, uint64(i)))
}

// give gives a sample some keys, as the deciding path and the Collector do together.
func give(s *sample, hash uint64) {
	if s.find(hash) < 0 && hash < s.limit() {
		s.insert(hash)
	}
}

// The number of keys is estimated within 6 standard errors, in each of 1,000 runs; below k it is
// exact.
func TestDistinct(t *testing.T) {
	for run := 0; run < 1000; run += effort.Of(20, 1) {
		s := newSample(512, 1, false)
		n := 100 + run*run/200 // to 5,000
		for i := range n {
			give(s, hashOf(uint64(run), i))
			give(s, hashOf(uint64(run), i/2)) // what comes again changes nothing
		}
		snapshot := s.snapshot()
		got, standardError := snapshot.Distinct()
		if n < 512 && (got != float64(n) || standardError != 0) {
			t.Fatalf("run %d: %v keys ± %v, want exactly %d", run, got, standardError, n)
		}
		if off := math.Abs(got/float64(n) - 1); off > 6*standardError+1e-9 {
			t.Errorf("run %d: %v keys estimated, %d came: off by %.1f standard errors", run, got, n, off/standardError)
		}
	}
}

// The samples of 4 nodes, merged in any order, are the sample of one node that saw all.
func TestMergedSamples(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	one := newSample(64, 1, false)
	var nodes [4]*sample
	for i := range nodes {
		nodes[i] = newSample(64, 1, false)
	}
	for range 20_000 {
		hash := hashOf(1, random.IntN(3000))
		give(one, hash)
		give(nodes[random.IntN(4)], hash)
	}
	for _, order := range [][4]int{{0, 1, 2, 3}, {3, 1, 0, 2}} {
		merged := snapshot.Sample{}
		for _, i := range order {
			s := nodes[i].snapshot()
			merged.Merge(&s)
		}
		want := one.snapshot()
		if len(merged.Keys) != 64 {
			t.Fatalf("%d keys", len(merged.Keys))
		}
		for i := range want.Keys {
			if fmt.Sprintf("%+v", merged.Keys[i]) != fmt.Sprintf("%+v", want.Keys[i]) {
				t.Fatalf("key %d is %+v merged, %+v on one node", i, merged.Keys[i], want.Keys[i])
			}
		}
		a, _ := merged.Distinct()
		if b, _ := want.Distinct(); a != b {
			t.Errorf("%v keys merged, %v on one node", a, b)
		}
	}
}

// What 4 nodes know of the sampled keys of one rule is, merged, what one node knows that decided
// all of it: of each key what it asked, how much of that was refused, and its demand.
func TestMergedKeys(t *testing.T) {
	run := func(nodes int) *snapshot.Rule {
		list := fleet(t, nodes, searchRule)
		random := rand.New(rand.NewPCG(5, 6))
		for range 10_000 {
			user := int(random.ExpFloat64() * 200)
			list[random.IntN(4)%nodes].ask(fmt.Sprint("user-", user))
			for _, b := range list {
				b.gather(true)
			}
			list[0].µs.Add(20_000)
		}
		var snapshots []*snapshot.Snapshot
		for _, b := range list {
			snapshots = append(snapshots, b.Snapshot(snapshot.Want{Samples: true}))
		}
		return &snapshot.Merge(snapshots...).Rules[0]
	}
	one, four := run(1), run(4)
	if len(one.All.Keys) != 512 || len(four.All.Keys) != 512 || one.Summary.Keys != four.Summary.Keys ||
		one.Summary.KeysRefused != four.Summary.KeysRefused {
		t.Errorf("%d keys of %.0f, %.0f refused, on one; %d of %.0f, %.0f refused, on four", len(one.All.Keys),
			one.Summary.Keys,
			one.Summary.KeysRefused, len(four.All.Keys), four.Summary.Keys, four.Summary.KeysRefused)
	}
	for i := range one.All.Keys {
		a, b := &one.All.Keys[i], &four.All.Keys[i]
		if a.Hash != b.Hash || a.Asked != b.Asked || a.Refused != b.Refused ||
			a.Demands[0].Peak() != b.Demands[0].Peak() || a.Fill != b.Fill {
			t.Errorf("key %d is %+v on one node, %+v on four", i, a, b)
		}
	}
}

// Space-Saving: each count is at least the truth and too large by its bound at most, and what comes
// more than one time in m is there. So it is after a merge.
func TestTopList(t *testing.T) {
	const most, nodes = 16, 3
	random := rand.New(rand.NewPCG(3, 4))
	zipf := rand.NewZipf(random, 1.3, 1, 5000)
	truth, total := map[uint64]uint64{}, uint64(0)
	lists := make([]topList, nodes)
	for i := range lists {
		lists[i].most = most
	}
	whole := topList{most: most}
	for range 50_000 {
		key, n := zipf.Uint64(), 1+random.Uint64N(4)
		whole.add(key, n)
		lists[random.IntN(nodes)].add(key, n)
		truth[key] += n
		total += n
	}
	snapshots := make([][]snapshot.TopKey, nodes)
	for i := range lists {
		snapshots[i] = lists[i].snapshot()
	}
	for name, list := range map[string][]snapshot.TopKey{"one": whole.snapshot(),
		"merged": snapshot.MergeTop(most, snapshots...)} {
		there := map[uint64]bool{}
		for _, k := range list {
			there[k.Hash] = true
			if k.Count < truth[k.Hash] || k.Count-k.Over > truth[k.Hash] {
				t.Errorf("%s: key %d came %d times, counted %d with %d too many", name, k.Hash, truth[k.Hash], k.Count,
					k.Over)
			}
		}
		for key, n := range truth {
			if n > total/most && !there[key] {
				t.Errorf("%s: key %d makes up %.0f %% and is not there", name, key, 100*float64(n)/float64(total))
			}
		}
		if len(list) != most {
			t.Errorf("%s: %d keys", name, len(list))
		}
	}
}

// Episodes are told exactly of a client that keeps to a script.
func TestEpisodes(t *testing.T) {
	type step struct {
		at      float64 // s
		refused bool
		wait    float64 // s
	}
	for _, c := range []struct {
		name  string
		steps []step
		until float64
		want  insight.Episodes
	}{
		{"comes when it is told", []step{{0, true, 10}, {10, false, 0}, {11, true, 9}, {25, false, 0}}, 30, insight.Episodes{Obeyed: 2}},
		{"a hundredth early is in time", []step{{0, true, 10}, {9.995, false, 0}, {20, true, 1.009}, {21.008, false, 0}}, 30, insight.Episodes{Obeyed: 1, Early: 1}},
		{"knocks, and is one episode", []step{{0, true, 10}, {1, true, 9}, {2, true, 8}, {3, true, 7}, {10, false, 0}}, 30, insight.Episodes{Early: 1}},
		{"knocks, then obeys", []step{{0, true, 5}, {1, true, 4}, {5, false, 0}, {6, true, 4}, {10, false, 0}}, 30, insight.Episodes{Early: 1, Obeyed: 1}},
		{"never comes back", []step{{0, true, 10}}, 601, insight.Episodes{GaveUp: 1}},
		{"is waited for ten times as long", []step{{0, true, 100}}, 999, insight.Episodes{}},
		{"comes back too late", []step{{0, true, 100}, {1001, true, 10}, {1011, false, 0}}, 1011, insight.Episodes{GaveUp: 1, Obeyed: 1}},
		{"is refused again when it comes", []step{{0, true, 10}, {10, true, 10}, {20, true, 10}, {30, false, 0}}, 30, insight.Episodes{Obeyed: 3}},
		{"knocked, and never came back", []step{{0, true, 10}, {1, true, 9}}, 700, insight.Episodes{Early: 1}},
		{"was not told when", []step{{0, true, 0}, {1, true, 0}, {2, false, 0}}, 3, insight.Episodes{}},
	} {
		var tr keyTrace
		for _, s := range c.steps {
			at := begun.UnixMicro() + int64(s.at*1e6)
			retry := int64(0)
			if s.wait > 0 {
				retry = at + int64(s.wait*1e6)
			}
			tr.note(at, s.refused, retry)
		}
		tr.Expire(begun.UnixMicro() + int64(c.until*1e6))
		if tr.Episodes != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, tr.Episodes, c.want)
		}
	}
}

// fleet is several benches that share a store and a clock.
func fleet(t *testing.T, nodes int, rules string) []*bench {
	t.Helper()
	list := []*bench{newBench(t, Options{Known: []string{"user"}}, rules)}
	first := list[0]
	store, err := memory.New(memory.Options{Clock: first.µs.Load})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	list = nil
	for range nodes {
		b := &bench{t: t, clock: first.clock}
		b.Collector = New(Options{Seed: 1, Known: []string{"user"}, Now: b.time})
		if b.limiter, err = weir.New(store, weir.WithRules(load(t, rules)), weir.WithHooks(b.Hooks()), weir.WithClock(b.µs.Load)); err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	return list
}

const searchRule = "domain: shop\nlimits: [{name: search, per: [user], allow: 10/min, algorithm: fixed_window}]"

// A client that a load balancer sends round robin to 4 nodes has the same demand as on one node,
// within a tenth: each node keeps the windows in which it saw the client most. It has the same
// episodes, too, once all nodes watch it, as long as no node has forgotten events.
func TestSpreadClient(t *testing.T) {
	run := func(nodes, minutes int) (r *snapshot.Rule, watched insight.Episodes) {
		list := fleet(t, nodes, searchRule)
		turn := 0
		minute := func(n int) {
			for range n {
				list[turn%nodes].ask("ada")
				turn++
				list[0].µs.Add(100_000)
			}
			for _, b := range list {
				b.gather(true)
			}
			list[0].µs.Add(time.Minute.Microseconds() - int64(n)*100_000)
		}
		merged := func() *snapshot.Rule {
			var snapshots []*snapshot.Snapshot
			for _, b := range list {
				snapshots = append(snapshots, b.Snapshot(snapshot.Want{Samples: true, Series: true}))
			}
			return &snapshot.Merge(snapshots...).Rules[0]
		}
		minute(12)
		now := merged()
		for _, b := range list {
			b.Watch("shop", "search", now.Refused.Keys)
		}
		for i := range minutes {
			if i%2 == 0 {
				minute(15) // 5 refusals, of which 4 come early
			} else {
				minute(11) // one, which obeys
			}
		}
		minute(10)
		return merged(), now.Refused.Keys[0].Episodes
	}
	for _, minutes := range []int{8, 12} {
		one, before := run(1, minutes)
		four, _ := run(4, minutes)
		if one.Count != four.Count {
			t.Errorf("counts %v on one, %v on four", one.Count, four.Count)
		}
		if len(one.All.Keys) != 1 || len(four.All.Keys) != 1 {
			t.Fatalf("%d and %d keys", len(one.All.Keys), len(four.All.Keys))
		}
		a, b := one.All.Keys[0].Demands[0].Peak(), four.All.Keys[0].Demands[0].Peak()
		if a != 15 || b < 14 || b > 15 {
			t.Errorf("demand %d on one, %d on four; want 15", a, b)
		}
		if fill := four.All.Keys[0].Fill; one.All.Keys[0].Fill != 1.5 || fill < 1.4 || fill > 1.5 {
			t.Errorf("fill %v on one, %v on four", one.All.Keys[0].Fill, fill)
		}
		half := uint64(minutes / 2)
		x, y := one.Refused.Keys[0].Episodes, four.Refused.Keys[0].Episodes
		if x != (insight.Episodes{Early: before.Early + half, Obeyed: half}) || before.Early != 1 {
			t.Errorf("%d minutes on one: %+v, and %+v before", minutes, x, before)
		}
		if minutes == 8 { // no more than lastEvents on each node
			if y.LeftOut = 0; y != (insight.Episodes{Early: half, Obeyed: half}) {
				t.Errorf("%d minutes on four, once all watched: %+v, on one %+v", minutes, y, x)
			}
			continue
		}
		if y.Early+y.LeftOut < half || y.Early < half/2 || y.Obeyed < half/2 || y.Early > half || y.Obeyed > half ||
			y.GaveUp != 0 {
			t.Errorf("%d minutes on four: %+v", minutes, y)
		}
	}
}

// What is thinned stays right: of a flood in which one decision in 64 is looked at, the number of
// keys, their demand and the top keys are what they are without.
func TestThinned(t *testing.T) {
	for seed := range uint64(4) {
		b := newBench(t, Options{Seed: seed + 1}, searchRule)
		random := rand.New(rand.NewPCG(seed, 1))
		hot, refused := 0, map[string]bool{}
		for range 600 {
			for range 50 {
				b.pace.each(func(g *governor, _ int) { g.power = 6 })
				b.storePace()
				if random.IntN(2) == 0 {
					b.ask("hot")
					hot++
					continue
				}
				if user := fmt.Sprint("user-", random.IntN(2000)); !b.ask(user) {
					refused[user] = true
				}
			}
			b.µs.Add(20_000)
			b.gather(false)
		}
		s := b.Snapshot(snapshot.Want{Samples: true, Top: true})
		r := &s.Rules[0]
		if got, e := r.All.Distinct(); math.Abs(got/2001-1) > 6*e {
			t.Errorf("seed %d: %v keys", seed, got)
		}
		top := r.Live[snapshot.TopRefused]
		if len(top) == 0 || top[0].Text != "user=hot" {
			t.Fatalf("seed %d: top %+v", seed, top)
		}
		if !top[0].Estimated {
			t.Errorf("seed %d: one decision in 64 was looked at, and the count passes for exact", seed)
		}
		if got := float64(top[0].Count); math.Abs(got/float64(hot)-1) > 6*8/math.Sqrt(float64(hot)) {
			t.Errorf("seed %d: %v refusals of the hot key, %d came", seed, got, hot)
		}
		if got, e := r.Refused.Distinct(); math.Abs(got/float64(len(refused)+1)-1) > 6*max(e, 0.01) {
			t.Errorf("seed %d: %v keys refused, %d were", seed, got, len(refused)+1)
		}
		above := 0
		for _, k := range r.All.Keys {
			if k.Fill > 1 {
				above++
			}
		}
		share := float64(len(refused)+1) / 2001
		if got := float64(above) / float64(len(r.All.Keys)); math.Abs(got-share) > 6*math.Sqrt(share*(1-share)/512) {
			t.Errorf("seed %d: %.3f of the keys above their limit, %.3f were", seed, got, share)
		}
	}
}

// Where every refusal is looked at, a count is what came.
func TestNotEstimated(t *testing.T) {
	b := newBench(t, Options{}, searchRule)
	refused := uint64(0)
	for range 60 {
		if !b.ask("hot") {
			refused++
		}
	}
	b.gather(false)
	top := b.Snapshot(snapshot.Want{Top: true}).Rules[0].Live[snapshot.TopRefused]
	if len(top) != 1 || top[0].Estimated || top[0].Count != refused || refused == 0 {
		t.Errorf("%d refusals of one key, and the list is %+v", refused, top)
	}
}

// Keys that look like secrets are hidden, long ones are cut, and what is named by Hide is hidden.
func TestKeysAreFitToBeShown(t *testing.T) {
	b := newBench(t, Options{Hide: []string{"user"}},
		"domain: shop\nlimits: [{name: a, per: [header.x-api-key], allow: 1/min}, {name: b, per: [user], allow: 1/min}, {name: c, per: [path], allow: 1/min}]")
	long := make([]byte, 300)
	for i := range long {
		long[i] = 'x'
	}
	for range 3 {
		b.send(weir.Request{Attributes: rule.Pairs{{Name: "header.x-api-key", Value: "sesame"},
			{Name: "user", Value: "ada"}, {Name: "path", Value: "/" + string(long[:200])}}})
	}
	b.pass(time.Second)
	keys, _, err := b.Keys(t.Context(), insight.KeysQuery{By: insight.ByAsked})
	if err != nil || len(keys) != 3 {
		t.Fatalf("%+v, %v", keys, err)
	}
	for _, k := range keys {
		switch k.Rule {
		case "a", "b":
			if !strings.Contains(k.Key, "=hidden:") {
				t.Errorf("%q", k.Key)
			}
		case "c":
			if len(k.Key) > keyText || !strings.HasPrefix(k.Key, "path=/xxx") ||
				!strings.HasSuffix(k.Key, observe.CutMark) {
				t.Errorf("%q", k.Key)
			}
		}
	}
}

// The largest share of a limit that was used is known to a 256th, or to a unit of small limits,
// whatever limits the keys have.
func TestFullest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var f fullestUse
		limits := []int64{0, 1, 3, 20, 1000, 1 << 20, 1<<32 - 1, 1 << 32, 1 << 40, algo.MaxFixedN}
		for range 2 {
			most := 0.0
			for range rapid.IntRange(0, 40).Draw(t, "decisions") {
				limit := rapid.SampledFrom(limits).Draw(t, "limit")
				used := rapid.Int64Range(0, limit).Draw(t, "used")
				f.raise(&weir.LimitResult{Result: algo.Result{Limit: limit, Remaining: limit - used}})
				if limit > 0 {
					most = max(most, float64(used)/float64(limit))
				}
			}
			if got := float64(f.take()); got > most*1.000001 || got < most-1.001/256 {
				t.Fatalf("%v, want %v", got, most)
			}
		}
	})
}
