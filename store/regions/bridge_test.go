package regions

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/patience"
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

func (s *counting) Told(ctx context.Context, part int, after string, limit int, wait time.Duration) ([]store.Told, string, bool, int64, error) {
	s.Lock()
	s.reads++
	s.Unlock()
	return s.Store.Told(ctx, part, after, limit, wait)
}

func (s *counting) Close() error { return nil }

// TestHearsMuch: a region that is far behind reads many small entries at a time, since the way to
// the other one is long, and not too many large ones.
func TestHearsMuch(t *testing.T) {
	c := borrowable(t, algo.Config{Algorithm: algo.FixedWindow, N: 1_000_000, Window: 30 * 24 * time.Hour}, rule.Regions{Over: 20, Tell: 2})
	own, other := newMemory(t), &counting{Store: newMemory(t)}
	s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own, Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
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
				told = append(told, store.Told{Counter: c.Regions.All.ID, Key: fmt.Append(nil, i), Units: 1, At: time.Now().UnixMicro()})
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
	patience.Until(t, "all is heard", func() bool { return s.Stats().Limits[Name{"test", "r"}].Heard.Used == 16_000 })
	other.Lock()
	defer other.Unlock()
	if n := other.reads - before; n > 100 {
		t.Errorf("read %d times", n)
	}
}

// TestHearsWhenReady: nothing is heard, and so lost, before the rules are known.
func TestHearsWhenReady(t *testing.T) {
	c := borrowable(t, kinds[1], rule.Regions{Over: 20, Tell: 2})
	own, other := newMemory(t), newMemory(t)
	tell := func() {
		t.Helper()
		if err := other.Tell(context.Background(), 0, []store.Told{{Counter: c.Regions.All.ID, Key: []byte("k"), Units: 100, At: time.Now().UnixMicro()}}); err != nil {
			t.Fatal(err)
		}
	}
	open := func(ready func() bool) *Store {
		s, err := New(plain{own}, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own, Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c), Ready: ready})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open(nil)
	patience.Until(t, "eu listens", func() bool { return s.Stats().Peers[0].Stale >= 0 })
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
	patience.Until(t, "what was told meanwhile is heard", func() bool { return s.Stats().Limits[Name{"test", "r"}].Heard.Used == 100 })
}

// TestHearsWhatWasToldBefore: a region that is new, or has forgotten where it was, hears all that
// still counts, and nothing else.
func TestHearsWhatWasToldBefore(t *testing.T) {
	c := borrowable(t, kinds[1], rule.Regions{Over: 100, Tell: 2})
	own, other := newMemory(t), newMemory(t)
	now := time.Now().UnixMicro()
	for _, use := range []struct{ units, before int64 }{{100, 0}, {7, c.Limit.Config().Window.Microseconds()}, {50, 0}} {
		if err := other.Tell(context.Background(), 0, []store.Told{{Counter: c.Regions.All.ID, Key: []byte("k"), Units: use.units, At: now - use.before}}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own, Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
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
	for before, agrees := range map[time.Duration]bool{0: true, -time.Second: true, time.Second: true, agreedFor: false, time.Hour: false} {
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

func (s *parted) Told(ctx context.Context, part int, after string, limit int, wait time.Duration) ([]store.Told, string, bool, int64, error) {
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
	s, err := New(own.Store, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own, Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	patience.Until(t, "all parts are heard", func() bool { return s.Stats().Peers[0].Stale >= 0 })
}
