package cas_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/storetest"
)

// open returns a store over an engine.
func open(t testing.TB, e cas.Engine, o cas.Options) *cas.Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Minute // a busy machine is no failure
	}
	s, err := cas.New(e, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// reserver is a Store with the notes of reservations beside it, as the packages of engines add
// them; so that the suite tests its Settle.
type reserver struct {
	*cas.Store
	clock func() int64
	mu    sync.Mutex
	notes map[string]note
}

type note struct {
	text  string
	until int64
}

var _ store.Reserver = (*reserver)(nil)

func (r *reserver) Hold(_ context.Context, id string, text []byte, timeout time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes[id] = note{string(text), r.now() + timeout.Microseconds()}
	return nil
}

func (r *reserver) now() int64 {
	if r.clock == nil {
		return time.Now().UnixMicro()
	}
	return r.clock()
}

func (r *reserver) Claim(_ context.Context, id string) ([]byte, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.notes[id]
	delete(r.notes, id)
	return []byte(n.text), ok, nil
}

func (r *reserver) Expired(_ context.Context, most int) (notes [][]byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, n := range r.notes {
		if n.until <= r.now() && len(notes) < most {
			notes = append(notes, []byte(n.text))
			delete(r.notes, id)
		}
	}
	return notes, nil
}

// TestContract: a store over an engine in memory keeps the whole contract. Of the many engines that
// the suite asks for, a third is left alone. Of the others, the writers are too late again and
// again, where the keys are locked then, and where all is in one place of several.
func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store {
		m := castest.New()
		engine := cas.Engine(m)
		if kind := rand.IntN(3); kind > 0 {
			m.Conflict = func(*cas.Group) bool { return rand.IntN(3) == 0 }
			if kind == 2 {
				m.Apart = true
				engine = castest.Together(struct{ cas.Engine }{m})
			}
		}
		s := open(t, engine, cas.Options{Clock: clock})
		return &reserver{Store: s, clock: clock, notes: map[string]note{}}
	})
}

// TestDifferential: decisions equal a plain model's, step by step.
func TestDifferential(t *testing.T) {
	storetest.Differential(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, castest.New(), cas.Options{Clock: clock, KnownKeys: 64})
	}, effort.Of(2000, 20_000), 0)
}

// TestMatrix: each kind of throttling of each algorithm.
func TestMatrix(t *testing.T) {
	storetest.Matrix(t, open(t, castest.New(), cas.Options{}))
}
