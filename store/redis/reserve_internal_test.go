package redis

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestReservationsBounded: where there is no room, a note is not held, and those that are stay.
func TestReservationsBounded(t *testing.T) {
	s, err := Open(Options{URL: redistest.Start(t).URL(), Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, keys := s.reservationKeys("0")
	for i := range 5 {
		result, _, err := s.callReservations(t.Context(), p, nil, lua().hold, keys, "", fmt.Sprint(i), "note",
			"1000000000", "3")
		if err != nil {
			t.Fatal(err)
		}
		n, err := result.ToInt64()
		if want := map[bool]int64{true: 1, false: -1}[i < 3]; err != nil || n != want {
			t.Errorf("reservation %d: %d, %v; want %d", i, n, err, want)
		}
		if _, ok, err := s.Claim(t.Context(), fmt.Sprint(i)); i == 4 && (ok || err != nil) {
			t.Errorf("one that was not held is handed out: %v, %v", ok, err)
		} else if i == 0 {
			if !ok || err != nil || s.Hold(t.Context(), "0", nil, time.Hour) != nil {
				t.Errorf("%v, %v", ok, err)
			}
		} else if i < 3 && (!ok || err != nil || s.Hold(t.Context(), fmt.Sprint(i), nil, time.Hour) != nil) {
			t.Errorf("reservation %d is gone: %v, %v", i, ok, err)
		}
	}
}

// TestTwinsBounded: an elastic rule brings a limit for each percent, and reloads bring more: what
// is known of them does not grow.
func TestTwinsBounded(t *testing.T) {
	s, err := Open(Options{URL: "redis://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range maxCodecs/101 + 50 {
		l, err := algo.New(algo.Config{N: 100, Window: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for percent := range int64(101) {
			scaled, err := l.Scale(percent, 100)
			if err != nil {
				t.Fatal(err)
			}
			if first := s.codecOf(scaled); s.codecOf(scaled) != first {
				t.Fatal("a twin is made anew each time")
			}
		}
	}
	n := 0
	s.codecs.m.Range(func(any, any) bool { n++; return true })
	if n > maxCodecs {
		t.Errorf("%d twins are kept", n)
	}
}
