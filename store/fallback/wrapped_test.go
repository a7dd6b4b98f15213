package fallback

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// wrapped is a primary that wraps another one, and decides on some keys by itself.
type wrapped struct {
	plain
	of  store.Store
	key string
}

// plain is nothing but a store.
type plain struct{ store.Store }

func (w *wrapped) Unwrap() store.Store { return w.of }

func (w *wrapped) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	for i := range charges {
		if string(charges[i].Key) != w.key {
			return 0, false
		}
		results[i] = algo.Result{Allowed: true, Limit: 7}
	}
	return 42, len(charges) > 0
}

// TestWrappedPrimary: what a primary leaves to the store that it wraps is found there, and what it
// decides by itself it decides also while that store is away.
func TestWrappedPrimary(t *testing.T) {
	shared := newMemory(t, nil)
	s := newOver(t, &wrapped{plain: plain{shared}, of: shared, key: "held"}, Options{Deadline: time.Second})
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
	results := make([]algo.Result, 1)
	take := func(key string) (int64, algo.Result) {
		t.Helper()
		now, err := s.Take(t.Context(), []store.Charge{charge(c, key, 1)}, results)
		if err != nil {
			t.Fatal(err)
		}
		return now, results[0]
	}
	s.trip(&s.parts[0], errors.New("it is away"))
	if now, r := take("held"); now != 42 || r.Limit != 7 {
		t.Errorf("not decided by the primary: at %d, %+v", now, r)
	}
	if now, r := take("other"); now == 42 || r.Limit != 10 {
		t.Errorf("at %d, %+v", now, r)
	}
	if now, ok := s.TakeNow([]store.Charge{charge(c, "held", 1)}, results); !ok || now != 42 {
		t.Errorf("TakeNow: %d, %v", now, ok)
	}
}
