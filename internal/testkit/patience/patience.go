// Package patience lets tests wait for other goroutines and processes, on a machine of any speed.
//
// A machine that is busy with other things must make a test slow, never red. So nothing here has a
// bound of its own: a wait has half of the time that is left to the tests of its package (go test
// -timeout). If the event never comes, the failure names it, and there is time for the tests behind
// it. Without a -timeout a wait has all the time.
//
// Only the test's own goroutine may call these functions, except End and Left, which any may call.
// None of them is for virtual time (testing/synctest).
package patience

import (
	"context"
	"testing"
	"time"
)

// End returns when patience ends: half of the time that is left to the package's tests from now. It
// is the zero time, which is no deadline to net.Conn, where there is no bound.
func End(t testing.TB) time.Time {
	of, ok := t.(interface{ Deadline() (time.Time, bool) }) // a benchmark has none
	if !ok {
		return time.Time{}
	}
	end, ok := of.Deadline()
	if !ok {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(end.Sub(now) / 2)
}

// Left returns the time until End, for use as a timeout; a day where there is no bound.
func Left(t testing.TB) time.Duration {
	if end := End(t); !end.IsZero() {
		return time.Until(end)
	}
	return 24 * time.Hour
}

// Context returns a context that ends at End, or with the test.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Left(t))
	t.Cleanup(cancel)
	return ctx
}

// Until waits until ok, which it asks again and again, and ends the test if that does not come
// about. What says what ok means, in words that follow "that".
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	end := End(t)
	for pause := time.Millisecond; !ok(); pause = min(2*pause, 20*time.Millisecond) {
		if !end.IsZero() && time.Now().After(end) {
			t.Fatalf("it never came about that %s", what)
		}
		time.Sleep(pause)
	}
}

// Receive returns the next value from c, and ends the test if none comes. what describes the value.
// From a closed channel it returns the zero value.
func Receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	late := time.NewTimer(Left(t))
	defer late.Stop()
	select {
	case v = <-c:
	case <-late.C:
		t.Fatalf("it never came: %s", what)
	}
	return v
}
