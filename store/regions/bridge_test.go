package regions

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// counting is a store that counts how often its log is read, and keeps readers waiting while it is
// locked.
type counting struct {
	*memory.Store
	sync.Mutex
	reads int
}

func (s *counting) Told(ctx context.Context, part int, after string, limit int, wait time.Duration) ([]store.Told,
	string, bool, int64, error) {
	s.Lock()
	s.reads++
	s.Unlock()
	return s.Store.Told(ctx, part, after, limit, wait)
}

func (s *counting) Close() error { return nil }

// TestHearsMuch: a region that is far behind reads many small entries at a time, since the way to
// the other one is long, and not too many large ones.
func TestHearsMuch(t *testing.T) {
	c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Window: 30 * 24 * time.Hour},
		rule.Regions{Over: 20, Tell: 2})
	own, other := newMemory(t), &counting{Store: newMemory(t)}
	s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own,
		Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	patience.Until(t, "eu listens", func() bool { return s.Stats().Peers[0].Stale >= 0 })
	tell := func(entries, uses int) {
		t.Helper()
		for range entries {
			var told []store.Told
			for i := range uses {
				told = append(told, store.Told{Counter: c.Regions.All.ID, Key: fmt.Append(nil, i), Units: 1,
					At: time.Now().UnixMicro()})
			}
			if err := other.Tell(context.Background(), 0, told); err != nil {
				t.Fatal(err)
			}
		}
	}
	other.Lock()
	tell(5000, 1)
	tell(100, 100)
	tell(1000, 1)
	before := other.reads
	other.Unlock()
	patience.Until(t, "all is heard", func() bool { return s.Stats().Limits[testLimit].Heard.Used == 16_000 })
	other.Lock()
	defer other.Unlock()
	if n := other.reads - before; n > 100 {
		t.Errorf("read %d times", n)
	}
}

// TestHearsWhenReady: nothing is heard, and so lost, before the rules are known.
func TestHearsWhenReady(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := borrowable(t, kinds[1], rule.Regions{Over: 20, Tell: 2})
		own, other := newMemory(t), newMemory(t)
		tell := func() {
			t.Helper()
			if err := other.Tell(context.Background(), 0, []store.Told{{Counter: c.Regions.All.ID, Key: []byte("k"), Units: 100, At: time.Now().UnixMicro()}}); err != nil {
				t.Fatal(err)
			}
		}
		open := func(ready func() bool) *Store {
			s, err := New(plain{own}, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own,
				Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c), Ready: ready})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := open(nil)
		until(t, "eu listens", func() bool { return s.Stats().Peers[0].Stale >= 0 })
		s.x.close() // as a node that is restarted
		tell()
		asked, ready := 0, make(chan struct{})
		s = open(func() bool {
			if asked++; asked == 2 {
				close(ready)
			}
			return asked > 2
		})
		defer s.Close()
		<-ready
		if s.Stats().Leads {
			t.Error("it hears before it is ready")
		}
		until(t, "what was told meanwhile is heard",
			func() bool { return s.Stats().Limits[testLimit].Heard.Used == 100 })
	})
}

// TestHearsWhatWasToldBefore: a region that is new, or has forgotten where it was, hears all that
// still counts, and nothing else.
func TestHearsWhatWasToldBefore(t *testing.T) {
	c := borrowable(t, kinds[1], rule.Regions{Over: 100, Tell: 2})
	own, other := newMemory(t), newMemory(t)
	now := time.Now().UnixMicro()
	for _, use := range []struct{ units, before int64 }{{100, 0}, {7, c.Limit.Config().Window.Microseconds()},
		{50, 0}} {
		if err := other.Tell(context.Background(), 0, []store.Told{{Counter: c.Regions.All.ID, Key: []byte("k"), Units: use.units, At: now - use.before}}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own,
		Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	patience.Until(t, "eu has heard", func() bool { return s.Stats().Peers[0].Uses >= 3 })
	if r := ask(t, s, c, "k", 0); r.Remaining != 900-150 {
		t.Errorf("%d remain, want 750", r.Remaining)
	}
	if p := s.Stats().Peers[0]; p.Gaps != 0 || p.Unknown != 0 {
		t.Errorf("%+v", p)
	}
}

// TestHearsOfAWindowToCome: what a region tells whose clock is ahead, of a window that has not
// begun here, is charged when it begins.
func TestHearsOfAWindowToCome(t *testing.T) {
	c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 900, Window: time.Hour},
		rule.Regions{Over: 100, Tell: 2})
	turn := time.Date(2100, 1, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	var clock atomic.Int64
	clock.Store(turn - time.Minute.Microseconds())
	own, err := memory.New(memory.Options{Clock: clock.Load})
	if err != nil {
		t.Fatal(err)
	}
	other := newMemory(t)
	s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own,
		Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	heard := uint64(0)
	tell := func(units, at int64) {
		t.Helper()
		if err := other.Tell(context.Background(), 0, []store.Told{{Counter: c.Regions.All.ID, Key: []byte("k"), Units: units, At: at}}); err != nil {
			t.Fatal(err)
		}
		heard++
		patience.Until(t, "it is read", func() bool { return s.Stats().Peers[0].Uses == heard })
	}
	left := func(want int64) {
		t.Helper()
		if r := ask(t, s, c, "k", 0); r.Remaining != want {
			t.Errorf("%d remain, want %d", r.Remaining, want)
		}
	}
	tell(10, turn-1)
	tell(100, turn+time.Minute.Microseconds())
	tell(50, turn+2*time.Minute.Microseconds())
	tell(-20, turn+2*time.Minute.Microseconds())
	tell(70, turn+time.Hour.Microseconds()) // nobody waits for it so long
	left(890)
	if l := s.Stats().Limits[testLimit]; l.Late != (Net{Used: 70}) {
		t.Errorf("%+v", l)
	}
	clock.Store(turn)
	tell(1, turn) // and so the bridge sees the clock
	patience.Until(t, "what was told early is charged",
		func() bool { return ask(t, s, c, "k", 0).Remaining == 900-131 })
	tell(100, turn+time.Hour.Microseconds()-1)
	left(900 - 231)
	if l := s.Stats().Limits[testLimit]; l.Late != (Net{Used: 70}) || l.Over != 0 {
		t.Errorf("%+v", l)
	}
}

// TestClockSetBack: a bridge that holds entries which came too early notices, when it charges them,
// that the clock was set back, and does not ask for that again and again.
func TestClockSetBack(t *testing.T) {
	c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 900, Window: time.Hour},
		rule.Regions{Over: 100, Tell: 2})
	turn := time.Date(2100, 1, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	own, err := memory.New(memory.Options{Clock: func() int64 { return turn - time.Minute.Microseconds() }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own, Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := &bridge{x: s.x, heardTo: make([]atomic.Int64, 1)}
	change := store.Change{Counter: c.Heard(), Limit: c.Limit, Key: []byte("k"), Units: 1, Since: turn,
		Until: turn + time.Hour.Microseconds()}
	if !b.early.keep(&change, c, turn-1) {
		t.Fatal("not kept")
	}
	b.seen.notice(turn) // as it was before
	if err := b.ripe(context.Background()); err != nil {
		t.Fatal(err)
	}
	if wait := b.until(hearWait); len(b.early.changes) != 1 || wait != hearWait {
		t.Errorf("%d are held, and are looked at again after %v", len(b.early.changes), wait)
	}
}

// TestLeadsAgain: a node that hears the others again, since it leads again, says nothing of how it
// stood when it led before.
func TestLeadsAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		c := borrowable(t, kinds[1], rule.Regions{Over: 20, Tell: 2})
		own, other := newMemory(t), &cutOff{Store: newMemory(t), within: time.Millisecond}
		var away atomic.Bool
		s, err := New(own, Options{
			Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own, Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c),
			Ready: func() bool { return !away.Load() },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		until(t, "us is heard", func() bool { return s.Stats().Peers[0].Stale >= 0 })
		other.cut.Store(true)
		away.Store(true)
		until(t, "it leads no more", func() bool { st := s.Stats(); return !st.Leads && st.Leading == 0 })
		away.Store(false)
		until(t, "it leads again", func() bool { return s.Stats().Leads })
		time.Sleep(time.Millisecond)
		if st := s.Stats(); st.Peers[0].Stale != -1 || st.Leading <= 0 {
			t.Errorf("heard %v ago, leads for %v", st.Peers[0].Stale, st.Leading)
		}
		other.cut.Store(false)
		until(t, "us is heard again", func() bool { return s.Stats().Peers[0].Stale >= 0 })
	})
}

// TestOldGreetings: what another region said long ago does not make it one to borrow of.
func TestOldGreetings(t *testing.T) {
	c := borrowable(t, kinds[1], rule.Regions{Tell: 2})
	s := near(t, c, map[string]int{"eu": 1})["eu"]
	p := &peer{name: "us"}
	x := s.x
	key := make([]byte, greetingLen)
	for i, h := 0, x.self.hash(); i < 8; i++ {
		key[i] = byte(h >> (8 * i))
	}
	for before, agrees := range map[time.Duration]bool{0: true, -time.Second: true, time.Second: true, agreedFor: false,
		time.Hour: false} {
		p.agrees.Store(0)
		x.compare(context.Background(), p, key, before.Microseconds())
		switch left := p.agrees.Load() - store.Monotonic(); {
		case !agrees && p.agrees.Load() != 0:
			t.Errorf("%v old: it holds for %v", before, time.Duration(left))
		case agrees && (p.agrees.Load() == 0 || left > int64(agreedFor-max(before, 0))):
			t.Errorf("%v old: it holds for %v", before, time.Duration(left))
		}
	}
	p.agrees.Store(store.Monotonic() + int64(time.Hour))
	key[0]++
	if x.compare(context.Background(), p, key, 0); p.agrees.Load() != 0 {
		t.Error("it holds on though the region differs")
	}
}

// parted is a store with 16 parts, whose log answers when all of these are read at the same time.
type parted struct {
	*memory.Store
	mu      sync.Mutex
	reading int
	all     chan struct{}
}

func (*parted) Parts() int { return 16 }

func (s *parted) Told(ctx context.Context, part int, after string, limit int, wait time.Duration) ([]store.Told, string,
	bool, int64, error) {
	s.mu.Lock()
	if s.reading++; s.reading == s.Parts() {
		close(s.all)
	}
	s.mu.Unlock()
	select {
	case <-s.all:
	case <-ctx.Done():
	}
	return s.Store.Told(ctx, part, after, limit, wait)
}

// TestHearsPartsAtOnce: no part of a log waits for another one.
func TestHearsPartsAtOnce(t *testing.T) {
	c := borrowable(t, kinds[1], rule.Regions{Over: 20, Tell: 2})
	own, other := &parted{Store: newMemory(t)}, &parted{Store: newMemory(t), all: make(chan struct{})}
	s, err := New(own.Store, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own,
		Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	patience.Until(t, "all parts are heard", func() bool { return s.Stats().Peers[0].Stale >= 0 })
}

// losing is a store one of whose changes fails.
type losing struct {
	*memory.Store
	fails atomic.Pointer[failure]
}

type failure struct {
	early bool // an entry that came too early before
	done  bool // the changes were made, and the answer was lost
	err   error
}

func (s *losing) Change(ctx context.Context, part int, log, from, to string, changes []store.Change,
	done []store.Changed) (int64, error) {
	f := s.fails.Load()
	if f == nil || len(changes) == 0 || f.early != (log == "") || !s.fails.CompareAndSwap(f, nil) {
		return s.Store.Change(ctx, part, log, from, to, changes, done)
	}
	if f.done {
		if _, err := s.Store.Change(ctx, part, log, from, to, changes, done); err != nil {
			return 0, err
		}
	}
	return 0, f.err
}

// TestCountsWhatIsUnsure: each unit in the log is counted once, as heard, late or unsure, however
// the calls end that charge it.
func TestCountsWhatIsUnsure(t *testing.T) {
	c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 900, Window: time.Hour},
		rule.Regions{Over: 100, Tell: 2})
	turn := time.Date(2100, 1, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	broken := errors.New("the connection broke")
	for _, of := range []struct {
		name          string
		failure       failure
		heard, unsure uint64
		charged       int64
	}{
		{"made, the answer lost", failure{done: true, err: broken}, 0, 100, 100},
		{"not made, as the position tells", failure{err: broken}, 100, 0, 100},
		{"certainly not made", failure{err: store.ErrNotCharged}, 100, 0, 100},
		{"early, made, the answer lost", failure{early: true, done: true, err: broken}, 0, 100, 100},
		{"early, not made", failure{early: true, err: broken}, 0, 100, 0},
		{"early, certainly not made", failure{early: true, err: store.ErrNotCharged}, 100, 0, 100},
	} {
		t.Run(of.name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				var clock atomic.Int64
				clock.Store(turn - time.Minute.Microseconds())
				inner, err := memory.New(memory.Options{Clock: clock.Load})
				if err != nil {
					t.Fatal(err)
				}
				own, other := &losing{Store: inner}, newMemory(t)
				s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own,
					Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				at := turn + time.Minute.Microseconds()
				tell := func(units int64) {
					t.Helper()
					if err := other.Tell(context.Background(), 0, []store.Told{{Counter: c.Regions.All.ID, Key: []byte("k"), Units: units, At: at}}); err != nil {
						t.Fatal(err)
					}
				}
				counted := func() LimitStats { return s.Stats().Limits[testLimit] }
				own.fails.Store(&of.failure)
				if of.failure.early {
					tell(100)
					until(t, "it is read", func() bool { return s.Stats().Peers[0].Uses == 1 })
					clock.Store(at)
					tell(0) // and so the bridge sees the clock
				} else {
					clock.Store(at)
					tell(100)
				}
				until(t, "all is counted",
					func() bool { n := counted(); return n.Heard.Used+n.Late.Used+n.Unsure.Used == 100 })
				if n := counted(); own.fails.Load() != nil || n.Heard.Used != of.heard || n.Unsure.Used != of.unsure ||
					n.Late != (Net{}) {
					t.Errorf("%+v", n)
				}
				if r := ask(t, s, c, "k", 0); r.Remaining != 900-of.charged {
					t.Errorf("%d remain, want %d", r.Remaining, 900-of.charged)
				}
			})
		})
	}
}
