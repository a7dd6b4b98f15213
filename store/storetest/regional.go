package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// Regional is the contract of store.Regional as tests. newStore is as for Run.
//
//	func TestRegional(t *testing.T) {
//		storetest.Regional(t, func(t *testing.T, clock func() int64) store.Store { … })
//	}
func Regional(t *testing.T, newStore func(t *testing.T, clock func() int64) store.Store) {
	t.Run("Log", func(t *testing.T) { testRegionalLog(t, newStore) })
	t.Run("LogWaits", func(t *testing.T) { testRegionalLogWaits(t, newStore) })
	t.Run("LogIsBounded", func(t *testing.T) { testRegionalLogIsBounded(t, newStore) })
	t.Run("When", func(t *testing.T) { testRegionalWhen(t, newStore) })
	t.Run("Position", func(t *testing.T) { testRegionalPosition(t, newStore) })
	t.Run("Lead", func(t *testing.T) { testRegionalLead(t, newStore) })
	t.Run("BadCalls", func(t *testing.T) { testRegionalBadCalls(t, newStore) })
	for _, a := range algorithms {
		t.Run("Random/"+a.String(), func(t *testing.T) { testRegionalRandom(t, newStore, a) })
	}
	t.Run("WhileOut", func(t *testing.T) { testRegionalWhileOut(t, newStore) })
	t.Run("ExactlyOnce", func(t *testing.T) { testRegionalExactlyOnce(t, newStore) })
}

func newRegional(t *testing.T, n newStore, clock func() int64) store.Regional {
	t.Helper()
	s, ok := n(t, clock).(store.Regional)
	if !ok {
		t.Fatal("the store is no store.Regional")
	}
	return s
}

// told reads a log; it must not fail.
func told(t testing.TB, s store.Regional, part int, after string, limit int, wait time.Duration) (told []store.Told,
	next string, gap bool) {
	t.Helper()
	told, next, gap, now, err := s.Told(context.Background(), part, after, limit, wait)
	if err != nil || now <= 0 {
		t.Fatalf("Told: at %d, %v", now, err)
	}
	return told, next, gap
}

func tell(t testing.TB, s store.Regional, part int, told ...store.Told) {
	t.Helper()
	if err := s.Tell(context.Background(), part, told); err != nil {
		t.Fatalf("Tell: %v", err)
	}
}

func sameTold(a, b []store.Told) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Counter != b[i].Counter || a[i].Units != b[i].Units || a[i].At != b[i].At ||
			!bytes.Equal(a[i].Key, b[i].Key) {
			return false
		}
	}
	return true
}

// testRegionalLog: entries are read in order, from each position on, as often as is wanted.
func testRegionalLog(t *testing.T, n newStore) {
	s := newRegional(t, n, nil)
	for i, part := range []int{0, s.Parts() - 1} {
		first := i == 0 || s.Parts() > 1
		read, end, gap := told(t, s, part, "", 100, time.Hour)
		if len(read) > 0 || end == "" || gap {
			t.Fatalf("without a position: %v, %q, gap %v", read, end, gap)
		}
		if read, next, gap := told(t, s, part, store.Oldest, 100, time.Hour); first &&
			(len(read) > 0 || next != end || gap) {
			t.Fatalf("the beginning of an empty log: %v, %q, gap %v, want %q", read, next, gap, end)
		}
		entries := [][]store.Told{
			{{Counter: 1, Key: []byte("a"), Units: 3, At: start}},
			{{At: start + 1}},
			{{Counter: 1, Key: []byte("a"), Units: -2, At: start + 1}, {Counter: 1, Key: []byte("b"), Units: -algo.MaxCost, At: start + 2}},
			{
				{Counter: 1<<64 - 1, Key: []byte{}, Units: algo.MaxCost, At: start + 9}, {Counter: 2, Key: []byte("\x00\xff{}"), Units: 1, At: start - 1<<40},
				{Counter: 2, Key: bytes.Repeat([]byte("k"), 3000), Units: 1 << 40, At: 1},
			},
		}
		for _, entry := range entries {
			tell(t, s, part, entry...)
		}
		tell(t, s, part)
		all := slices.Concat(entries...)
		got, last, gap := told(t, s, part, end, 100, time.Hour)
		if !sameTold(got, all) || gap {
			t.Fatalf("read %+v, gap %v\nwant %+v", got, gap, all)
		}
		at := end
		for _, want := range entries {
			var got []store.Told
			if got, at, gap = told(t, s, part, at, 1, 0); !sameTold(got, want) || gap {
				t.Fatalf("one by one: %+v, gap %v, want %+v", got, gap, want)
			}
		}
		if at != last {
			t.Errorf("one by one the log ends at %q, else at %q", at, last)
		}
		if got, next, gap := told(t, s, part, last, 100, 0); len(got) > 0 || next != last || gap {
			t.Errorf("after the end: %+v, %q, gap %v", got, next, gap)
		}
		if _, next, _ := told(t, s, part, "", 1, 0); next != last {
			t.Errorf("the end is %q, read %q", next, last)
		}
		if got, next, gap := told(t, s, part, store.Oldest, 100, time.Hour); gap || next != last ||
			first && !sameTold(got, all) {
			t.Errorf("from the beginning: %+v, %q, gap %v", got, next, gap)
		}
	}
}

// testRegionalLogWaits: a reader waits for the first entry, for as long as it wants or its context
// lets it.
func testRegionalLogWaits(t *testing.T, n newStore) {
	s := newRegional(t, n, nil)
	_, end, _ := told(t, s, 0, "", 1, 0)
	if got, next, gap := told(t, s, 0, end, 1, 20*time.Millisecond); len(got) > 0 || next != end || gap {
		t.Fatalf("nothing was told: %+v, %q, gap %v", got, next, gap)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, _, _, err := s.Told(ctx, 0, end, 1, time.Hour)
		ended <- err
	}()
	cancel()
	<-ended // with or without an error, but it ends
	read := make(chan []store.Told, 4)
	for range cap(read) {
		go func() {
			got, _, _, _, err := s.Told(context.Background(), 0, end, 1, time.Hour)
			if err != nil {
				t.Errorf("Told: %v", err)
			}
			read <- got
		}()
	}
	want := []store.Told{{Counter: 7, Key: []byte("k"), Units: 1, At: start}}
	tell(t, s, 0, want...)
	for range cap(read) {
		if got := <-read; !sameTold(got, want) {
			t.Errorf("waited for %+v, want %+v", got, want)
		}
	}
}

// testRegionalLogIsBounded: the oldest entries go, and a reader that had not read them learns it.
func testRegionalLogIsBounded(t *testing.T, n newStore) {
	s := newRegional(t, n, nil)
	_, end, _ := told(t, s, 0, "", 1, 0)
	entry := []store.Told{{Counter: 1, Key: []byte("k"), Units: 1, At: start}}
	for i := int64(1); ; i++ {
		entry[0].Units = i
		tell(t, s, 0, entry...)
		if i%500 != 0 {
			continue
		}
		got, next, gap := told(t, s, 0, end, 1, 0)
		if !gap && got[0].Units != 1 {
			t.Fatalf("no gap before %+v", got)
		}
		if gap {
			if oldest, _, gap := told(t, s, 0, store.Oldest, 1, 0); gap || !sameTold(oldest, got) {
				t.Fatalf("the oldest entry: %+v, gap %v, want %+v", oldest, gap, got)
			}
			if len(got) != 1 || got[0].Units < 2 {
				t.Fatalf("after the gap %+v", got)
			}
			first := got[0].Units
			if got, _, gap := told(t, s, 0, next, 1, 0); gap || len(got) != 1 || got[0].Units != first+1 {
				t.Fatalf("after the gap %d, then %+v, gap %v", first, got, gap)
			}
			break
		}
		if i > 100_000 {
			t.Fatal("the log has no bound")
		}
	}
	// Positions of other logs.
	for _, after := range []string{"1-1", "1000000000-0", "zz9-5"} {
		if _, next, gap, _, err := s.Told(t.Context(), 0, after, 1, 0); err == nil && (!gap || next == "") {
			t.Errorf("after %q: next %q, gap %v", after, next, gap)
		}
	}
	_, last, _ := told(t, s, 0, "", 1, 0)
	if got, next, gap := told(t, s, 0, "9007199254740991-0", 1, 0); len(got) == 0 && (!gap || next != last) {
		t.Errorf("behind the end: %+v, next %q, gap %v, want %q", got, next, gap, last)
	}
}

// change is one call that must not fail.
func change(t rapid.TB, s store.Regional, changes ...store.Change) ([]store.Changed, int64) {
	t.Helper()
	done := make([]store.Changed, len(changes))
	part := 0
	if len(changes) > 0 {
		part = s.PartOf(changes[0].Counter, changes[0].Key)
	}
	now, err := s.Change(context.Background(), part, "", "", "", changes, done)
	if err != nil {
		t.Fatalf("Change: %v", err)
	}
	return done, now
}

// testRegionalWhen: a change is made at Since and later, and before Until.
func testRegionalWhen(t *testing.T, n newStore) {
	clock := newVirtual()
	s := newRegional(t, n, clock.read)
	c := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: 24 * time.Hour})
	key := []byte("k")
	now := clock.read()
	for part := range s.Parts() {
		if at, err := s.Change(context.Background(), part, "", "", "", nil, nil); err != nil || at != now {
			t.Errorf("without a change: at %d, want %d; %v", at, now, err)
		}
	}
	left := int64(1000)
	for _, tc := range []struct {
		since, until int64
		made         bool
	}{
		{0, 0, true}, {now, now + 1, true}, {now + 1, 0, false}, {0, now, false}, {-5, now + 1, true}, {now - 1, now, false}, {now, 1<<63 - 1, true},
		{1<<63 - 1, 0, false}, {-1 << 63, -1, false},
	} {
		for _, units := range []int64{20, -10} {
			done, at := change(t, s, store.Change{Counter: c, Limit: c.Limit, Key: key, Units: units, Since: tc.since,
				Until: tc.until})
			if tc.made {
				left -= units
			}
			if at != now || done[0].Made != tc.made || done[0].Over != 0 {
				t.Errorf("%d units from %d until %d at %d: %+v at %d", units, tc.since, tc.until, now, done, at)
			}
		}
	}
	if r, _ := take(t, s, charge(c, "k", 0)); r[0].Remaining != left {
		t.Errorf("%d remain, want %d", r[0].Remaining, left)
	}
	done, _ := change(t, s, store.Change{Counter: c, Limit: c.Limit, Key: key, Units: left + 5})
	if done[0] != (store.Changed{Made: true, Over: 5}) {
		t.Errorf("five more than there is room for: %+v", done)
	}
}

// testRegionalPosition: a position moves by calls that know where it is, each log's by itself, and
// with it the changes are made or not.
func testRegionalPosition(t *testing.T, n newStore) {
	s := newRegional(t, n, nil)
	c := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: algo.MaxWindow, FirstRequest: true})
	part := s.PartOf(c, []byte("k"))
	logs := []string{fmt.Sprint("us-", rand.Uint64()), fmt.Sprint("eu-", rand.Uint64())}
	left := int64(1000)
	move := func(log, from, to string, want error) {
		t.Helper()
		_, err := s.Change(t.Context(), part, log, from, to,
			[]store.Change{{Counter: c, Limit: c.Limit, Key: []byte("k"), Units: 1}}, make([]store.Changed, 1))
		if !errors.Is(err, want) {
			t.Fatalf("%s from %q to %q: %v, want %v", log, from, to, err, want)
		}
		if err == nil {
			left--
		}
		if r, _ := take(t, s, charge(c, "k", 0)); r[0].Remaining != left {
			t.Fatalf("%s from %q to %q: %d remain, want %d", log, from, to, r[0].Remaining, left)
		}
	}
	is := func(log, want string) {
		t.Helper()
		if got, err := s.Position(t.Context(), part, log); err != nil || got != want {
			t.Fatalf("%s is at %q, %v, want %q", log, got, err, want)
		}
	}
	is(logs[0], "")
	move(logs[0], "1-0", "2-0", store.ErrMoved)
	is(logs[0], "")
	move(logs[0], "", "1-0", nil)
	is(logs[0], "1-0")
	is(logs[1], "")
	move(logs[0], "", "2-0", store.ErrMoved)
	move(logs[0], "1-0", "2-0", nil)
	move(logs[0], "1-0", "2-0", store.ErrMoved)
	move(logs[1], "", "7-7", nil)
	is(logs[0], "2-0")
	is(logs[1], "7-7")
	// Without changes the position moves all the same.
	if _, err := s.Change(t.Context(), part, logs[1], "7-7", "8-0", nil, nil); err != nil {
		t.Fatal(err)
	}
	is(logs[1], "8-0")
	move("", "any", "thing", nil)
}

func testRegionalLead(t *testing.T, n newStore) {
	clock := newVirtual()
	s := newRegional(t, n, clock.read)
	task := fmt.Sprint("task-", rand.Uint64())
	lead := func(holder string, term time.Duration, want bool) {
		t.Helper()
		if got, err := s.Lead(t.Context(), task, holder, term); err != nil || got != want {
			t.Fatalf("%s leads: %v, %v, want %v", holder, got, err, want)
		}
	}
	lead("a", 3*time.Second, true)
	lead("b", 3*time.Second, false)
	clock.advance(2 * time.Second)
	lead("a", 3*time.Second, true)
	clock.advance(2 * time.Second)
	lead("b", 3*time.Second, false)
	clock.advance(time.Second)
	lead("b", 3*time.Second, true)
	lead("a", 3*time.Second, false)
	lead("a", 0, false) // it is not a's to leave
	lead("a", time.Second, false)
	lead("b", 0, false)
	lead("a", time.Second, true)
	if ok, err := s.Lead(t.Context(), task+"'", "b", time.Second); !ok || err != nil {
		t.Errorf("another task: %v, %v", ok, err)
	}
}

func testRegionalBadCalls(t *testing.T, n newStore) {
	s := newRegional(t, n, nil)
	c := counterOf(t, algo.Config{N: 10, Window: time.Minute})
	one := store.Change{Counter: c, Limit: c.Limit, Key: []byte("k"), Units: 1}
	log := fmt.Sprint("bad-", rand.Uint64())
	for name, call := range map[string]struct {
		changes []store.Change
		done    int
	}{
		"too few results": {[]store.Change{one}, 0},
		"no counter":      {[]store.Change{{Limit: c.Limit, Key: one.Key, Units: 1}}, 1},
		"no limit":        {[]store.Change{{Counter: c, Key: one.Key, Units: 1}}, 1},
		"too many":        {make([]store.Change, store.MaxChanges+1), store.MaxChanges + 1},
	} {
		if _, err := s.Change(t.Context(), s.PartOf(c, one.Key), log, "", "1-0", call.changes, make([]store.Changed, call.done)); !errors.Is(err, store.ErrNotCharged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if at, err := s.Position(t.Context(), s.PartOf(c, one.Key), log); at != "" || err != nil {
		t.Errorf("the position is %q, %v", at, err)
	}
	for _, call := range []struct {
		task, holder string
		term         time.Duration
	}{{"", "a", time.Second}, {"t", "", time.Second}, {"t", "a", -1}} {
		if ok, err := s.Lead(t.Context(), call.task, call.holder, call.term); ok || err == nil {
			t.Errorf("%+v: %v, %v", call, ok, err)
		}
	}
}

// change is store.Regional.Change for one change.
func (m *model) change(c *store.Change, now int64) store.Changed {
	if now < c.Since || c.Until != 0 && now >= c.Until {
		return store.Changed{}
	}
	k := m.state(c.Counter, c.Limit, c.Key, now)
	defer m.forget(stateKey{c.Counter.ID, string(c.Key)}, now)
	var lease *algo.State
	if c.Limit.Lease() != nil {
		beside, name := m.beside(c.Counter, c.Limit, c.Key, now)
		lease = &beside.st
		defer m.forget(name, now)
	}
	done := store.Changed{Made: true}
	switch {
	case c.Units > 0:
		done.Over = c.Limit.Hear(&k.st, lease, now, c.Units)
	case c.Limit.Algorithm() != algo.Concurrency:
		c.Limit.Roll(&k.st, lease, now)
		if lease == nil {
			c.Limit.Take(&k.st, now, algo.Ask{Cost: c.Units})
		} else {
			c.Limit.TakeWith(&k.st, lease, now, algo.Ask{Cost: c.Units})
		}
	}
	return done
}

// testRegionalRandom holds a store against the pure algorithms: changes among requests, of limits
// with and without leases, schedules, margins and older identities, several of one state at once.
func testRegionalRandom(t *testing.T, n newStore, a algo.Algorithm) {
	clock := newVirtual()
	s := newRegional(t, n, clock.read)
	_, lends := s.(store.Lender)
	rapid.Check(t, func(rt *rapid.T) {
		clock.now.Add(day.Microseconds() - (clock.read()-start)%day.Microseconds())
		p := &pair{store: s, model: newModel(), clock: clock}
		l := lender{p}
		group := uint64(0)
		if rapid.Bool().Draw(rt, "group") {
			group = lastID.Add(1) << 32
		}
		var counters []*rule.Counter
		for range rapid.IntRange(1, 3).Draw(rt, "counters") {
			cfg := rapid.SampledFrom(configs[a]).Draw(rt, "limit")
			cfg.Algorithm = a
			if lends && a != algo.LeakyBucket && a != algo.Concurrency && rapid.Bool().Draw(rt, "leased") {
				cfg = drawLeased(rt, a)
			}
			c := counterOf(t, cfg)
			if cfg.Calendar == 0 && rapid.IntRange(0, 4).Draw(rt, "scheduled") == 0 {
				c = counterFor(schedule(t, cfg))
			}
			join(c, group)
			counters = append(counters, c)
		}
		var last algo.Result
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			p.pass(rt, last)
			if i := rapid.IntRange(0, 20).Draw(rt, "renamed"); i < len(counters) {
				older := counters[i]
				counters[i] = counterFor(older.Limit)
				join(counters[i], group)
				succeed(counters[i], append([]*rule.Counter{older}, older.Previous...)...)
			}
			draw := func() *rule.Counter { return rapid.SampledFrom(counters).Draw(rt, "counter") }
			if rapid.IntRange(0, 2).Draw(rt, "ask") == 0 {
				c := draw()
				ch := charge(c, rapid.SampledFrom(keys[:2]).Draw(rt, "key"), 0)
				if ch.Ask = drawAsk(rt, c.Limit); c.Lease == nil {
					last = p.take(rt, ch)[0]
					continue
				}
				last = l.ask(rt, []store.Charge{ch}, []algo.Ahead{{Want: rapid.Int64Range(0, 9).Draw(rt, "want")}})[0]
				continue
			}
			now := clock.read()
			parts := map[int][]store.Change{}
			for range rapid.SampledFrom([]int{1, 1, 2, 3, 8}).Draw(rt, "changes") {
				c := store.Change{Counter: draw(), Key: []byte(rapid.SampledFrom(keys[:3]).Draw(rt, "key"))}
				c.Limit = c.Counter.Limit
				c.Units = rapid.SampledFrom([]int64{1, 1, 2, 7, 400, algo.MaxCost, -1, -2, -1000}).Draw(rt, "units")
				c.Since = rapid.SampledFrom([]int64{0, 0, 0, now, now + 1}).Draw(rt, "since")
				c.Until = rapid.SampledFrom([]int64{0, 0, 0, now, now + 1}).Draw(rt, "until")
				part := s.PartOf(c.Counter, c.Key)
				parts[part] = append(parts[part], c)
			}
			for _, changes := range parts {
				done, at := change(rt, s, changes...)
				if at != now {
					rt.Fatalf("changed at %d, the clock says %d", at, now)
				}
				for i := range changes {
					if want := p.model.change(&changes[i], now); done[i] != want {
						rt.Fatalf("change %d of %d (%v, %+v): %+v, want %+v", i, len(changes), changes[i].Limit,
							changes[i], done[i], want)
					}
				}
			}
		}
	})
}

// testRegionalWhileOut: units lent count against the room of units heard, and stay out whatever is
// heard or given back; a window from the first request stays where it is meanwhile.
func testRegionalWhileOut(t *testing.T, n newStore) {
	clock := newVirtual()
	s := newRegional(t, n, clock.read)
	if _, ok := s.(store.Lender); !ok {
		t.Skip("it lends nothing")
	}
	for _, a := range lending {
		for _, first := range []bool{false, a == algo.FixedWindow} {
			cfg := leased(a)
			cfg.FirstRequest = first
			c := counterOf(t, cfg)
			l := lender{&pair{store: s, model: newModel(), clock: clock}}
			h := algo.Ahead{Want: 8}
			if l.one(t, c, "k", 2, &h); h.Got != 8 {
				t.Fatalf("%v: lent %+v", c.Limit, h)
			}
			for _, units := range []int64{5, -1, -1000, 10, 88, -1000} {
				one := store.Change{Counter: c, Limit: c.Limit, Key: []byte("k"), Units: units}
				done, now := change(t, s, one)
				if want := l.model.change(&one, now); done[0] != want {
					t.Fatalf("%v, %d units: %+v, want %+v", c.Limit, units, done[0], want)
				}
				h := algo.Ahead{}
				if l.one(t, c, "k", 0, &h); h.Out != 8 {
					t.Fatalf("%v, after %d units: %+v", c.Limit, units, h)
				}
				clock.advance(10 * time.Millisecond)
			}
			clock.advance(5 * time.Second) // it has ended, and is charged
			h = algo.Ahead{}
			l.one(t, c, "k", 0, &h)
		}
	}
}

// testRegionalExactlyOnce: several callers charge one log to a store, race for its position, and
// are given up in the middle of calls. Each unit in the log is charged once.
func testRegionalExactlyOnce(t *testing.T, n newStore) {
	const entries, each, callers = 2500, 4, 4
	s := newRegional(t, n, nil)
	c := counterOf(t, algo.Config{Algorithm: algo.FixedWindow, N: algo.MaxN, Window: algo.MaxWindow,
		FirstRequest: true})
	part := s.PartOf(c, []byte("key 0"))
	var keys [][]byte
	for i := 0; len(keys) < each; i++ {
		if key := fmt.Appendf(nil, "key %d", i); s.PartOf(c, key) == part {
			keys = append(keys, key)
		}
	}
	log := fmt.Sprint("region-", rand.Uint64())
	_, begin, _ := told(t, s, part, "", 1, 0)
	if _, err := s.Change(t.Context(), part, log, "", begin, nil, nil); err != nil {
		t.Fatal(err)
	}
	var total int64
	var end atomic.Pointer[string]
	var moved, cancelled atomic.Int64
	var work sync.WaitGroup
	for i := range callers {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for {
				at, err := s.Position(context.Background(), part, log)
				if last := end.Load(); err == nil && last != nil && at == *last {
					return
				}
				entries, next, gap, _, err := s.Told(context.Background(), part, at, 1+rnd.IntN(40),
					20*time.Millisecond)
				if err != nil || gap {
					t.Errorf("Told after %q: gap %v, %v", at, gap, err)
					return
				}
				changes := make([]store.Change, len(entries))
				for i, e := range entries {
					changes[i] = store.Change{Counter: c, Limit: c.Limit, Key: e.Key, Units: e.Units}
				}
				ctx, cancel := context.WithCancel(context.Background())
				if rnd.IntN(4) == 0 {
					time.AfterFunc(time.Duration(rnd.IntN(300))*time.Microsecond, cancel)
				}
				_, err = s.Change(ctx, part, log, at, next, changes, make([]store.Changed, len(changes)))
				cancel()
				switch {
				case errors.Is(err, store.ErrMoved):
					moved.Add(1)
				case errors.Is(err, context.Canceled):
					cancelled.Add(1)
				case err != nil:
					t.Errorf("Change: %v", err)
					return
				}
			}
		})
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	for range entries {
		var told []store.Told
		for _, key := range keys {
			units := 1 + rnd.Int64N(5)
			total += units
			told = append(told, store.Told{Counter: c.ID, Key: key, Units: units, At: start})
		}
		tell(t, s, part, told...)
	}
	_, last, _ := told(t, s, part, "", 1, 0)
	end.Store(&last)
	work.Wait()
	heard := int64(0)
	for _, key := range keys {
		r, _ := take(t, s, charge(c, string(key), 0))
		heard += algo.MaxN - r[0].Remaining
	}
	t.Logf("%d told, %d heard; %d calls found that another one had been there, %d were given up", total, heard,
		moved.Load(), cancelled.Load())
	if heard != total {
		t.Errorf("%d told, %d heard", total, heard)
	}
}
