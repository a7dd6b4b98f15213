package simulation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

var (
	errRefused = fmt.Errorf("simulation: connection refused: %w", store.ErrNotCharged)
	errLost    = errors.New("simulation: the connection was lost")
	errCrashed = fmt.Errorf("simulation: the node has crashed: %w", store.ErrNotCharged)
)

// nobody is the context of the server's own work.
var nobody = context.Background()

// link is the server as a node sees it, over the network. Close waits for calls on their way.
type link struct {
	w      *world
	node   *node
	dead   atomic.Bool // the node has crashed: it sends nothing any more
	flying sync.WaitGroup
}

var (
	_ store.Lender    = (*link)(nil)
	_ store.Reserver  = (*link)(nil)
	_ store.Board     = (*link)(nil)
	_ store.Inspector = (*link)(nil)
	_ store.Remote    = (*link)(nil)
)

// flight is a call on its way.
type flight struct {
	done chan struct{}
	deaf bool
	mu   sync.Mutex
	over bool
	err  error
	then []func(err error)
}

func (f *flight) end(err error) {
	f.mu.Lock()
	f.over, f.err = true, err
	then := f.then
	f.mu.Unlock()
	close(f.done)
	for _, g := range then {
		g(err)
	}
}

// after calls g when the flight is over.
func (f *flight) after(g func(err error)) {
	f.mu.Lock()
	if over := f.over; !over {
		f.then = append(f.then, g)
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	g(f.err)
}

// wait returns when the answer is there, or when the caller gives up.
func (f *flight) wait(ctx context.Context) error {
	if f.deaf {
		<-f.done
		return f.err
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fly sends a call to the server, which does do there. detail tells it from others of its kind.
func (l *link) fly(kind, detail string, do func(s *server)) *flight {
	f := &flight{done: make(chan struct{}), deaf: l.w.mistake == deaf}
	if l.dead.Load() {
		f.end(errCrashed)
		return f
	}
	l.w.count(&l.w.seen.Calls)
	r := l.w.random("call", l.node.id, l.node.life, kind, detail, l.w.now())
	l.flying.Go(func() {
		said := l.w.travel(r, l.node.id, func() { do(l.w.server) })
		if said != nil && l.w.mistake == repeats && !errors.Is(said, store.ErrNotCharged) && !l.dead.Load() {
			said = l.w.travel(r, l.node.id, func() { do(l.w.server) })
		}
		l.w.note("node %d: %s %s: %s", l.node.id, kind, detail, text(said))
		f.end(said)
	})
	return f
}

func text(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// call is fly for calls whose answer only the caller waits for.
func (l *link) call(ctx context.Context, kind, detail string, do func(m *memory.Store) error) error {
	var err error
	f := l.fly(kind, detail, func(s *server) { err = do(s.mem) })
	if lost := f.wait(ctx); lost != nil {
		return lost
	}
	return err
}

// detailOf names charges, whatever their order.
func detailOf(charges []store.Charge) string {
	var parts []string
	for i := range charges {
		c := &charges[i]
		parts = append(parts, fmt.Sprintf("%s%q%+d", c.Counter.Window, c.Key, c.Ask.Cost))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func cloned(charges []store.Charge) []store.Charge {
	own := slices.Clone(charges)
	for i := range own {
		own[i].Key = bytes.Clone(own[i].Key)
	}
	return own
}

// pending is the error of a call that was given up.
type pending struct {
	error
	f   *flight
	out func() []store.Outcome
}

func (p *pending) Unwrap() error { return p.error }

// Outcome implements store.Pending.
func (p *pending) Outcome(g func([]store.Outcome)) {
	p.f.after(func(err error) {
		if err != nil {
			g(nil)
			return
		}
		g(p.out())
	})
}

// Take implements store.Store.
func (l *link) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, _, err := l.decide(ctx, charges, nil, results)
	return now, err
}

// TakeAhead implements store.Lender.
func (l *link) TakeAhead(
	ctx context.Context, minWait, _ time.Duration, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	if minWait > 0 {
		limited, cancel := context.WithTimeout(ctx, minWait)
		defer cancel()
		ctx = limited
	}
	now, asked, err = l.decide(ctx, charges, ahead, results)
	if err != nil {
		for i := range ahead {
			ahead[i].Got, ahead[i].Until, ahead[i].Out = 0, 0, 0
		}
	}
	return now, asked, err
}

func (l *link) decide(ctx context.Context, charges []store.Charge, ahead []algo.Ahead, results []algo.Result) (now,
	asked int64, err error) {
	o := opOf(ctx)
	own, lent, said := cloned(charges), slices.Clone(ahead), make([]algo.Result, len(charges))
	if ahead == nil {
		lent = nil
	}
	asked = store.Monotonic()
	var at int64
	var failed error
	f := l.fly("take", detailOf(own), func(s *server) { at, failed = s.take(l, o, own, lent, said) })
	switch lost := f.wait(ctx); {
	case errors.Is(lost, store.ErrNotCharged):
		return 0, 0, lost
	case lost != nil:
		l.w.count(&l.w.seen.Lost)
		return 0, 0, &pending{lost, f, func() []store.Outcome {
			l.w.count(&l.w.seen.Late)
			return outcomes(own, said, at)
		}}
	case failed != nil:
		return 0, 0, failed
	}
	copy(results, said)
	copy(ahead, lent)
	for i := range charges {
		charges[i].Ask.Slot = own[i].Ask.Slot
	}
	if l.w.mistake == hoards {
		for i := range ahead {
			if ahead[i].Got > 0 {
				ahead[i].Got += 2
			}
		}
	}
	return at, asked, nil
}

// Release implements store.Store.
func (l *link) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (ok bool, err error) {
	var had bool
	own := bytes.Clone(key)
	err = l.call(ctx, "release", fmt.Sprintf("%s%q", c.Window, own), func(m *memory.Store) (err error) {
		had, err = m.Release(nobody, c, own, slot)
		l.w.slotFreed(accountOf(c, own), slot, had, l.w.server.began)
		return err
	})
	return err == nil && had, err
}

// Hold implements store.Reserver.
func (l *link) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	own := bytes.Clone(note)
	return l.call(ctx, "hold", timeout.String(),
		func(m *memory.Store) error { return m.Hold(nobody, id, own, timeout) })
}

// Claim implements store.Reserver.
func (l *link) Claim(ctx context.Context, id string) ([]byte, bool, error) {
	var note []byte
	var had bool
	err := l.call(ctx, "claim", "", func(m *memory.Store) (err error) {
		note, had, err = m.Claim(nobody, id)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return note, had, nil
}

// Expired implements store.Reserver.
func (l *link) Expired(ctx context.Context, n int) ([][]byte, error) {
	var notes [][]byte
	err := l.call(ctx, "expired", "", func(m *memory.Store) (err error) {
		notes, err = m.Expired(nobody, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	return notes, nil
}

// Settle implements store.Reserver.
func (l *link) Settle(ctx context.Context, settlements []store.Settlement) error {
	own := slices.Clone(settlements)
	var parts []string
	for i := range own {
		own[i].Key = bytes.Clone(own[i].Key)
		parts = append(parts, fmt.Sprintf("%s%q@%d:%d→%d", own[i].Counter.Window, own[i].Key, own[i].At,
			own[i].Reserved, own[i].Actual))
	}
	slices.Sort(parts)
	return l.call(ctx, "settle", strings.Join(parts, " "), func(m *memory.Store) error {
		if l.w.mistake == refundsTwice {
			l.w.settled(own)
			if err := m.Settle(nobody, own); err != nil {
				return err
			}
		}
		l.w.settled(own)
		return m.Settle(nobody, own)
	})
}

// Remote implements store.Remote.
func (l *link) Remote() bool { return true }

// Post implements store.Board.
func (l *link) Post(ctx context.Context, kind string, facts []store.Fact) error {
	own := slices.Clone(facts)
	return l.call(ctx, "post", fmt.Sprintf("%s %d", kind, len(own)), func(m *memory.Store) error {
		if l.w.mistake == silentBoard {
			return nil
		}
		return m.Post(nobody, kind, own)
	})
}

// Remove implements store.Board.
func (l *link) Remove(ctx context.Context, kind string, ids []string) error {
	own := slices.Clone(ids)
	return l.call(ctx, "remove", fmt.Sprintf("%s %d", kind, len(own)),
		func(m *memory.Store) error { return m.Remove(nobody, kind, own) })
}

// List implements store.Board.
func (l *link) List(ctx context.Context, kind string) ([]store.Fact, error) {
	var facts []store.Fact
	err := l.call(ctx, "list", kind, func(m *memory.Store) (err error) {
		facts, err = m.List(nobody, kind)
		return err
	})
	if err != nil {
		return nil, err
	}
	return facts, nil
}

// Watch implements store.Board: a subscription, which is made anew when the connection is lost.
func (l *link) Watch(ctx context.Context, kind string, changed func(facts []store.Fact, anew bool)) error {
	for ctx.Err() == nil {
		r := l.w.random("watch", l.node.id, l.node.life, kind, l.w.now())
		pause := 100*time.Millisecond + time.Duration(r.Int64N(int64(100*time.Millisecond)))
		if s, ok := l.w.reach(l.node.id); ok && !l.dead.Load() {
			l.subscribe(ctx, s, kind, changed)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return ctx.Err()
}

// subscribe hears from the server until the connection is lost.
func (l *link) subscribe(ctx context.Context, m *memory.Store, kind string, changed func([]store.Fact, bool)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() { // a connection that is gone is noticed
		r := l.w.random("looks", l.node.id, l.node.life, kind, l.w.now())
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(200*time.Millisecond + time.Duration(r.Int64N(int64(50*time.Millisecond)))):
			}
			if now, ok := l.w.reach(l.node.id); !ok || now != m {
				cancel()
				return
			}
		}
	})
	_ = m.Watch(ctx, kind, func(facts []store.Fact, anew bool) {
		r := l.w.random("news", l.node.id, l.node.life, kind, l.w.now())
		l.w.sleep(100*time.Microsecond, r.Int64N(int64(time.Millisecond)))
		if now, ok := l.w.reach(l.node.id); !ok || now != m || ctx.Err() != nil {
			cancel() // it is on its way when the connection is lost, and comes with the next list
			return
		}
		l.w.note("node %d: hears of %d %ss, anew %v", l.node.id, len(facts), kind, anew)
		changed(facts, anew)
	})
	cancel()
}

// Inspect implements store.Inspector.
func (l *link) Inspect(ctx context.Context, v *store.View, keys [][]byte, visit func(store.KeyState)) error {
	var states []store.KeyState
	err := l.call(ctx, "inspect", fmt.Sprint(len(keys)), func(m *memory.Store) error {
		return m.Inspect(nobody, v, keys, func(k store.KeyState) {
			k.Key = bytes.Clone(k.Key)
			states = append(states, k)
		})
	})
	if err != nil {
		return err
	}
	for i := range states {
		visit(states[i])
	}
	return nil
}

// Scan implements store.Inspector. No node of a simulation scans.
func (l *link) Scan(context.Context, *store.View, string, int, func(store.KeyState)) (store.Scanned, error) {
	return store.Scanned{}, store.ErrNoInspector
}

// Reset implements store.Inspector.
func (l *link) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	own := bytes.Clone(key)
	var had bool
	err := l.call(ctx, "reset", fmt.Sprintf("%s%q", c.Window, own), func(m *memory.Store) (err error) {
		had, err = m.Reset(nobody, c, own)
		l.w.wasReset(accountOf(c, own))
		return err
	})
	return err == nil && had, err
}

// Close implements store.Store: what is on its way comes to its end.
func (l *link) Close() error {
	if l.w.mistake == leaks && l.node.id == 0 {
		go func() { <-make(chan struct{}) }()
	}
	l.flying.Wait()
	return nil
}
