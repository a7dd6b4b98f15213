package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/memory"
)

// sleep waits so long, and so many nanoseconds more.
func (w *world) sleep(d time.Duration, ns int64) { time.Sleep(d + time.Duration(ns)) }

// reach returns the server, if a node can reach it.
func (w *world) reach(node int) (*memory.Store, bool) {
	n := w.weatherOf(node)
	w.server.mu.Lock()
	defer w.server.mu.Unlock()
	return w.server.mem, !n.refused && !n.hole && w.server.down == 0
}

// travel takes a call to the server, which does it there, and the answer back. It takes as long as
// that does. An error is store.ErrNotCharged if the call certainly has done nothing.
func (w *world) travel(r *rand.Rand, node int, do func()) error {
	n := w.weatherOf(node)
	way := func() time.Duration {
		d := 50*time.Microsecond + time.Duration(r.Int64N(int64(time.Millisecond)))
		if n.slow > 0 {
			d += time.Duration(r.Int64N(int64(n.slow)))
		}
		return d
	}
	silence := func() { w.sleep(time.Second, r.Int64N(int64(2*time.Second))) }
	there, back, fate := way(), way(), r.IntN(100)
	time.Sleep(there)
	now := w.weatherOf(node)
	switch {
	case now.hole || fate < n.lossy:
		silence()
		return errLost
	case now.refused:
		time.Sleep(back)
		return errRefused
	}
	s := w.server
	s.mu.Lock()
	if s.down > 0 {
		s.mu.Unlock()
		time.Sleep(back)
		return errRefused
	}
	life := s.life
	do()
	s.mu.Unlock()
	if fate >= 100-n.late {
		w.sleep(30*time.Millisecond, r.Int64N(int64(time.Second)))
	}
	time.Sleep(back)
	now = w.weatherOf(node)
	if gone, _ := s.lives(); now.hole || now.refused || gone != life || fate >= n.lossy && fate < 2*n.lossy {
		silence()
		return errLost
	}
	return nil
}

// wire is the engine of internal/testkit/castest as a node sees it, over the network. It is no
// cas.Locker: somebody who waited for a lock at the server would keep all others from it.
type wire struct {
	w    *world
	node *node
}

// over does do at the server, and waits for the answer.
func (e *wire) over(ctx context.Context, kind, detail string, do func(s *server) error) error {
	if e.node.gone.Load() {
		return errCrashed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrNotCharged, err)
	}
	var err error
	f := &flight{done: make(chan struct{})}
	r := e.w.random("wire", e.node.id, e.node.life, kind, detail, e.w.now())
	e.node.flying.Go(func() {
		said := e.w.travel(r, e.node.id, func() { err = do(e.w.server) })
		e.w.note("node %d: %s %s: %s", e.node.id, kind, detail, text(said))
		f.end(said)
	})
	if lost := f.wait(ctx); lost != nil {
		return lost
	}
	return err
}

func names(keys []cas.Key) (own []cas.Key, detail string) {
	var parts []string
	for _, k := range keys {
		own = append(own, cas.Key{Place: k.Place, Name: slices.Clone(k.Name)})
		parts = append(parts, fmt.Sprintf("%q", k.Name))
	}
	slices.Sort(parts)
	return own, strings.Join(parts, " ")
}

// Read implements cas.Engine.
func (e *wire) Read(ctx context.Context, keys []cas.Key) ([]cas.Value, int64, error) {
	var values []cas.Value
	var clock int64
	own, detail := names(keys)
	err := e.over(ctx, "read", detail, func(s *server) (err error) {
		values, clock, err = s.engine.Read(nobody, own)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return values, clock, nil
}

// Swap implements cas.Engine.
func (e *wire) Swap(ctx context.Context, now int64, groups []cas.Group) (int64, error) {
	own := make([]cas.Group, len(groups))
	var keys []cas.Key
	for i := range groups {
		own[i].Changes = slices.Clone(groups[i].Changes)
		for j := range own[i].Changes {
			c := &own[i].Changes[j]
			c.Name, c.Data = slices.Clone(c.Name), slices.Clone(c.Data)
			keys = append(keys, c.Key)
		}
	}
	_, detail := names(keys)
	var clock int64
	err := e.over(ctx, "swap", detail, func(s *server) (err error) {
		clock, err = s.engine.Swap(nobody, now, own)
		return err
	})
	if err != nil {
		return 0, err
	}
	for i := range own {
		groups[i].Done, groups[i].Values, groups[i].Err = own[i].Done, own[i].Values, own[i].Err
	}
	return clock, nil
}

// Scan implements cas.Engine. No node of a simulation scans.
func (e *wire) Scan(context.Context, string, int, func([]byte, cas.Value)) (string, int, error) {
	return "", 0, errors.New("simulation: nobody scans")
}

// Spans implements cas.Engine.
func (e *wire) Spans() bool { return true }

// Close implements cas.Engine.
func (e *wire) Close() error {
	e.node.flying.Wait()
	return nil
}
