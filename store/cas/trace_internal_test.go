package cas

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
)

// TestTrace: nodes that write on top of each other leave a trace by which each can tell whether a
// version of its own was ever there.
func TestTrace(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		nodes := make([]*versions, rapid.IntRange(1, 8).Draw(r, "nodes"))
		for i := range nodes {
			nodes[i] = new(versions)
			nodes[i].init()
		}
		var records []byte
		var version uint64
		var at, now int64 = 0, 1_800_000_000_000_000
		written := map[uint64]int64{}
		last := map[int]uint64{}
		for range rapid.IntRange(1, 40).Draw(r, "writes") {
			now += rapid.Int64Range(0, traceFor/8).Draw(r, "pause")
			by := rapid.IntRange(0, len(nodes)-1).Draw(r, "by")
			next, until := nodes[by].appendTrace(nil, traceOf(records), version, at, now)
			if (len(next) > 0) != (until > now) {
				r.Fatalf("%d bytes until %d, now is %d", len(next), until, now)
			}
			records, version, at = next, nodes[by].draw(), now
			written[version], last[by] = now, version
			told := traceOf(records)
			for i, v := range last {
				if i == by || written[v] <= now-traceFor {
					continue
				}
				if !told.has(v) {
					r.Fatalf("node %d wrote %x, and nothing tells of it", i, v)
				}
			}
			if told.len() >= len(nodes) || !told.whole() {
				r.Fatalf("%d entries of %d nodes", told.len(), len(nodes))
			}
			for i := range told.len() {
				if v, _ := told.at(i); written[v] == 0 || nodes[by].isOwn(v) {
					r.Fatalf("it tells of %x", v)
				}
			}
		}
	})
}

// TestTraceIsBounded: where more nodes write than there is room for, that shows.
func TestTraceIsBounded(t *testing.T) {
	var records []byte
	version, now := uint64(0), int64(1_800_000_000_000_000)
	for range 2 * maxTrace {
		v := new(versions)
		v.init()
		records, _ = v.appendTrace(nil, traceOf(records), version, now, now)
		version = v.draw()
	}
	if told := traceOf(records); told.len() != maxTrace || told.whole() {
		t.Errorf("%d entries, all of them: %v", told.len(), told.whole())
	}
}

// TestFateOf: the fate of a group by the present values.
func TestFateOf(t *testing.T) {
	own, other := new(versions), new(versions)
	own.init()
	other.init()
	const at, was = 1_800_000_000_000_000, 77
	mine, theirs := own.draw(), other.draw()
	value := func(version uint64, told ...uint64) Value {
		data := beginValue(nil, at)
		var t []byte
		for _, v := range told {
			t, _ = other.appendTrace(nil, nil, v, at, at)
		}
		if len(told) > 1 {
			panic("one is enough")
		}
		return Value{Version: version, Data: endValue(append(data, t...))}
	}
	write := Change{Was: was, Version: mine}
	for name, c := range map[string]struct {
		changes []Change
		now     []Value
		ago     int64
		want    fate
	}{
		"nothing happened":            {[]Change{write}, []Value{value(was)}, 0, open},
		"it is there":                 {[]Change{write}, []Value{value(mine)}, 0, made},
		"it was written over":         {[]Change{write}, []Value{value(theirs, mine)}, 0, made},
		"another one was quicker":     {[]Change{write}, []Value{value(theirs)}, 0, notMade},
		"and tells of others":         {[]Change{write}, []Value{value(theirs, other.draw()^1<<40)}, 0, notMade},
		"that was long ago":           {[]Change{write}, []Value{value(theirs)}, traceFor * 1000, untold},
		"by one without a trace":      {[]Change{write}, []Value{value(5)}, 0, untold},
		"one without is in between":   {[]Change{write}, []Value{value(theirs, 5)}, 0, untold},
		"it cannot be read":           {[]Change{write}, []Value{{Version: theirs, Data: []byte("?")}}, 0, untold},
		"it was deleted":              {[]Change{{Was: was}}, []Value{{}}, 0, made},
		"one of two is as before":     {[]Change{write, {Was: 3, Version: own.draw()}}, []Value{value(was), value(5)}, 0, notMade},
		"what was compared differs":   {[]Change{write, {Was: 3, Keep: true}}, []Value{value(was), value(5)}, 0, notMade},
		"one of two is there":         {[]Change{{Was: 3, Version: own.draw()}, write}, []Value{value(5), value(mine)}, 0, made},
		"others have taken its place": {[]Change{{Version: mine}}, []Value{value(theirs, mine)}, 0, made},
	} {
		g := &Group{Changes: c.changes, Values: c.now}
		if got := own.fateOf(g, c.ago); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestTraceIsKept: a node that knows no trace keeps it, as it keeps other counters.
func TestTraceIsKept(t *testing.T) {
	v := new(versions)
	v.init()
	record, until := v.appendTrace(nil, nil, 5, 100, 100)
	r, rest, ok := cutRecord(record)
	if !ok || len(rest) > 0 || r.until != until || r.id != traceID {
		t.Errorf("%+v, %v", r, ok)
	}
	if err := decodeState(r.state, mustLimit(t), new(algo.State)); err == nil {
		t.Error("it is taken for a state")
	}
	if !slices.Equal(r.trace(), traceOf(record)) {
		t.Error("it is not found")
	}
}

func mustLimit(t *testing.T) *algo.Limit {
	t.Helper()
	l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: 1, Calendar: algo.Year})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
