package patience

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
)

// deadlined is a test whose package has so much time left. Fatalf ends the goroutine, as a real
// test's does.
type deadlined struct {
	testing.TB
	left time.Duration
	said string
}

func (d *deadlined) Deadline() (time.Time, bool) { return time.Now().Add(d.left), d.left > 0 }
func (d *deadlined) Helper()                     {}
func (d *deadlined) Fatalf(format string, args ...any) {
	d.said = strings.TrimSpace(format)
	runtime.Goexit()
}

// ends runs f as a test that has so much time, and returns what it was ended with.
func ends(t *testing.T, left time.Duration, f func(t testing.TB)) string {
	d := &deadlined{TB: t, left: left}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(d)
	}()
	<-done
	return d.said
}

// What comes is waited for; what does not ends the test while the package still has time.
func TestPatience(t *testing.T) {
	n := 0
	if said := ends(t, time.Hour, func(t testing.TB) {
		Until(t, "it has asked five times", func() bool { n++; return n == 5 })
	}); said != "" || n != 5 {
		t.Errorf("%q after %d", said, n)
	}
	c := make(chan int, 1)
	c <- 7
	if said := ends(t, time.Hour, func(t testing.TB) { n = Receive(t, "a number", c) }); said != "" || n != 7 {
		t.Errorf("%q, received %d", said, n)
	}
	if said := ends(t, time.Millisecond, func(t testing.TB) {
		Until(t, "x", func() bool { return false })
	}); said == "" {
		t.Error("Until did not end")
	}
	if said := ends(t, time.Millisecond, func(t testing.TB) { Receive(t, "x", make(chan int)) }); said == "" {
		t.Error("Receive did not end")
	}
	ctx := Context(&deadlined{TB: t, left: time.Millisecond})
	<-ctx.Done()
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// The bound is half of the package's remaining time, and none where it has none.
func TestEnd(t *testing.T) {
	d := &deadlined{TB: t, left: time.Hour}
	if left := Left(d); left > time.Hour/2 || left <= 0 {
		t.Errorf("of an hour %v are left", left)
	}
	d.left = 0
	if end := End(d); !end.IsZero() {
		t.Error(end)
	}
	if left := Left(d); left < 20*time.Hour {
		t.Errorf("without a bound %v are left", left)
	}
}
