package load

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
)

var _ weir.Signals = (*Registry)(nil)

// start runs a registry in a bubble of synctest until the test ends.
func start(t *testing.T, o Options) *Registry {
	t.Helper()
	if o.Root == nil {
		o.Root = fstest.MapFS{}
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return r
}

func info(t *testing.T, r *Registry, name string) Info {
	t.Helper()
	for _, i := range r.List() {
		if i.Name == name {
			return i
		}
	}
	t.Fatalf("%s is not listed", name)
	return Info{}
}

// files is a file system that changes while it is read.
type files struct {
	mu sync.Mutex
	m  fstest.MapFS
}

func (f *files) set(name, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m[name] = &fstest.MapFile{Data: []byte(text)}
}

func (f *files) Open(name string) (fs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.m.Open(name)
}

// TestElastic ramps a signal up and down in virtual time: at every moment the limit is the curve's,
// to the unit, on the filtered value, which follows the ramp closely and in order.
func TestElastic(t *testing.T) {
	curve := &rule.Elastic{Signal: "queue", Curve: []rule.Point{{At: 50, Share: 200}, {At: 80, Share: 100},
		{At: 95, Share: 25}}}
	want := func(v, n int) int { // the curve, written out anew
		switch {
		case v <= 50:
			return n * 2
		case v <= 80:
			return n * (200*30 - 100*(v-50)) / (30 * 100)
		case v <= 95:
			return n * (100*15 - 75*(v-80)) / (15 * 100)
		}
		return n / 4
	}
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Options{})
		r.SetUsed([]string{"queue"})
		last, seen := 0, map[int]bool{}
		ramp := func(from, to, step int) {
			for raw := from; raw != to+step; raw += step {
				if err := r.Push("queue", float64(raw), time.Minute); err != nil {
					t.Fatal(err)
				}
				for range 5 {
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
					v, ok := r.Signal("queue")
					if !ok {
						t.Fatal("no value")
					}
					if (v-last)*step < 0 {
						t.Fatalf("on a ramp by %+d the value went from %d to %d", step, last, v)
					}
					// The average lags behind a ramp of 2 percent a second by 4 percent, and the
					// value by one more.
					if math.Abs(float64(v-raw)) > 6 {
						t.Fatalf("at %d the value is %d", raw, v)
					}
					last, seen[v] = v, true
					num, den := curve.Share(v)
					for _, n := range []int{1, 7, 100, 999} {
						if got := int64(n) * num / den; got != int64(want(v, n)) {
							t.Fatalf("at %d percent a limit of %d is %d, and the curve says %d", v, n, got, want(v, n))
						}
					}
				}
			}
		}
		ramp(0, 100, 1)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		last, _ = r.Signal("queue")
		if last != 100 {
			t.Errorf("at the top it is %d", last)
		}
		ramp(100, 0, -1)
		if len(seen) < 95 {
			t.Errorf("only %d values were seen", len(seen))
		}
	})
}

// TestFilter holds the numbers that are promised in docs/guides/overload.md.
func TestFilter(t *testing.T) {
	start := time.Unix(1e9, 0)
	for _, c := range []struct {
		from, to float64
		within   time.Duration
	}{{0, 100, 12 * time.Second}, {100, 0, 12 * time.Second}, {50, 75, 9300 * time.Millisecond},
		{40, 41, 2800 * time.Millisecond}} {
		var f filter
		f.step(start, c.from)
		var half, there time.Duration
		for d := tick; d <= time.Minute; d += tick {
			v := f.step(start.Add(d), c.to)
			if half == 0 && math.Abs(f.average-c.from) >= math.Abs(c.to-c.from)/2 {
				half = d
			}
			if there == 0 && v == int(c.to) {
				there = d
			}
		}
		if half != 1400*time.Millisecond {
			t.Errorf("from %v to %v: half of the way took %v", c.from, c.to, half)
		}
		if there == 0 || there > c.within {
			t.Errorf("from %v to %v: the value was there after %v, and %v is promised", c.from, c.to, there, c.within)
		}
	}
}

// TestNoFlapping: noise around a value moves the filtered one hardly, and a little noise not at
// all.
func TestNoFlapping(t *testing.T) {
	for _, c := range []struct {
		amplitude    float64
		spread, most int // of values, and changes in ten minutes
	}{{2, 1, 0}, {10, 7, 700}} {
		random := rand.New(rand.NewPCG(1, 2))
		var f filter
		start := time.Unix(1e9, 0)
		f.step(start, 60)
		changes, least, most, last := 0, 100, 0, f.value
		for d := tick; d < 10*time.Minute; d += tick {
			v := f.step(start.Add(d), 60+c.amplitude*(2*random.Float64()-1))
			if v != last {
				changes++
			}
			last, least, most = v, min(least, v), max(most, v)
		}
		if changes > c.most || most-least > c.spread {
			t.Errorf("noise of ±%v: %d changes, between %d and %d", c.amplitude, changes, least, most)
		}
	}
}

func TestPushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Options{})
		if _, ok := r.Signal("load"); ok {
			t.Error("a signal that nobody pushed has a value")
		}
		r.SetUsed([]string{"load", "bad name"})
		if i := info(t, r, "load"); !i.Stale || !i.Used || i.Seen || i.Kind != Pushed {
			t.Errorf("%+v", i)
		}
		if err := r.Push("load", 40, 0); err != nil {
			t.Fatal(err)
		}
		// The first value holds at once.
		if v, ok := r.Signal("load"); v != 40 || !ok {
			t.Errorf("%d, %v", v, ok)
		}
		time.Sleep(defaultTTL - time.Second)
		synctest.Wait()
		if err := r.Push("load", 80, 3*time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(1450 * time.Millisecond)
		synctest.Wait()
		if v, ok := r.Signal("load"); v < 59 || v > 61 || !ok {
			t.Errorf("half of the way: %d, %v", v, ok)
		}
		if i := info(t, r, "load"); i.Raw != 80 || i.Stale || i.Age != 1450*time.Millisecond {
			t.Errorf("%+v", i)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if v, ok := r.Signal("load"); ok {
			t.Errorf("stale, and yet %d", v)
		}
		// After that it begins anew, without what was before.
		if err := r.Push("load", 10, time.Second); err != nil {
			t.Fatal(err)
		}
		if v, ok := r.Signal("load"); v != 10 || !ok {
			t.Errorf("%d, %v", v, ok)
		}
	})
}

func TestBadPush(t *testing.T) {
	r, err := New(Options{Queries: map[string]Query{"asked": {URL: "http://localhost:9090", Query: "1"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		percent float64
		ttl     time.Duration
	}{
		{"", 1, 0}, {"a b", 1, 0}, {"a/b", 1, 0}, {strings.Repeat("x", 101), 1, 0}, {"Load", 1, 0}, {"cpu", 1, 0}, {"asked", 1, 0},
		{"x", -1, 0}, {"x", 100.1, 0}, {"x", math.NaN(), 0}, {"x", math.Inf(1), 0}, {"x", 1, -1}, {"x", 1, 25 * time.Hour},
	} {
		if err := r.Push(c.name, c.percent, c.ttl); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if _, ok := r.Signal("x"); ok {
		t.Error("x has a value")
	}
}

// TestBounded: strangers cannot fill the memory, and make room for others when they are stale.
func TestBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Options{})
		for i := range mostPushed {
			if err := r.Push(fmt.Sprint("s", i), 50, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Push("more", 50, 0); err != ErrFull {
			t.Errorf("%v", err)
		}
		if err := r.Push("s7", 60, 0); err != nil {
			t.Errorf("one that is there: %v", err)
		}
		time.Sleep(61 * time.Second)
		if err := r.Push("more", 50, 0); err != nil {
			t.Error(err)
		}
		if n := len(r.List()); n != 5+1 {
			t.Errorf("%d signals are left", n)
		}
	})
}

const statLine = "cpu  %d 0 0 %d 0 0 0 0 0 0\ncpu0 1 1 1 1\n"

// TestMachine: signals of a machine without control groups, only while a rule uses them.
func TestMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &files{m: fstest.MapFS{}}
		busy, idle, stalled := 0, 0, 0
		pass := func(percent int, d time.Duration) {
			for ; d > 0; d -= 100 * time.Millisecond {
				busy, idle, stalled = busy+percent, idle+100-percent, stalled+100_000*percent/100
				f.set("proc/stat", fmt.Sprintf(statLine, busy, idle))
				f.set("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
				f.set("proc/pressure/memory",
					fmt.Sprintf(
						"some avg10=99.00 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", stalled))
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
		}
		f.set("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  5 kB\nMemAvailable:    250 kB\n")
		r := start(t, Options{Root: f})
		pass(70, time.Second)
		if i := info(t, r, CPU); i.Seen || !i.Stale || i.Errors != 0 {
			t.Errorf("cpu is measured though nobody uses it: %+v", i)
		}
		r.SetUsed([]string{CPU, Memory, Pressure})
		pass(70, 30*time.Second)
		for name, want := range map[string]int{CPU: 70, Memory: 75, Pressure: 70} {
			if v, ok := r.Signal(name); !ok || v < want-1 || v > want+1 {
				t.Errorf("%s: %d, %v", name, v, ok)
			}
		}
		pass(20, 20*time.Second)
		if v, ok := r.Signal(CPU); !ok || v < 19 || v > 21 {
			t.Errorf("cpu: %d, %v", v, ok)
		}
		// A file that is broken: what was known counts for ten seconds.
		f.set("proc/meminfo", "MemTotal: x kB\n")
		pass(20, 9*time.Second)
		if v, ok := r.Signal(Memory); !ok || v != 75 {
			t.Errorf("memory: %d, %v", v, ok)
		}
		pass(20, 3*time.Second)
		if i := info(t, r, Memory); !i.Stale || i.Errors < 8 || !strings.Contains(i.Error, "MemTotal") {
			t.Errorf("%+v", i)
		}
		r.SetUsed(nil)
		if _, ok := r.Signal(CPU); ok {
			t.Error("cpu has a value though nobody uses it")
		}
	})
}

// TestWatched: what is watched is measured though no rule uses it, before rules are set and after.
func TestWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &files{m: fstest.MapFS{}}
		f.set("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
		r := start(t, Options{Root: f, Watch: []string{Memory}})
		for _, used := range [][]string{nil, {Memory}, nil, {InFlight}} {
			time.Sleep(20 * time.Second)
			if i := info(t, r, Memory); i.Stale || i.Value != 75 {
				t.Errorf("%+v", i)
			}
			if i := info(t, r, CPU); i.Seen || i.Errors != 0 {
				t.Errorf("cpu is measured though nobody asked: %+v", i)
			}
			r.SetUsed(used)
			if i := info(t, r, Memory); i.Used != slices.Contains(used, Memory) || i.Stale {
				t.Errorf("of the rules that use %v: %+v", used, i)
			}
		}
	})
}

// TestControlGroup: the limits of control groups count, also those set on a group above.
func TestControlGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &files{m: fstest.MapFS{}}
		f.set("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
		f.set("proc/self/cgroup", "0::/slice/weir\n")
		f.set("sys/fs/cgroup/slice/weir/cpu.max", "max 100000\n")
		f.set("sys/fs/cgroup/slice/cpu.max", "200000 100000\n") // two processors
		f.set("sys/fs/cgroup/slice/weir/memory.max", "1000000\n")
		f.set("sys/fs/cgroup/slice/weir/memory.current", "900000\n")
		f.set("sys/fs/cgroup/slice/weir/memory.stat", "anon 5\ninactive_file 300000\n")
		f.set("sys/fs/cgroup/slice/memory.max", "10000000\n")
		f.set("sys/fs/cgroup/slice/memory.current", "1000000\n")
		f.set("proc/stat", fmt.Sprintf(statLine, 1, 1))
		r := start(t, Options{Root: f})
		r.SetUsed([]string{CPU, Memory, Pressure})
		used, stalled := 5, 5
		for range 150 {
			used, stalled = used+150_000, stalled+40_000 // µs in 100 ms: one and a half processors
			f.set("sys/fs/cgroup/slice/cpu.stat", fmt.Sprintf("usage_usec %d\nuser_usec 1\n", used))
			for _, what := range []string{"cpu", "memory", "io"} {
				f.set("sys/fs/cgroup/slice/weir/"+what+".pressure",
					fmt.Sprintf("some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n", stalled))
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		for name, want := range map[string]int{CPU: 75, Memory: 60, Pressure: 40} {
			if v, ok := r.Signal(name); !ok || v < want-1 || v > want+1 {
				t.Errorf("%s: %d, %v: %+v", name, v, ok, info(t, r, name))
			}
		}
	})
}

func TestNoFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, Options{})
		r.SetUsed([]string{CPU, Memory, Pressure, InFlight, UpstreamLatency})
		time.Sleep(time.Second)
		synctest.Wait()
		for _, name := range []string{CPU, Memory, Pressure, InFlight} {
			if i := info(t, r, name); !i.Stale || i.Errors == 0 || !strings.HasPrefix(i.Error, name+": ") {
				t.Errorf("%+v", i)
			}
		}
	})
}

func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		capacity := 20
		r := start(t, Options{Capacity: func() int { return capacity }})
		r.SetUsed([]string{InFlight, UpstreamLatency})
		for range 15 {
			r.Enter()
		}
		answer := func(latency, d time.Duration) {
			for ; d > 0; d -= 100 * time.Millisecond {
				for range 20 {
					r.Answered(latency)
				}
				time.Sleep(100 * time.Millisecond)
			}
			synctest.Wait()
		}
		answer(10*time.Millisecond, 20*time.Second)
		if v, ok := r.Signal(InFlight); v != 75 || !ok {
			t.Errorf("in_flight: %d, %v", v, ok)
		}
		if v, ok := r.Signal(UpstreamLatency); v != 0 || !ok {
			t.Errorf("upstream_latency: %d, %v", v, ok)
		}
		for range 30 {
			r.Enter()
		}
		answer(40*time.Millisecond, 15*time.Second)
		if v, ok := r.Signal(InFlight); v != 100 || !ok {
			t.Errorf("in_flight: %d, %v", v, ok)
		}
		if v, ok := r.Signal(UpstreamLatency); v < 73 || v > 75 || !ok {
			t.Errorf("upstream_latency at four times the baseline: %d, %v", v, ok)
		}
		answer(10*time.Millisecond, 15*time.Second)
		if v, ok := r.Signal(UpstreamLatency); v > 1 || !ok {
			t.Errorf("upstream_latency: %d, %v", v, ok)
		}
		// A server that has become slower for good is the new normal after an hour.
		answer(40*time.Millisecond, time.Hour)
		if v, ok := r.Signal(UpstreamLatency); v > 3 || !ok {
			t.Errorf("upstream_latency: %d, %v", v, ok)
		}
		// Nobody asks any more: nothing is known.
		for range 45 {
			r.Leave()
		}
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if _, ok := r.Signal(UpstreamLatency); ok {
			t.Error("upstream_latency is not stale")
		}
		if v, ok := r.Signal(InFlight); v > 1 || !ok || r.InFlight() != 0 {
			t.Errorf("in_flight: %d, %v", v, ok)
		}
	})
}

// TestThisMachine reads the real files where this is Linux.
func TestThisMachine(t *testing.T) {
	r, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(r.o.Root, "proc/meminfo"); err != nil {
		t.Skip("no /proc")
	}
	r.SetUsed([]string{CPU, Memory})
	now := time.Now()
	r.move(t.Context(), now)
	patience.Until(t, "the clock of the kernel moves on", func() bool {
		now = now.Add(time.Second)
		r.move(t.Context(), now)
		_, ok := r.Signal(CPU)
		return ok
	})
	for _, name := range []string{CPU, Memory} {
		if i := info(t, r, name); i.Stale || i.Error != "" {
			t.Errorf("%+v", i)
		}
	}
}

func TestConcurrent(t *testing.T) {
	r, err := New(Options{Root: fstest.MapFS{}, Capacity: func() int { return 10 }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running, using sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	for i := range 8 {
		using.Go(func() {
			for j := range 200 {
				r.Enter()
				r.Answered(time.Millisecond)
				r.SetUsed([]string{InFlight, fmt.Sprint("p", j%3)})
				if err := r.Push(fmt.Sprint("p", i), float64(j%100), time.Second); err != nil {
					t.Error(err)
				}
				r.Signal("p1")
				r.List()
				r.Leave()
			}
		})
	}
	using.Wait()
	cancel()
	running.Wait()
	if r.InFlight() != 0 {
		t.Error(r.InFlight())
	}
	if !slices.IsSortedFunc(r.List(), func(a, b Info) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("not in order")
	}
}

func TestSignalAllocates(t *testing.T) {
	r, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Push("x", 5, 0); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		r.Signal("x")
		r.Enter()
		r.Answered(5)
		r.Leave()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSignal(b *testing.B) {
	r, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	if err := r.Push("x", 5, 0); err != nil {
		b.Fatal(err)
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r.Signal("x")
		}
	})
}

// TestMemorySize: of the machine's memory and the limits of control groups the least counts.
func TestMemorySize(t *testing.T) {
	f := &files{m: fstest.MapFS{}}
	if n := MemorySize(f); n != 0 {
		t.Errorf("where nothing is told: %d", n)
	}
	f.set("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
	if n := MemorySize(f); n != 1000<<10 {
		t.Errorf("of the machine: %d", n)
	}
	f.set("sys/fs/cgroup/cgroup.controllers", "memory\n")
	f.set("proc/self/cgroup", "0::/a/b\n")
	f.set("sys/fs/cgroup/a/b/memory.max", "max\n")
	f.set("sys/fs/cgroup/a/memory.max", "500000\n")
	f.set("sys/fs/cgroup/memory.max", "9000000000\n")
	if n := MemorySize(f); n != 500000 {
		t.Errorf("of a group: %d", n)
	}
}
