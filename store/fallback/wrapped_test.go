package fallback

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/store"
)

// wrapped is a primary that wraps another one, and has nothing of its own.
type wrapped struct {
	plain
	of store.Store
}

// plain is nothing but a store.
type plain struct{ store.Store }

func (w *wrapped) Unwrap() store.Store { return w.of }

// TestWrappedPrimary: what a primary leaves to the store that it wraps is found there.
func TestWrappedPrimary(t *testing.T) {
	shared := newMemory(t, nil)
	s := newOver(t, &wrapped{plain: plain{shared}, of: shared}, Options{Deadline: time.Second})
	c := perHour(t, 10)
	if err := s.Post(t.Context(), "kind", []store.Fact{{ID: "id", TTL: time.Hour}}); err != nil {
		t.Errorf("Post: %v", err)
	}
	if _, err := s.Reset(t.Context(), c, []byte("key")); err != nil {
		t.Errorf("Reset: %v", err)
	}
	if err := s.Hold(t.Context(), "id", []byte("note"), time.Hour); err != nil {
		t.Errorf("Hold: %v", err)
	}
}
