package simulation

import (
	"fmt"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"

	"github.com/weir-rl/weir/algo"
)

// server is what all nodes share: a store/memory, or the engine of internal/testkit/castest.
type server struct {
	w     *world
	clock clock
	path  string // of its snapshot; "" for none

	mu     sync.Mutex
	mem    *memory.Store
	engine *castest.Memory
	down   int // how many halts are in force; it is back when all are over
	life   int // how often it was stopped
	began  int // how often it began anew: nothing is in its memory but what its snapshot had
	forgot int // how often it did without its snapshot
	calls  int
}

func newServer(w *world, path string) (*server, error) {
	s := &server{w: w, path: path, clock: clock{from: time.Now(), base: start, ppm: w.plan.serverPPM}}
	if !w.plan.snapshots {
		s.path = ""
	}
	return s, s.begin()
}

// begin starts it, with the contents of its snapshot.
func (s *server) begin() (err error) {
	s.engine = castest.New()
	s.engine.Clock = s.clock.now
	s.mem, err = memory.New(memory.Options{Clock: s.clock.now, Snapshot: s.path, SnapshotEvery: 24 * time.Hour})
	return err
}

// stop stops it: nothing that is asked from now on arrives.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down, s.life = s.down+1, s.life+1
}

// back starts it again: as it was, or from its snapshot, or with nothing.
func (s *server) back(how memoryOf) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down--
	if how == keeps || how == reads && s.path == "" {
		return nil
	}
	if err := s.mem.Close(); err != nil {
		return err
	}
	s.began++
	if how == forgets {
		s.path = ""
		s.forgot++
		return s.begin()
	}
	engine := s.engine
	err := s.begin()
	s.engine = engine
	return err
}

func (s *server) lives() (life, forgot int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life, s.forgot
}

// take is what the server does with charges, and what is written down of that.
func (s *server) take(from *link, o *op, charges []store.Charge, ahead []algo.Ahead, results []algo.Result) (now int64,
	err error) {
	ctx := nobody
	if s.w.mistake == forgetful && s.calls%40 == 39 && len(charges) > 0 {
		_, _ = s.mem.Reset(ctx, charges[0].Counter, charges[0].Key)
	}
	s.calls++
	if ahead != nil {
		now, _, err = s.mem.TakeAhead(ctx, 0, 0, charges, ahead, results)
	} else {
		now, err = s.mem.Take(ctx, charges, results)
	}
	if err != nil {
		return 0, err
	}
	if denied := store.VerdictOf(charges, results).Denied(); denied && s.w.mistake == halfCharge && len(charges) > 1 {
		for i := range charges {
			if c := charges[i]; results[i].Allowed && c.Mode == rule.Enforce && c.Ask.Cost > 0 {
				one := make([]algo.Result, 1)
				if _, err := s.mem.Take(ctx, []store.Charge{c}, one); err != nil {
					return 0, err
				}
				s.w.charged(from, o, &c, c.Ask.Cost, now, s.forgot, s.life)
				break
			}
		}
	}
	for i, out := range outcomes(charges, results, now) {
		c := &charges[i]
		s.w.touched(o, c)
		if out.Made {
			s.w.charged(from, o, c, c.Ask.Cost, now, s.forgot, s.life)
		}
		if c.Limit.Algorithm() == algo.Concurrency && out.Made && c.Ask.Cost > 0 {
			s.w.slotTaken(c, out.Slot, s.began)
		}
		if s.w.mistake == earlyRetry && results[i].RetryAfter > 2000 {
			results[i].RetryAfter -= 1000
		}
	}
	return now, nil
}

// outcomes are the outcomes of charges that were decided.
func outcomes(charges []store.Charge, results []algo.Result, now int64) []store.Outcome {
	list := make([]store.Outcome, len(charges))
	denied := store.VerdictOf(charges, results).Denied()
	for i := range charges {
		c, r := &charges[i], results[i]
		admitted := r.Allowed && (!denied || c.Mode == rule.Shadow)
		list[i] = store.Outcome{
			Known: true, Made: !r.Off && c.Ask.Cost != 0 && (admitted || c.Limit.CountDenied()),
			Slot: c.Ask.Slot, Now: now, Result: r,
		}
	}
	return list
}

// account names a counter of a key.
type account struct{ window, key string }

func accountOf(c *rule.Counter, key []byte) account {
	if c.Index < 0 { // no limit's: of denials that lead to a ban
		return account{"beside " + c.Window, string(key)}
	}
	return account{c.Window, string(key)}
}

func (a account) String() string { return fmt.Sprintf("%s of %q", a.window, a.key) }
