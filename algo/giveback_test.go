package algo

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A refund with LastEnds takes back the last admission that still waits, and nothing else.
func TestLastEnds(t *testing.T) {
	l, err := New(Config{Algorithm: LeakyBucket, N: 3, Window: time.Second, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	var s State
	const now = 1_000_000
	first := l.Take(&s, now, Ask{Cost: 1, MaxDelay: -1})
	second := l.Take(&s, now, Ask{Cost: 1, MaxDelay: -1})
	for _, c := range []struct {
		name string
		end  int64
	}{{"first", now + first.ResetAfter}, {"a moment before", now + second.ResetAfter - 1},
		{"a moment after", now + second.ResetAfter + 1}, {"never", Never}} {
		was := s
		if r := l.Take(&s, now+5, Ask{Cost: -1, LastEnds: c.end}); r.Allowed || r.RetryAfter != Never || s.A != was.A ||
			s.B != was.B {
			t.Errorf("%s: %+v, state %+v", c.name, r, s)
		}
	}
	// To ask is not to take.
	if r := l.Check(&s, now+5, Ask{Cost: -1, LastEnds: now + second.ResetAfter}); !r.Allowed {
		t.Errorf("check: %+v", r)
	}
	r := l.Take(&s, now+5, Ask{Cost: -1, LastEnds: now + second.ResetAfter})
	if !r.Allowed || now+5+r.ResetAfter != now+first.ResetAfter {
		t.Errorf("the last: %+v, want the queue to drain as after the first", r)
	}
	if r := l.Take(&s, now+5, Ask{Cost: -1, LastEnds: now + second.ResetAfter}); r.Allowed {
		t.Errorf("twice: %+v", r)
	}
	if r := l.Take(&s, now+first.ResetAfter, Ask{Cost: -1, LastEnds: now + first.ResetAfter}); r.Allowed {
		t.Errorf("drained: %+v", r)
	}
	if s = (State{}); l.Take(&s, now, Ask{Cost: -1, LastEnds: now}).Allowed {
		t.Error("a fresh queue has a last turn")
	}
	zero, err := New(Config{Algorithm: LeakyBucket, Window: time.Second, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	l.Take(&s, now, Ask{Cost: 1, MaxDelay: -1})
	if zero.Take(&s, now, Ask{Cost: -1, LastEnds: now - 1}).Allowed {
		t.Error("a queue that stands still has a last turn")
	}
}

// Whatever the rate: until its turn comes, the last admission can be given back, and then all is as
// it was before.
func TestLastEndsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := New(Config{
			Algorithm: LeakyBucket,
			N:         rapid.Int64Range(1, 10_000).Draw(t, "n"),
			Window:    time.Duration(rapid.Int64Range(1, 10_000).Draw(t, "w")) * time.Millisecond,
			Burst:     rapid.Int64Range(1, 100).Draw(t, "b"),
		})
		if err != nil {
			t.Skip(err)
		}
		var s State
		now := rapid.Int64Range(1, 1<<50).Draw(t, "now")
		for range rapid.IntRange(1, 50).Draw(t, "before") {
			l.Take(&s, now, Ask{Cost: 1, MaxDelay: -1})
			now += rapid.Int64Range(0, 100_000).Draw(t, "pause")
		}
		before := l.Check(&s, now, Ask{})
		r := l.Take(&s, now, Ask{Cost: 1, MaxDelay: -1})
		if !r.Allowed || r.Delay == 0 {
			return
		}
		at := now + rapid.Int64Range(0, r.Delay-1).Draw(t, "later")
		back := l.Take(&s, at, Ask{Cost: -1, LastEnds: now + r.ResetAfter})
		if !back.Allowed {
			t.Fatalf("%+v at %d cannot be given back at %d: %+v", r, now, at, back)
		}
		if at+back.ResetAfter != now+before.ResetAfter {
			t.Fatalf("the queue drains at %d, want %d as before", at+back.ResetAfter, now+before.ResetAfter)
		}
	})
}
