package lease

import (
	"testing"

	"github.com/weir-rl/weir/store"
)

// TestPanic: a call in which the primary panics is like one whose answer is lost. Its key leases
// again, and is forgotten when nobody asks for it.
func TestPanic(t *testing.T) {
	w := newWorld()
	primary := newLender(t, w)
	s := newNode(t, w, primary, Options{})
	c := charge(counterOf(t, wide), "key", 100)
	take(t, s, c)
	primary.fail = func() (error, bool) { panic("a defect") }
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is hidden")
			}
		}()
		take(t, s, c)
	}()
	primary.fail = nil
	ts := s.terms.of(&store.Charge{Counter: c.Counter, Limit: c.Limit})
	for range 3 {
		w.ns.Add(ts.Pause)
		take(t, s, c)
	}
	if s.Stats().Left == 0 {
		t.Error("nothing is lent any more")
	}
	for range 32 {
		w.ns.Add(ts.E / 4)
		s.step(t.Context())
	}
	if n := s.keys.Load(); n != 0 {
		t.Errorf("%d keys are never forgotten", n)
	}
}
