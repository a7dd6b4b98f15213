package memory

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// withMargin gives a counter of a margin that closes its second identity.
func withMargin(c *rule.Counter) *rule.Counter {
	c.Margin = &rule.Counter{ID: c.ID << 32, Domain: c.Domain, Rule: c.Rule, Window: c.Window, Limit: c.Limit.Margin()}
	return c
}

// closing is a counter of 10 with a margin of 50 % that closes after a minute.
func closing(t testing.TB) *rule.Counter {
	return withMargin(counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 10, Window: time.Hour, Soft: 50,
		SoftFor: time.Minute}))
}

// phased is a counter of 3 an hour, of 5 from eight to eight, and of no limit on Sundays.
func phased(t testing.TB) *rule.Counter {
	t.Helper()
	night, day := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 3, Window: time.Hour}),
		counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 5, Window: time.Hour})
	l, err := algo.Scheduled(night.Limit, []algo.Phase{{Days: 1 << time.Sunday},
		{From: 8 * time.Hour, Until: 20 * time.Hour, Limit: day.Limit}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	night.Limit = l
	return night
}

// TestMarginInspected: what is shown of a key knows of its margin, Reset forgets it too, and so
// does the sweep in its time.
func TestMarginInspected(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := closing(t)
	for range 12 {
		take(t, s, c, "k", 1)
	}
	audit(t, s)
	if st := s.Stats(); st.Keys != 2 {
		t.Errorf("%+v, want a record for the key and one for its margin", st)
	}
	look := func(open bool) {
		t.Helper()
		limit := int64(10)
		if open {
			limit = 15
		}
		info, ok := peek(s, c, []byte("k"))
		hot := allOf(s, c)
		if !ok || info.Result.SoftLimit != limit || len(hot) != 1 || hot[0].Result != info.Result ||
			string(hot[0].Key) != "k" {
			t.Errorf("%+v, %v, %+v, want a soft limit of %d", info, ok, hot, limit)
		}
	}
	look(true)
	clock.advance(time.Minute)
	look(false)
	if take(t, s, c, "k", 1).Allowed {
		t.Error("admitted into a closed margin")
	}
	if !reset(s, c, "k") || reset(s, c, "k") {
		t.Error("Reset says the wrong thing")
	}
	if st := s.Stats(); st.Keys != 0 {
		t.Errorf("%+v after Reset", st)
	}
	if r := take(t, s, c, "k", 15); !r.Allowed || !r.Soft {
		t.Errorf("%+v after Reset", r)
	}
	// The margin alone is left, once the window has turned.
	clock.advance(time.Hour)
	if _, ok := peek(s, c, []byte("k")); ok {
		t.Error("the key is still there")
	}
	if r := take(t, s, c, "k", 15); r.Allowed || r.RetryAfter != (59*time.Minute).Microseconds() {
		t.Errorf("%+v: the margin opens when a whole window has stayed within the limit", r)
	}
	if !reset(s, c, "k") {
		t.Error("there was a margin to forget")
	}
	take(t, s, c, "k", 15)
	clock.advance(3 * time.Hour)
	other := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: time.Hour})
	for i := range 3000 {
		take(t, s, other, fmt.Sprint(i), 1)
	}
	audit(t, s)
	for i := range s.shards {
		sh := &s.shards[i].shard
		if p := sh.find(s.limits.load(), tagOf(s.hash([]byte("k")), c.Margin.ID), c.Margin.ID, []byte("k")); p >= 0 {
			t.Error("a margin that is open again is kept")
		}
	}
}

// TestMarginRestart: the margin's state survives a restart, under new pointers.
func TestMarginRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read, Snapshot: path})
	c := closing(t)
	take(t, s, c, "k", 11)
	take(t, s, c, "within", 9)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Minute)
	s = newTest(t, Options{Clock: clock.read, Snapshot: path})
	audit(t, s)
	if st := s.Stats(); st.Keys != 3 {
		t.Errorf("%+v, want two keys and a margin", st)
	}
	next := closing(t)
	next.ID, next.Margin.ID = c.ID, c.Margin.ID
	if r := take(t, s, next, "k", 1); r.Allowed || r.SoftLimit != 10 {
		t.Errorf("%+v after a restart, the margin had closed", r)
	}
	if r := take(t, s, next, "within", 2); !r.Allowed || !r.Soft {
		t.Errorf("%+v after a restart, the margin was not used", r)
	}
}

// TestMarginReload: a new window takes the state of the margin over with the state of the key.
func TestMarginReload(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := closing(t)
	take(t, s, c, "k", 11)
	clock.advance(2 * time.Minute)
	next := withMargin(counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 20, Window: 2 * time.Hour, Soft: 50,
		SoftFor: time.Minute}))
	next.Previous, next.Margin.Previous = []*rule.Counter{c}, []*rule.Counter{c.Margin}
	if r := take(t, s, next, "k", 10); r.Allowed || r.SoftLimit != 20 || r.Remaining != 9 {
		t.Errorf("%+v under the next window", r)
	}
	if st := s.Stats(); st.Keys != 2 {
		t.Errorf("%+v", st)
	}
	audit(t, s)
}

// TestMarginAtTheBound: where no record has room, margins are kept on overflow cells, and close all
// the same.
func TestMarginAtTheBound(t *testing.T) {
	clock := newClock()
	const maxKeys = 100
	s := newTest(t, Options{Clock: clock.read, MaxKeys: maxKeys})
	full := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: 24 * time.Hour})
	for i := range maxKeys {
		take(t, s, full, fmt.Sprint("refused ", i), 1)
	}
	c := closing(t)
	cells, last := map[overflowKey]bool{}, ""
	for i := 0; len(cells) < 50; i++ {
		key := fmt.Sprint("key ", i)
		cell := s.overflowKey(c.ID, s.hash([]byte(key)))
		if cells[cell] {
			continue // another one has charged it
		}
		cells[cell], last = true, key
		if r := take(t, s, c, key, 11); !r.Allowed {
			t.Fatalf("%+v", r)
		}
		clock.advance(time.Minute)
		if r := take(t, s, c, key, 1); r.Allowed {
			t.Errorf("%+v: the margin of a key on an overflow cell stays open", r)
		}
	}
	audit(t, s)
	if st := s.Stats(); st.Keys != maxKeys || st.Evictions != 0 || st.Overflows == 0 {
		t.Errorf("%+v: all keys are refused, none may be forgotten", st)
	}
	for i := range maxKeys {
		if take(t, s, full, fmt.Sprint("refused ", i), 1).Allowed {
			t.Fatal("a key that was refused is admitted")
		}
	}
	// There is room again: a margin keeps what it was on its cell.
	for i := range maxKeys {
		reset(s, full, fmt.Sprintf("refused %d", i))
	}
	if r := take(t, s, c, last, 1); r.Allowed {
		t.Errorf("%+v", r)
	}
	clock.advance(3 * time.Hour)
	if r := take(t, s, c, last, 15); !r.Allowed || !r.Soft {
		t.Errorf("%+v after hours", r)
	}
}

// TestMarginLeap: a margin that the clock left far ahead is put right by a call that is denied.
func TestMarginLeap(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := closing(t)
	none := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 0, Window: time.Hour})
	clock.advance(1000 * time.Hour)
	take(t, s, c, "k", 11)
	clock.advance(-1000 * time.Hour)
	charges := []store.Charge{
		{Counter: c, Limit: c.Limit, Key: []byte("k"), Ask: algo.Ask{Cost: 1}}, {Counter: none, Limit: none.Limit, Key: []byte("k"), Ask: algo.Ask{Cost: 1}},
	}
	if _, err := s.Take(context.Background(), charges, make([]algo.Result, 2)); err != nil {
		t.Fatal(err)
	}
	// when the old state would say that the margin is closed
	clock.advance(1000*time.Hour + 2*time.Minute)
	if r := take(t, s, c, "k", 15); !r.Allowed {
		t.Errorf("%+v", r)
	}
}

// TestScheduleStoresNothingWhileOff: neither records nor cells nor slots, and nothing goes to make
// room for them.
func TestScheduleStoresNothingWhileOff(t *testing.T) {
	clock := newClock()
	clock.now.Store(time.Date(2026, 1, 4, 12, 0, 0, 0, time.UTC).UnixMicro()) // a Sunday
	s := newTest(t, Options{Clock: clock.read, MaxKeys: 1})
	full := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: 24 * time.Hour})
	take(t, s, full, "refused", 1)
	c := phased(t)
	slots := counter(t, algo.Config{Algorithm: algo.Concurrency, N: 1})
	var err error
	if slots.Limit, err = algo.Scheduled(slots.Limit, []algo.Phase{{Days: 1 << time.Sunday}}, nil); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		key := fmt.Append(nil, i)
		charges := []store.Charge{
			{Counter: c, Limit: c.Limit, Key: key, Ask: algo.Ask{Cost: 100}}, {Counter: slots, Limit: slots.Limit, Key: key, Ask: algo.Ask{Cost: 1}},
			{Counter: full, Limit: full.Limit, Key: []byte("another"), Mode: rule.Shadow},
		}
		for _, n := range []int{1, 2, 3} {
			results := make([]algo.Result, n)
			if _, err := s.Take(context.Background(), charges[:n], results); err != nil {
				t.Fatal(err)
			}
			for i := range min(n, 2) {
				if results[i] != (algo.Result{Allowed: true, Off: true}) || charges[i].Ask.Slot != 0 {
					t.Fatalf("%+v, slot %d", results[i], charges[i].Ask.Slot)
				}
			}
		}
	}
	if st := s.Stats(); st.Keys != 1 || st.Overflows != 0 || st.Evictions != 0 {
		t.Errorf("%+v", st)
	}
	clock.advance(24 * time.Hour)
	if r := take(t, s, c, "0", 5); !r.Allowed || r.Off || r.Limit != 5 {
		t.Errorf("on Monday at noon: %+v", r)
	}
}

// TestScheduleRestart: a snapshot keeps a schedule whole, so that nothing is forgotten too early
// after a restart.
func TestScheduleRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.snapshot")
	clock := newClock()
	bucket := func(n int64) *algo.Limit {
		return counter(t, algo.Config{Algorithm: algo.TokenBucket, N: n, Burst: 10, Window: time.Hour}).Limit
	}
	fast, slow, stopped := bucket(3600), bucket(1), bucket(0)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for name, loc := range map[string]*time.Location{"a zone": berlin, "UTC": nil,
		"one that nobody knows": time.FixedZone("Nowhere", 3600)} {
		t.Run(name, func(t *testing.T) {
			c := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 1, Window: time.Hour})
			if c.Limit, err = algo.Scheduled(stopped, []algo.Phase{{From: 20 * time.Hour, Until: 8 * time.Hour, Limit: slow}, {Days: 1 << time.Sunday}, {From: 8 * time.Hour, Until: 9 * time.Hour, Limit: fast}}, loc); err != nil {
				t.Fatal(err)
			}
			s := newTest(t, Options{Clock: clock.read, Snapshot: path})
			take(t, s, c, "k", 1)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			clock.advance(59 * time.Minute)
			var n notes
			s = newTest(t, Options{Clock: clock.read, Snapshot: path, Logger: n.logger()})
			if info, ok := peek(s, c, []byte("k")); !ok || info.Result.ResetAfter != time.Minute.Microseconds() ||
				n.text() != "" {
				t.Errorf("%+v, %v, %s", info, ok, n.text())
			}
			clock.advance(time.Minute)
			if _, ok := peek(s, c, []byte("k")); ok {
				t.Error("not fresh when it should be")
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestElasticAtNothing: what is asked under a limit that lets nothing through is forgotten in its
// time.
func TestElasticAtNothing(t *testing.T) {
	clock := newClock()
	s := newTest(t, Options{Clock: clock.read})
	c := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Minute})
	nothing, err := c.Limit.Scale(0, 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		take(t, s, c, fmt.Sprint(i), 1)
		charges := []store.Charge{{Counter: c, Limit: nothing, Key: fmt.Append(nil, i), Ask: algo.Ask{Cost: 1}}}
		results := make([]algo.Result, 1)
		if _, err := s.Take(context.Background(), charges, results); err != nil || results[0].Allowed {
			t.Fatalf("%+v, %v", results, err)
		}
	}
	clock.advance(time.Hour)
	for i := range 2000 {
		take(t, s, c, fmt.Sprint("other ", i), 1)
	}
	if st := s.Stats(); st.Keys > 2500 {
		t.Errorf("%+v: keys that were asked for while nothing passed are kept", st)
	}
}
