package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// Engine tests the contract of cas.Engine, and of cas.Locker where the engine is one. newEngine
// returns an engine whose database holds nothing; it sees to it that the engine is closed when the
// test ends.
//
//	func TestEngine(t *testing.T) {
//		storetest.Engine(t, func(t *testing.T) cas.Engine { … })
//	}
//
// It reads the engine's own clock, and takes some seconds.
func Engine(t *testing.T, newEngine func(t *testing.T) cas.Engine) {
	e := newEngine(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, e *engineTest)
	}{
		{"Nothing", testEngineNothing},
		{"Values", testEngineValues},
		{"Conflict", testEngineConflict},
		{"Groups", testEngineGroups},
		{"Keep", testEngineKeep},
		{"Delete", testEngineDelete},
		{"Skew", testEngineSkew},
		{"Until", testEngineUntil},
		{"Lifetimes", testEngineLifetimes},
		{"Cancelled", testEngineCancelled},
		{"Spans", testEngineSpans},
		{"Borrowed", testEngineBorrowed},
		{"Counters", testEngineCounters},
		{"Transfers", testEngineTransfers},
		{"Crossed", testEngineCrossed},
		{"Lock", testEngineLock},
		{"LockedCounters", testEngineLockedCounters},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, &engineTest{T: t, e: e}) })
	}
	t.Run("Scan", func(t *testing.T) { testEngineScan(t, &engineTest{T: t, e: newEngine(t)}) })
}

// engineTest is a test, and the engine that it is of.
type engineTest struct {
	*testing.T
	e cas.Engine
}

// engineKeys makes the keys of all tests differ, so that one engine serves them all.
var engineKeys atomic.Uint64

// keys returns n new keys of one place, in order.
func (t *engineTest) keys(n int) []cas.Key {
	place := rand.Uint64()
	keys := make([]cas.Key, n)
	for i := range keys {
		keys[i] = cas.Key{Place: place, Name: fmt.Appendf(nil, "key %06d", engineKeys.Add(1))}
	}
	return keys
}

func drawVersion() uint64 { return 1 + rand.Uint64N(1<<64-1) }

// lasting is how long values live that a test does not wait for, in µs.
const lasting = int64(time.Hour / time.Microsecond)

// read reads keys, which must not fail.
func (t *engineTest) read(keys ...cas.Key) ([]cas.Value, int64) {
	t.Helper()
	values, clock, err := t.e.Read(t.Context(), keys)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	if len(values) != len(keys) || clock <= 0 {
		t.Fatalf("Read of %d keys: %d values at %d", len(keys), len(values), clock)
	}
	return values, clock
}

func (t *engineTest) clock() int64 {
	t.Helper()
	_, clock := t.read(t.keys(1)...)
	return clock
}

// swap makes changes that no decision has made; it must not fail.
func (t *engineTest) swap(groups ...cas.Group) {
	t.Helper()
	if _, err := t.e.Swap(t.Context(), 0, groups); err != nil {
		t.Fatalf("Swap: %v", err)
	}
	for i := range groups {
		if err := groups[i].Err; err != nil {
			t.Fatalf("Swap: group %d: %v", i, err)
		}
		if !groups[i].Done && len(groups[i].Values) != len(groups[i].Changes) {
			t.Fatalf("group %d has %d values, not %d", i, len(groups[i].Values), len(groups[i].Changes))
		}
	}
}

// change is one to a new version.
func (t *engineTest) change(k cas.Key, was uint64, data string, until int64) cas.Change {
	return cas.Change{Key: k, Was: was, Version: drawVersion(), Data: []byte(data), Until: until}
}

// put writes a value under a new key, and returns the change that did.
func (t *engineTest) put(k cas.Key, data string) cas.Change {
	t.Helper()
	c := t.change(k, 0, data, t.clock()+lasting)
	groups := []cas.Group{{Changes: []cas.Change{c}}}
	if t.swap(groups...); !groups[0].Done {
		t.Fatalf("nothing lies under a new key, and a value cannot be written: %+v", groups[0])
	}
	return c
}

// holds checks what lies under a key.
func (t *engineTest) holds(k cas.Key, version uint64, data string) {
	t.Helper()
	values, _ := t.read(k)
	t.is(values[0], version, data)
}

func (t *engineTest) is(v cas.Value, version uint64, data string) {
	t.Helper()
	if v.Version != version || string(v.Data) != data {
		t.Errorf("version %d %.40q, want version %d %.40q", v.Version, v.Data, version, data)
	}
}

func testEngineNothing(_ *testing.T, t *engineTest) {
	values, clock := t.read(t.keys(3)...)
	for _, v := range values {
		t.is(v, 0, "")
	}
	if _, later := t.read(); later < clock {
		t.Errorf("the clock goes back, from %d to %d", clock, later)
	}
	groups := []cas.Group{}
	t.swap(groups...)
}

// testEngineValues: any bytes may be a name, and a value; they come back in the order that was
// asked for.
func testEngineValues(_ *testing.T, t *engineTest) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	place := rand.Uint64() | 1<<63
	var changes []cas.Change
	until := t.clock() + lasting
	for _, name := range []string{"\x00", "\x00\x00", "a\x00b", string(all), strings.Repeat("\xff", cas.MaxName),
		"\xff\xfe", "é 'quoted' \\"} {
		k := cas.Key{Place: place, Name: []byte(name)}
		changes = append(changes, t.change(k, 0, string(all)+name, until))
	}
	changes[0].Data = nil
	changes[1].Data = bytes.Repeat(all, 4<<10) // 1 MiB
	changes[2].Version = 1<<64 - 1
	changes[3].Version = 1
	slices.SortFunc(changes, func(a, b cas.Change) int { return bytes.Compare(a.Name, b.Name) })
	groups := []cas.Group{{Changes: changes}}
	if t.swap(groups...); !groups[0].Done {
		t.Fatal("nothing lies under new keys, and values cannot be written")
	}
	keys := make([]cas.Key, len(changes))
	order := rand.Perm(len(changes))
	for i, of := range order {
		keys[i] = changes[of].Key
	}
	values, _ := t.read(keys...)
	for i, of := range order {
		t.is(values[i], changes[of].Version, string(changes[of].Data))
	}
}

// testEngineConflict: a version that is not the one expected changes nothing, and the values of now
// come back.
func testEngineConflict(_ *testing.T, t *engineTest) {
	keys := t.keys(3)
	a, until := t.put(keys[0], "a"), t.clock()+lasting
	for name, was := range map[string][2]uint64{
		"another version": {a.Version + 1, 0}, "there is a value": {0, 0}, "there is none": {a.Version, 5},
	} {
		groups := []cas.Group{{Changes: []cas.Change{
			t.change(keys[0], was[0], "A", until), t.change(keys[1], was[1], "B", until),
			t.change(keys[2], 0, "C", until),
		}}}
		if t.swap(groups...); groups[0].Done {
			t.Fatalf("%s: the change was made", name)
		}
		for i, want := range []cas.Value{{Version: a.Version, Data: a.Data}, {}, {}} {
			t.is(groups[0].Values[i], want.Version, string(want.Data))
		}
		t.holds(keys[0], a.Version, "a")
		t.holds(keys[1], 0, "")
		t.holds(keys[2], 0, "")
	}
	// The values of now are all that it takes.
	b := t.change(keys[0], a.Version, "b", until)
	groups := []cas.Group{{Changes: []cas.Change{b}}}
	if t.swap(groups...); !groups[0].Done {
		t.Fatal("the version is the one expected, and nothing was done")
	}
	t.holds(keys[0], b.Version, "b")
	if t.swap(groups...); groups[0].Done {
		t.Error("the same change was made twice")
	}
	t.is(groups[0].Values[0], b.Version, "b")
}

// testEngineGroups: the outcome of one group does not affect the others of the call. There are as
// many as a busy node may send.
func testEngineGroups(_ *testing.T, t *engineTest) {
	const n = 300
	until := t.clock() + lasting
	groups := make([]cas.Group, n)
	wrong := func(i int) bool { return i%7 == 3 }
	for i := range groups {
		for j, k := range t.keys(1 + i%3) {
			c := t.change(k, 0, fmt.Sprint(i), until)
			if wrong(i) && j == i%3 {
				c.Was = drawVersion()
			}
			groups[i].Changes = append(groups[i].Changes, c)
		}
	}
	t.swap(groups...)
	for i := range groups {
		g := &groups[i]
		if g.Done == wrong(i) {
			t.Fatalf("group %d: done is %v", i, g.Done)
		}
		for j := range g.Changes {
			if c := &g.Changes[j]; g.Done {
				t.holds(c.Key, c.Version, fmt.Sprint(i))
			} else {
				t.is(g.Values[j], 0, "")
				t.holds(c.Key, 0, "")
			}
		}
	}
}

// testEngineKeep: a value that is only compared stays as it is, and decides as any other.
func testEngineKeep(_ *testing.T, t *engineTest) {
	keys := t.keys(3)
	a, until := t.put(keys[0], "a"), t.clock()+lasting
	keep := func(k cas.Key, was uint64) cas.Change { return cas.Change{Key: k, Was: was, Keep: true} }
	groups := []cas.Group{
		{Changes: []cas.Change{keep(keys[0], a.Version), keep(keys[1], 0), t.change(keys[2], 0, "c", until)}},
	}
	if t.swap(groups...); !groups[0].Done {
		t.Fatal("all is as expected, and nothing was done")
	}
	t.holds(keys[0], a.Version, "a")
	t.holds(keys[1], 0, "")
	t.holds(keys[2], groups[0].Changes[2].Version, "c")
	for name, changes := range map[string][]cas.Change{
		"one of it is another":   {keep(keys[0], a.Version+1), t.change(keys[1], 0, "b", until)},
		"one of it is there":     {keep(keys[0], 0), t.change(keys[1], 0, "b", until)},
		"one of it is not there": {t.change(keys[0], a.Version, "b", until), keep(keys[1], 7)},
		"only compared":          {keep(keys[0], a.Version+1), keep(keys[1], 0)},
	} {
		groups := []cas.Group{{Changes: changes}}
		if t.swap(groups...); groups[0].Done {
			t.Fatalf("%s: done", name)
		}
		t.is(groups[0].Values[0], a.Version, "a")
		t.is(groups[0].Values[1], 0, "")
		t.holds(keys[0], a.Version, "a")
		t.holds(keys[1], 0, "")
	}
	groups = []cas.Group{{Changes: []cas.Change{keep(keys[0], a.Version), keep(keys[1], 0)}}}
	if t.swap(groups...); !groups[0].Done {
		t.Error("all that is compared is as expected")
	}
}

// testEngineDelete: a value that is deleted is as none.
func testEngineDelete(_ *testing.T, t *engineTest) {
	keys := t.keys(2)
	a, b := t.put(keys[0], "a"), t.put(keys[1], "b")
	groups := []cas.Group{{Changes: []cas.Change{{Key: keys[0], Was: b.Version}}},
		{Changes: []cas.Change{{Key: keys[1], Was: b.Version}}}}
	t.swap(groups...)
	if groups[0].Done || !groups[1].Done {
		t.Fatalf("done: %v, %v; want false, true", groups[0].Done, groups[1].Done)
	}
	t.holds(keys[0], a.Version, "a")
	t.holds(keys[1], 0, "")
	groups = []cas.Group{{Changes: []cas.Change{t.change(keys[1], b.Version, "c", t.clock()+lasting)}}}
	if t.swap(groups...); groups[0].Done {
		t.Error("a deleted value was changed")
	}
	t.put(keys[1], "d")
}

// testEngineSkew: an engine swaps nothing at an instant that its clock is far from.
func testEngineSkew(_ *testing.T, t *engineTest) {
	keys := t.keys(1)
	a := t.put(keys[0], "a")
	for _, off := range []time.Duration{-time.Hour, -1500 * time.Millisecond, 2500 * time.Millisecond, time.Hour} {
		// Between the two readings of the clock some time passes; so an instant ahead may be near
		// after all, on a machine that is busy. It is far enough then.
		began := t.clock()
		groups := []cas.Group{{Changes: []cas.Change{t.change(keys[0], a.Version, "b", began+lasting)}}}
		now := began + off.Microseconds()
		clock, err := t.e.Swap(t.Context(), now, groups)
		if err != nil {
			t.Fatal(err)
		}
		if off := now - clock; off <= cas.MaxSkew && off >= -cas.MaxSkew {
			continue
		}
		if g := &groups[0]; g.Done || g.Err != nil || len(g.Values) != 1 {
			t.Fatalf("an instant that is %v off: %+v", off, g)
		}
		t.is(groups[0].Values[0], a.Version, "a")
		if clock < began {
			t.Errorf("the clock is %d, which was %d before", clock, began)
		}
	}
	t.holds(keys[0], a.Version, "a")
	for range 100 {
		began := t.clock()
		b := t.change(keys[0], a.Version, "b", began+lasting)
		groups := []cas.Group{{Changes: []cas.Change{b}}}
		clock, err := t.e.Swap(t.Context(), began, groups)
		if err != nil {
			t.Fatal(err)
		}
		if groups[0].Done {
			t.holds(keys[0], b.Version, "b")
			return
		}
		if clock-began <= cas.MaxSkew {
			t.Fatalf("an instant that is %d µs off was not taken", clock-began)
		}
	}
	t.Error("in none of 100 tries did the engine write within a second")
}

// testEngineUntil: nothing is forgotten before its time, and each change sets that anew.
func testEngineUntil(_ *testing.T, t *engineTest) {
	keys := t.keys(40)
	const life = 300_000
	begin := t.clock()
	var groups []cas.Group
	until := make([]int64, len(keys))
	for i, k := range keys {
		until[i] = begin + life + int64(i)*life/int64(len(keys))
		groups = append(groups, cas.Group{Changes: []cas.Change{t.change(k, 0, "value", until[i])}})
	}
	t.swap(groups...)
	longer, shorter := groups[0].Changes[0], t.keys(1)[0]
	if groups[0].Done { // unless all that took longer than it lives
		next := t.change(keys[0], longer.Version, "for longer", begin+lasting)
		again := []cas.Group{{Changes: []cas.Change{next}}}
		if t.swap(again...); again[0].Done {
			longer, until[0] = next, next.Until
		}
	}
	long := t.put(shorter, "for long")
	again := []cas.Group{{Changes: []cas.Change{t.change(shorter, long.Version, "for shorter", begin+2*life)}}}
	t.swap(again...)
	for clock := begin; clock < begin+3*life; {
		var values []cas.Value
		// The clock of a Read is an instant within it: values forgotten by then were over.
		values, clock = t.read(keys...)
		for i, v := range values {
			if v.Version == 0 && clock < until[i] && groups[i].Done {
				t.Fatalf("a value is gone %d µs too early", until[i]-clock)
			}
		}
		if values, clock := t.read(shorter); values[0].Version == 0 && clock < begin+2*life {
			t.Fatal("a value is gone too early")
		}
	}
	if longer.Until > begin+life {
		t.holds(keys[0], longer.Version, "for longer")
	}
	// Values that are over, forgotten yet or not, can be written anew.
	for i, k := range append(keys[1:], shorter) {
		values, clock := t.read(k)
		b := t.change(k, values[0].Version, fmt.Sprint(i), clock+lasting)
		anew := []cas.Group{{Changes: []cas.Change{b}}}
		if t.swap(anew...); !anew[0].Done {
			// It was forgotten just now.
			b.Was = anew[0].Values[0].Version
			anew[0] = cas.Group{Changes: []cas.Change{b}}
			if t.swap(anew...); !anew[0].Done {
				t.Fatalf("what is over cannot be written: %+v", anew[0])
			}
		}
		t.holds(k, b.Version, fmt.Sprint(i))
	}
}

// testEngineLifetimes: a value may live for a second, and then for a year; there is always one of
// it.
func testEngineLifetimes(_ *testing.T, t *engineTest) {
	k := t.keys(1)[0]
	lifetimes := []time.Duration{
		time.Minute, time.Hour, 24 * time.Hour, 366 * 24 * time.Hour, 30 * time.Second, 10 * 24 * time.Hour,
		5 * time.Minute,
	}
	was := uint64(0)
	for i := range 5 * len(lifetimes) {
		life := lifetimes[i*3%len(lifetimes)]
		c := t.change(k, was, fmt.Sprint(i), t.clock()+life.Microseconds())
		stale := t.change(k, was+1, "stale", c.Until)
		groups := []cas.Group{{Changes: []cas.Change{stale}}}
		if t.swap(groups...); groups[0].Done {
			t.Fatalf("life %v: a change was made of another version", life)
		}
		groups = []cas.Group{{Changes: []cas.Change{c}}}
		if t.swap(groups...); !groups[0].Done {
			t.Fatalf("life %v: not done", life)
		}
		was = c.Version
		t.holds(k, was, fmt.Sprint(i))
		if i%9 == 8 {
			groups = []cas.Group{{Changes: []cas.Change{{Key: k, Was: was}}}}
			if t.swap(groups...); !groups[0].Done {
				t.Fatal("it cannot be deleted")
			}
			was = 0
			t.holds(k, 0, "")
		}
	}
}

// testEngineCancelled: a call whose context has ended fails, and says so if it has written nothing.
func testEngineCancelled(_ *testing.T, t *engineTest) {
	k := t.keys(1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := t.e.Read(ctx, []cas.Key{k}); err == nil {
		t.Error("Read does not heed its context")
	}
	groups := []cas.Group{{Changes: []cas.Change{t.change(k, 0, "a", t.clock()+lasting)}}}
	_, err := t.e.Swap(ctx, 0, groups)
	if err == nil {
		t.Fatal("Swap does not heed its context")
	}
	if values, _ := t.read(k); errors.Is(err, store.ErrNotCharged) && values[0].Version != 0 {
		t.Errorf("%v; but it was written", err)
	}
	// The engine is as good as before.
	t.put(t.keys(1)[0], "b")
}

// testEngineSpans: a group may hold keys of several places if the engine says so.
func testEngineSpans(_ *testing.T, t *engineTest) {
	if !t.e.Spans() {
		t.Skip("it does not span places")
	}
	keys := slices.Concat(t.keys(2), t.keys(2), t.keys(1))
	sortKeys(keys)
	until := t.clock() + lasting
	var changes []cas.Change
	for _, k := range keys {
		changes = append(changes, t.change(k, 0, "a", until))
	}
	wrong := slices.Clone(changes)
	wrong[3].Was = 9
	groups := []cas.Group{{Changes: wrong}}
	if t.swap(groups...); groups[0].Done {
		t.Fatal("one is another, and the group was done")
	}
	values, _ := t.read(keys...)
	for _, v := range values {
		t.is(v, 0, "")
	}
	groups = []cas.Group{{Changes: changes}}
	if t.swap(groups...); !groups[0].Done {
		t.Fatal("all is as expected, and nothing was done")
	}
	values, _ = t.read(keys...)
	for i, v := range values {
		t.is(v, changes[i].Version, "a")
	}
}

func sortKeys(keys []cas.Key) {
	slices.SortFunc(keys, func(a, b cas.Key) int {
		if a.Place != b.Place {
			if a.Place < b.Place {
				return -1
			}
			return 1
		}
		return bytes.Compare(a.Name, b.Name)
	})
}

// testEngineBorrowed: when a call returns, its arguments belong to the caller again, and so do its
// results.
func testEngineBorrowed(_ *testing.T, t *engineTest) {
	name, data := fmt.Appendf(nil, "borrowed %d", engineKeys.Add(1)), []byte("value")
	k := cas.Key{Place: 1, Name: bytes.Clone(name)}
	groups := []cas.Group{{Changes: []cas.Change{{
		Key: cas.Key{Place: 1, Name: name}, Version: 5, Data: data, Until: t.clock() + lasting,
	}}}}
	t.swap(groups...)
	for i := range name {
		name[i] = 'x'
	}
	copy(data, "vexed")
	values, _ := t.read(k)
	t.is(values[0], 5, "value")
	copy(values[0].Data, "vexed")
	groups = []cas.Group{{Changes: []cas.Change{t.change(k, 6, "b", t.clock()+lasting)}}}
	t.swap(groups...)
	t.is(groups[0].Values[0], 5, "value")
	copy(groups[0].Values[0].Data, "vexed")
	t.holds(k, 5, "value")
}
