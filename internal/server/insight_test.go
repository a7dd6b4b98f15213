package server

import (
	"context"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/overload"
)

// The service is saturated while its capacity is in flight, when it sheds, and while a signal that
// is measured says so, whether rules use that or not.
func TestSaturation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")}}
		signals, err := load.New(load.Options{Root: files, Watch: []string{load.Memory}})
		if err != nil {
			t.Fatal(err)
		}
		limiter, err := overload.New(overload.Options{Fixed: 2})
		if err != nil {
			t.Fatal(err)
		}
		s := &saturation{signals: signals, overload: limiter, capacity: func() int { return limiter.Stats().Limit }}
		check := func(when, want string) {
			t.Helper()
			if signal, saturated := s.now(); signal != want || saturated != (want != "") {
				t.Errorf("%s: %q, %v; want %q", when, signal, saturated, want)
			}
		}
		check("idle", "")
		a, _ := limiter.Acquire(overload.Default)
		check("half of the capacity", "")
		b, _ := limiter.Acquire(overload.Default)
		check("all of it", load.InFlight)
		if _, ok := limiter.Acquire(overload.Default); ok {
			t.Fatal("a third one was admitted")
		}
		check("one was shed", "shed")
		a.Done()
		b.Done()
		check("none since", "")

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { signals.Run(ctx); close(done) }()
		time.Sleep(5 * time.Second)
		check("memory to spare", "")
		cancel()
		<-done
		files["proc/meminfo"] = &fstest.MapFile{Data: []byte("MemTotal: 1000 kB\nMemAvailable: 50 kB\n")}
		ctx, cancel = context.WithCancel(t.Context())
		done = make(chan struct{})
		go func() { signals.Run(ctx); close(done) }()
		time.Sleep(20 * time.Second)
		check("memory used up", load.Memory)
		signals.SetUsed(nil)
		check("rules that use no signal came into force", load.Memory)
		cancel()
		<-done

		// Without an overload limit the capacity comes from the settings.
		s = &saturation{capacity: func() int { return 20 }}
		if s.signals, err = load.New(load.Options{Root: files}); err != nil {
			t.Fatal(err)
		}
		signals = s.signals
		for range 18 {
			signals.Enter()
		}
		check("18 of 20", "")
		signals.Enter()
		check("19 of 20", load.InFlight)
		s.capacity = func() int { return 0 }
		check("an unknown capacity", "")
	})
}
