package fallback

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/store"
)

// answer is one of a primary: an error, or none.
type answer struct{ error }

// TestLasting: a fault that does not pass by itself is shown from when a probe or a decision has
// met it until the primary is back, or nobody has met it for a while; and once a minute.
func TestLasting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := &store.LastingError{Advice: "too old", Err: errors.New("no such command")}
		var failure atomic.Value
		var told atomic.Int64
		s, _ := newTest(t, Options{
			Probe:   func(context.Context) error { return failure.Load().(answer).error },
			Lasting: func(*store.LastingError) { told.Add(1) },
		})
		if s.Lasting() != nil {
			t.Error("there is a fault at the start")
		}
		failure.Store(answer{errors.Join(errors.New("redis"), old)})
		s.Look(t.Context())
		if s.Lasting() != old || told.Load() != 1 {
			t.Errorf("%v, told %d times", s.Lasting(), told.Load())
		}
		time.Sleep(30 * time.Second) // probes meet it again and again
		synctest.Wait()
		if s.Lasting() != old || told.Load() != 1 {
			t.Errorf("later: %v, told %d times", s.Lasting(), told.Load())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if told.Load() != 2 {
			t.Errorf("after a minute it was told %d times", told.Load())
		}
		failure.Store(answer{errors.New("connection refused")})
		time.Sleep(12 * time.Second)
		synctest.Wait()
		if state, _, _ := s.State(); state != Open || s.Lasting() != nil {
			t.Errorf("away for another reason: %v", s.Lasting())
		}
		failure.Store(answer{old})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s.Lasting() != old {
			t.Error("it is not met")
		}
		failure.Store(answer{nil})
		for state, _, _ := s.State(); state != Closed; state, _, _ = s.State() {
			time.Sleep(100 * time.Millisecond)
		}
		if s.Lasting() != nil {
			t.Errorf("it is back: %v", s.Lasting())
		}
	})
}
