package overload

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func newLimiter(t testing.TB, o Options) *Limiter {
	t.Helper()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// unloaded is the quantile of how long a server takes for requests that come alone.
func unloaded(takes func() time.Duration, q float64) time.Duration {
	all := make([]time.Duration, 20_000)
	for i := range all {
		all[i] = takes()
	}
	slices.Sort(all)
	return all[int(q*float64(len(all)))]
}

// mixed is a load of which a tenth is critical, and the rest half and half.
func mixed(rate float64) []stream {
	return []stream{{Critical, steady(rate * 0.1)}, {Default, steady(rate * 0.45)}, {Sheddable, steady(rate * 0.45)}}
}

// TestHolds sends three times what a server can do, in virtual time. The latency stays near the
// unloaded one, the server busy, and critical requests get through. Where a server works on few
// requests at a time, one that waits is a larger part of the latency.
func TestHolds(t *testing.T) {
	for _, c := range []struct {
		name       string
		workers    int
		takes      func() time.Duration
		mean       time.Duration
		contention float64
		p99        float64 // at most, over the unloaded one
		critical   float64 // admitted at least
		busy       float64 // share of the server's capacity, at least
	}{
		{"two workers", 2, constant(10 * time.Millisecond), 10 * time.Millisecond, 0, 3, 0.98, 0.75},
		{"eight workers with contention", 8, constant(20 * time.Millisecond), 20 * time.Millisecond, 0.3, 2, 0.99, 0.75},
		{"eight slower ones", 8, constant(40 * time.Millisecond), 40 * time.Millisecond, 0.1, 2.2, 0.99, 0.75},
		{"many workers", 64, constant(200 * time.Millisecond), 200 * time.Millisecond, 0.1, 1.8, 0.99, 0.75},
		{"exponential", 8, exponential(20*time.Millisecond, 1), 20 * time.Millisecond, 0.3, 1.5, 0.99, 0.75},
		{"many exponential", 64, exponential(200*time.Millisecond, 2), 200 * time.Millisecond, 0, 1.5, 0.99, 0.75},
		{"long tail", 64, lognormal(65*time.Millisecond, 1.5, 3), 200 * time.Millisecond, 0, 1.5, 0.99, 0.75},
		// few samples, and all of them noise
		{"seconds", 64, exponential(2*time.Second, 4), 2 * time.Second, 0, 1.5, 0.97, 0.6},
	} {
		t.Run(c.name, func(t *testing.T) {
			p99 := unloaded(c.takes, 0.99)
			synctest.Test(t, func(t *testing.T) {
				l := newLimiter(t, Options{})
				able := float64(c.workers) / c.mean.Seconds()
				length := max(30*time.Second, 200*c.mean)
				all := run(1, &server{workers: c.workers, takes: c.takes, contention: c.contention}, of(l), length,
					mixed(3*able)...)
				all = between(all, length/3, length)
				served := 0
				for _, s := range all {
					if s.took > 0 {
						served++
					}
				}
				if got := float64(quantile(all, 0.99)) / float64(p99); got > c.p99 {
					t.Errorf("p99 is %.2f of the unloaded one, more than %v", got, c.p99)
				}
				if got := float64(served) / (length - length/3).Seconds() / able; got < c.busy {
					t.Errorf("the server did %.2f of what it can", got)
				}
				admitted, total := admittedOf(all, Critical)
				if got := float64(admitted) / float64(total); got < c.critical {
					t.Errorf("%.4f of the critical requests were admitted, fewer than %v", got, c.critical)
				}
				admitted, total = admittedOf(all, Sheddable)
				if got := float64(admitted) / float64(total); got > 0.12 {
					t.Errorf("%.3f of the sheddable requests were admitted, though the others alone are too many", got)
				}
				if s := l.Stats(); s.InFlight != 0 {
					t.Errorf("at the end %d are under way", s.InFlight)
				}
			})
		})
	}
}

// TestAtEase: a server that is not overloaded refuses nothing, also one that works on more at a
// time than the initial limit.
func TestAtEase(t *testing.T) {
	for _, workers := range []int{8, 200} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, Options{})
			takes := 100 * time.Millisecond
			all := run(2, &server{workers: workers, takes: constant(takes)}, of(l), 30*time.Second,
				mixed(0.4*float64(workers)/takes.Seconds())...)
			for _, s := range between(all, 10*time.Second, 30*time.Second) {
				if s.took == 0 {
					t.Fatalf("%d workers: a %v request was refused at %v", workers, s.priority, s.at)
				}
			}
		})
	}
}

// TestLessImportantFirst: where only part of the load is too much, what is refused is the least
// important.
func TestLessImportantFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{})
		takes := 50 * time.Millisecond
		able := 16 / takes.Seconds()
		all := run(3, &server{workers: 16, takes: constant(takes)}, of(l), 30*time.Second,
			stream{Critical, steady(0.1 * able)}, stream{Default, steady(0.4 * able)},
			stream{Sheddable, steady(2 * able)})
		all = between(all, 10*time.Second, 30*time.Second)
		share := func(p Priority) float64 {
			admitted, total := admittedOf(all, p)
			return float64(admitted) / float64(total)
		}
		if share(Critical) < 0.99 || share(Default) < 0.97 {
			t.Errorf("admitted: %.3f of the critical, %.3f of the default requests", share(Critical), share(Default))
		}
		// The rest, half of the server's capacity, is not withheld either.
		if s := share(Sheddable); s < 0.15 || s > 0.3 {
			t.Errorf("%.3f of the sheddable requests were admitted, and a quarter has room", s)
		}
	})
}

// TestFollows: the limit follows a server that gets fewer workers and then more, and one that
// becomes slower for another reason than load.
func TestFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{})
		takes := 100 * time.Millisecond
		s := &server{workers: 32, takes: func() time.Duration { return takes }}
		go func() {
			time.Sleep(30 * time.Second)
			s.resize(8)
			time.Sleep(30 * time.Second)
			s.resize(32)
			time.Sleep(30 * time.Second)
			s.mu.Lock()
			takes = 500 * time.Millisecond
			s.mu.Unlock()
		}()
		all := run(4, s, of(l), 120*time.Second, mixed(2*32/takes.Seconds())...)
		for _, phase := range []struct {
			name    string
			from    time.Duration
			workers float64
			takes   time.Duration
		}{
			{"32 workers", 10 * time.Second, 32, 100 * time.Millisecond},
			{"8 workers", 40 * time.Second, 8, 100 * time.Millisecond},
			{"32 workers again", 75 * time.Second, 32, 100 * time.Millisecond},
			{"slower ones", 105 * time.Second, 32, 500 * time.Millisecond},
		} {
			part := between(all, phase.from, phase.from+15*time.Second)
			served := 0
			for _, s := range part {
				if s.took > 0 {
					served++
				}
			}
			if got := float64(served) / 15 / (phase.workers / phase.takes.Seconds()); got < 0.8 {
				t.Errorf("%s: the server did %.2f of what it can", phase.name, got)
			}
			if got := float64(quantile(part, 0.99)) / float64(phase.takes); got > 2.2 {
				t.Errorf("%s: p99 is %.2f times what a request takes", phase.name, got)
			}
		}
	})
}

// TestDrops: a server that fails under load gets fewer requests, and more again when it recovers;
// one that fails without load does not.
func TestDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{})
		failing := true
		g := func(p Priority) func() {
			permit, ok := l.Acquire(p)
			if !ok {
				return nil
			}
			return func() {
				if failing {
					permit.Drop()
				} else {
					permit.Done()
				}
			}
		}
		s := &server{workers: 1000, takes: constant(20 * time.Millisecond)}
		run(5, s, g, 5*time.Second, stream{Default, steady(100)}) // two at a time
		if got := l.Limit(); got != 20 {
			t.Errorf("errors of a server without load set the limit to %d", got)
		}
		run(6, s, g, 5*time.Second, stream{Default, steady(2000)})
		if got := l.Limit(); got > 5 {
			t.Errorf("a server that fails under load still has a limit of %d", got)
		}
		failing = false
		run(7, s, g, 20*time.Second, stream{Default, steady(2000)})
		if got := l.Limit(); got < 40 {
			t.Errorf("a server that has recovered, and works on 40 at a time, has a limit of %d", got)
		}
	})
}

func TestFixed(t *testing.T) {
	l := newLimiter(t, Options{Fixed: 3})
	var held []Permit
	for range 3 {
		p, ok := l.Acquire(Default)
		if !ok {
			t.Fatal("refused below the limit")
		}
		held = append(held, p)
	}
	if l.WouldAdmit(Critical) {
		t.Error("a fourth would be admitted")
	}
	if p, ok := l.Acquire(Critical); ok || p.Held() {
		t.Error("a fourth was admitted")
	}
	always, ok := l.Acquire(Always)
	if !ok {
		t.Error("Always was refused")
	}
	if held[0].Streams() {
		t.Error("a fixed limit counts to the end")
	}
	always.Done()
	held[0].Done()
	held[0].Done()
	if s := l.Stats(); s.InFlight != 2 || s.Limit != 3 || s.Refused != [3]uint64{0, 0, 1} ||
		s.Admitted != [3]uint64{0, 3, 1} {
		t.Errorf("%+v", s)
	}
	held[1].Return()
	held[2].Cancel()
	var none Permit
	none.Exclude(time.Second)
	none.Drop()
	if s := l.Stats(); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

// TestFixedReserve: once critical requests have come, some of a fixed limit is theirs.
func TestFixedReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Options{Fixed: 20})
		all := run(8, &server{workers: 10, takes: constant(20 * time.Millisecond)}, of(l), 20*time.Second,
			stream{Critical, steady(50)}, stream{Default, steady(1500)})
		admitted, total := admittedOf(between(all, 2*time.Second, 20*time.Second), Critical)
		if float64(admitted) < 0.99*float64(total) {
			t.Errorf("%d of %d critical requests were admitted", admitted, total)
		}
		if s := l.Stats(); s.Limit != 20 || s.Room[2] != 20 || s.Room[1] < 10 || s.Room[1] > 18 {
			t.Errorf("%+v", s)
		}
	})
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{Fixed: -1}, {Fixed: MaxLimit + 1}, {Fixed: 5, Max: 7}, {Min: 5, Max: 3}, {Min: -1},
		{Max: MaxLimit + 1}, {Initial: 3, Min: 5}, {Max: 10, Initial: 11}} {
		if l, err := New(o); err == nil || l != nil || !strings.Contains(err.Error(), "concurrency") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if l := newLimiter(t, Options{Min: 50}); l.Limit() != 50 {
		t.Errorf("begins at %d", l.Limit())
	}
	if l := newLimiter(t, Options{Max: 7}); l.Limit() != 7 {
		t.Errorf("begins at %d", l.Limit())
	}
}

// TestCounts: whatever happens in whatever order, the rooms are in order and within bounds, and
// nothing is lost.
func TestCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.IntRange(1, 30).Draw(t, "min")
		most := rapid.IntRange(least, 60).Draw(t, "max")
		o := Options{Min: least, Max: most}
		if rapid.Bool().Draw(t, "fixed") {
			o = Options{Fixed: most}
			least = most
		}
		l, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		var held []Permit
		always := 0
		priorities := []Priority{Sheddable, Default, Critical, Always}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch step := rapid.IntRange(0, 9).Draw(t, "step"); {
			case step < 5:
				p := rapid.SampledFrom(priorities).Draw(t, "priority")
				would := l.WouldAdmit(p)
				permit, ok := l.Acquire(p)
				if ok != would || ok != permit.Held() {
					t.Fatalf("WouldAdmit %v, Acquire %v, Held %v", would, ok, permit.Held())
				}
				if ok {
					held = append(held, permit)
				}
				if p == Always {
					always++
				}
			case len(held) > 0:
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				p := held[i]
				held = slices.Delete(held, i, i+1)
				// As if it had begun long ago, so that windows close.
				p.start -= int64(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "took"))
				l.began = l.began.Add(-time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "passes")))
				[]func(){p.Done, p.Drop, p.Cancel, p.Return, p.Done, p.Done}[rapid.IntRange(0, 5).Draw(t, "how")]()
			}
			s := l.Stats()
			if s.InFlight != len(held) {
				t.Fatalf("%d are held and %d under way", len(held), s.InFlight)
			}
			if s.Limit < least || s.Limit > most || s.Room[0] < 1 || s.Room[0] > s.Room[1] ||
				s.Room[1] > max(s.Room[2], 1) || s.Room[2] > most {
				t.Fatalf("limit from %d to %d, and %+v", least, most, s)
			}
		}
	})
}

// TestConcurrent: many at once never exceed the limit, and leave nothing behind.
func TestConcurrent(t *testing.T) {
	l := newLimiter(t, Options{Fixed: 5})
	var (
		mu        sync.Mutex
		now, most int
		wg        sync.WaitGroup
	)
	for i := range 32 {
		wg.Go(func() {
			for range 300 {
				p, ok := l.Acquire(Priorities[i%3])
				if !ok {
					continue
				}
				mu.Lock()
				now++
				most = max(most, now)
				mu.Unlock()
				mu.Lock()
				now--
				mu.Unlock()
				p.Done()
				_ = l.Stats()
			}
		})
	}
	wg.Wait()
	if most > 5 || l.Stats().InFlight != 0 {
		t.Errorf("at most %d at a time, and at the end %d", most, l.Stats().InFlight)
	}
}

func TestNoAllocation(t *testing.T) {
	l := newLimiter(t, Options{})
	if n := testing.AllocsPerRun(1000, func() {
		p, ok := l.Acquire(Default)
		if ok {
			p.Done()
		}
	}); n > 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func BenchmarkAcquire(b *testing.B) {
	l := newLimiter(b, Options{})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if p, ok := l.Acquire(Default); ok {
				p.Done()
			}
		}
	})
}
