package cas

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// codecLimits are limits of all kinds of states.
func codecLimits(t testing.TB) []*algo.Limit {
	t.Helper()
	var limits []*algo.Limit
	for _, c := range []algo.Config{
		{Algorithm: algo.SlidingWindow, N: 5, Window: time.Minute},
		{Algorithm: algo.SlidingWindow, N: 7, Window: time.Minute, Buckets: 6},
		{Algorithm: algo.SlidingLog, N: 5, Window: time.Minute},
		{Algorithm: algo.SlidingLog, N: 5, Window: 30 * 24 * time.Hour, CountDenied: true},
		{Algorithm: algo.FixedWindow, N: 5, Window: time.Minute, Soft: 40, SoftFor: time.Second},
		{Algorithm: algo.FixedWindow, N: 5, Calendar: algo.Day},
		{Algorithm: algo.TokenBucket, N: 5, Window: time.Minute},
		{Algorithm: algo.TokenBucket, N: 5, Window: time.Minute, RefillInterval: true},
		{Algorithm: algo.LeakyBucket, N: 5, Window: time.Minute, Burst: 3},
		{Algorithm: algo.Concurrency, N: 5},
	} {
		l, err := algo.New(c)
		if err != nil {
			t.Fatal(err)
		}
		limits = append(limits, l)
		if m := l.Margin(); m != nil {
			limits = append(limits, m)
		}
	}
	return limits
}

const codecNow = int64(1767225600_000000)

// TestStatesComeBack: a state that is written and read is the same.
func TestStatesComeBack(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, l := range codecLimits(t) {
		var st, margin algo.State
		for step := range 200 {
			now := codecNow + int64(step)*rnd.Int64N(20_000_000)
			if l.Algorithm() == algo.Margin {
				st = algo.State{A: now, B: uint64(now) + rnd.Uint64N(1e6)}
			} else {
				l.TakeWith(&st, &margin, now, algo.Ask{Cost: 1 + rnd.Int64N(3), MaxDelay: -1,
					Slot: 1 + rnd.Uint64()>>1})
			}
			if st.B == 0 {
				continue
			}
			data := endValue(appendRecord(beginValue(nil, now), 7, l.Algorithm(), now+5, &st))
			at, records, ok := openValue(data)
			r, found := findRecord(records, 7)
			if !ok || !found || at != now || r.until != now+5 || r.algo != l.Algorithm() {
				t.Fatalf("%v: %v %v at %d, %+v", l, ok, found, at, r)
			}
			var got algo.State
			if err := decodeState(r.state, l, &got); err != nil {
				t.Fatalf("%v: %+v: %v", l, st, err)
			}
			if got.A != st.A || got.B != st.B || got.C != st.C || !bytes.Equal(got.Ext, st.Ext) {
				t.Fatalf("%v: got %+v, want %+v", l, got, st)
			}
			// Any damage is noticed.
			data[rnd.IntN(len(data))] ^= byte(1 + rnd.IntN(255))
			if _, _, ok := openValue(data); ok {
				t.Fatalf("%v: a damaged value was taken for one", l)
			}
		}
	}
}

// FuzzState: whatever lies in the database as a state, package algo can count with the result.
func FuzzState(f *testing.F) {
	for i, l := range codecLimits(f) {
		var st algo.State
		if l.Algorithm() == algo.Margin {
			st = algo.State{A: codecNow, B: uint64(codecNow)}
		} else {
			l.Take(&st, codecNow, algo.Ask{Cost: 2, MaxDelay: -1, Slot: 5})
		}
		r, _, _ := cutRecord(appendRecord(nil, 1, l.Algorithm(), 0, &st))
		f.Add(uint8(i), r.state, int64(0))
	}
	limits := codecLimits(f)
	f.Fuzz(func(t *testing.T, which uint8, data []byte, passed int64) {
		l := limits[int(which)%len(limits)]
		var st, lease algo.State
		if decodeState(data, l, &st) != nil {
			return
		}
		now := codecNow + passed%algo.MaxWindow.Microseconds()
		keptUntil(l, &st, now)
		l.Fresh(&st, now)
		if l.Algorithm() == algo.Margin {
			l.Check(&st, now, algo.Ask{})
			return
		}
		for _, cost := range []int64{0, 1, 3, -1, algo.MaxCost} {
			if l.Algorithm() == algo.Concurrency {
				cost = max(cost, 0)
			}
			l.CheckWith(&st, nil, now, algo.Ask{Cost: cost, MaxDelay: -1, Slot: 9})
			l.TakeWith(&st, nil, now, algo.Ask{Cost: cost, MaxDelay: -1, Slot: 9})
		}
		l.Settle(&st, &lease, now, codecNow, 3, 1)
		l.Release(&st, now, 9)
		l.Mend(&st, now)
		if other := limits[(int(which)+1)%len(limits)]; other.Algorithm() == l.Algorithm() {
			other.Carry(l, &st, now)
		}
	})
}

// FuzzValue: a value of any bytes is read, or is no value; and what is read is in its bounds.
func FuzzValue(f *testing.F) {
	f.Add([]byte{}, false)
	f.Add(endValue(appendRecord(beginValue(nil, 5), 7, algo.TokenBucket, 9, &algo.State{A: 1, B: 2, C: 3})), false)
	f.Add(appendRecord(beginValue(nil, 5), 7, algo.TokenBucket, 9, &algo.State{A: 1, B: 2, C: 3}), true)
	f.Fuzz(func(t *testing.T, data []byte, sealed bool) {
		if sealed {
			data = endValue(bytes.Clone(data))
		}
		_, records, ok := openValue(data)
		if !ok && records != nil {
			t.Error("records of no value")
		}
		all := 0
		for rest := records; len(rest) > 0; {
			r, left, whole := cutRecord(rest)
			if !whole {
				t.Fatal("a record was let through that is cut off")
			}
			all += len(r.whole)
			rest = left
		}
		if all != len(records) {
			t.Errorf("records of %d bytes, of %d", all, len(records))
		}
		findRecord(records, 7)
	})
}

// TestNames: different keys have different names, and come back from these.
func TestNames(t *testing.T) {
	long := bytes.Repeat([]byte("x"), 3*MaxName)
	names := map[string]bool{}
	keys := [][]byte{nil, {0}, {0, 0}, long[:maxKey-1], long[:maxKey], long[:maxKey+1], long}
	for _, id := range []uint64{1, 1 << 56} {
		for _, key := range keys {
			name := appendName(nil, id, key)
			if len(name) > MaxName || names[string(name)] {
				t.Errorf("a key of %d bytes has a name of %d, or that of another", len(key), len(name))
			}
			names[string(name)] = true
			got, ok := keyOf(name, id)
			if ok != (len(key) < maxKey) || ok && !bytes.Equal(got, key) {
				t.Errorf("a key of %d bytes comes back as %d, %v", len(key), len(got), ok)
			}
			if _, ok := keyOf(name, id+1); ok {
				t.Error("the name of another counter")
			}
		}
	}
	a, b := &rule.Counter{Domain: "a"}, &rule.Counter{Domain: "b"}
	if placeOf(a, []byte("k")) != placeOf(b, []byte("k")) || placeOf(a, nil) == placeOf(b, nil) {
		t.Error("a subject has one place; what is counted for all has that of its domain")
	}
}

// TestOtherRecords: windows that a call does not name stay, until they are fresh, or too many.
func TestOtherRecords(t *testing.T) {
	l := codecLimits(t)[0]
	counter := &rule.Counter{ID: 5, Group: 9, Limit: l}
	var st algo.State
	l.Take(&st, codecNow, algo.Ask{Cost: 1})
	data := beginValue(nil, codecNow)
	for i := range uint64(3 * maxRecords) {
		until := codecNow + 1_000_000
		if i%2 == 0 {
			until = codecNow
		}
		data = appendRecord(data, 100+i, algo.SlidingWindow, until, &st)
	}
	e := &entry{name: []byte("n"), known: true, version: 1, data: endValue(data)}
	p := &plan{store: &Store{}, now: codecNow + 1}
	p.values = append(p.values, planValue{e: e})
	_, p.values[0].records, _ = openValue(e.data)
	own := p.state(&call{entries: []*entry{e}}, &ref{counter: counter, limit: l})
	l.Take(&own.St, p.now, algo.Ask{Cost: 1})
	p.touch(own, l)
	next, last, changed := p.nextValue(&p.values[0])
	_, records, ok := openValue(next)
	n := 0
	for rest := records; len(rest) > 0; n++ {
		var r record
		if r, rest, _ = cutRecord(rest); r.id != 5 && r.until <= p.now {
			t.Error("a state that is fresh is kept")
		}
	}
	if !changed || !ok || n != maxRecords+1 || last <= p.now {
		t.Errorf("changed %v, readable %v, %d records, until %d", changed, ok, n, last)
	}
	if r, ok := findRecord(records, 5); !ok || binary.LittleEndian.Uint64(r.whole) != 5 {
		t.Error("its own is missing")
	}
}
