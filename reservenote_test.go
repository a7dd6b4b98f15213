package weir

import (
	"bytes"
	"crypto/rand"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// noteOf makes a note as Decision.note does, of charges that were all admitted.
func noteOf(t testing.TB, at int64, charges []noted) []byte {
	t.Helper()
	limit, err := algo.New(algo.Config{Algorithm: algo.SlidingLog, N: 10, Window: 1e9})
	if err != nil {
		t.Fatal(err)
	}
	d := Decision{Allowed: true, Time: at}
	for _, n := range charges {
		d.charges = append(d.charges, Charge{Counter: &rule.Counter{ID: n.counter}, Limit: limit, Key: n.key, Ask: algo.Ask{Cost: n.reserved}})
		d.results = append(d.results, algo.Result{Allowed: true})
		d.Matches.Hits = append(d.Matches.Hits, rule.Hit{Cost: n.each, Descriptor: -1})
	}
	return d.note(&Request{})
}

// What is written is read again, to the last unit, and every cut of it is noticed.
func TestNoteProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		at := rapid.Int64Range(0, 1<<53-1).Draw(r, "at")
		charges := make([]noted, rapid.IntRange(1, 6).Draw(r, "charges"))
		for i := range charges {
			n := &charges[i]
			n.counter = rapid.Uint64().Draw(r, "counter")
			n.reserved = rapid.Int64Range(0, algo.MaxCost).Draw(r, "reserved")
			n.each = rapid.Int64Range(0, algo.MaxCost).Draw(r, "each")
			if i > 0 && rapid.Bool().Draw(r, "same key") {
				n.key = charges[i-1].key
			} else {
				n.key = rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(r, "key")
			}
		}
		note := noteOf(t, at, charges)
		i := 0
		err := readNote(note, func(was int64, n *noted) {
			if i >= len(charges) || was != at || n.counter != charges[i].counter || n.reserved != charges[i].reserved || n.each != charges[i].each ||
				!bytes.Equal(n.key, charges[i].key) {
				r.Fatalf("charge %d: got %d %+v of %+v", i, was, *n, charges)
			}
			i++
		})
		if err != nil || i != len(charges) {
			r.Fatalf("%d of %d charges, %v", i, len(charges), err)
		}
		cut := rapid.IntRange(0, len(note)-1).Draw(r, "cut")
		whole := 0
		if err := readNote(note[:cut], func(int64, *noted) { whole++ }); err == nil && whole >= len(charges) {
			r.Fatalf("a note cut at %d of %d was read whole", cut, len(note))
		}
	})
}

// The windows of a rule share their key in a note.
func TestNoteIsCompact(t *testing.T) {
	key := bytes.Repeat([]byte{'k'}, 100)
	one := len(noteOf(t, 1_767_225_600_000_000, []noted{{1, 5000, 1, key}}))
	two := len(noteOf(t, 1_767_225_600_000_000, []noted{{1, 5000, 1, key}, {2, 5000, 1, key}}))
	if one > 130 || two-one > 12 {
		t.Errorf("one charge takes %d bytes, a second one with the same key %d more", one, two-one)
	}
}

// FuzzNote: whatever a store hands out, reading it neither crashes nor makes numbers out of bounds.
func FuzzNote(f *testing.F) {
	f.Add(noteOf(f, 1_767_225_600_000_000, []noted{{1, 5000, 1, []byte("ada")}, {2, 5000, 1, []byte("ada")}, {3, 1, 0, nil}}))
	f.Add([]byte{noteVersion})
	f.Add([]byte{noteVersion, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0})
	f.Add([]byte{noteVersion, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{noteVersion + 1, 0})
	f.Fuzz(func(t *testing.T, note []byte) {
		var charges []noted
		var at int64
		err := readNote(note, func(was int64, n *noted) {
			if was < 0 || was >= 1<<53 || n.reserved < 0 || n.reserved > algo.MaxCost || n.each < 0 || n.each > algo.MaxCost || len(n.key) > len(note) {
				t.Fatalf("out of bounds: %d %+v", was, *n)
			}
			at, charges = was, append(charges, *n)
		})
		if err != nil {
			return
		}
		again := noteOf(t, at, charges)
		i := 0
		if err := readNote(again, func(was int64, n *noted) {
			if was != at || n.counter != charges[i].counter || n.reserved != charges[i].reserved || !bytes.Equal(n.key, charges[i].key) {
				t.Fatalf("charge %d: got %+v, want %+v", i, *n, charges[i])
			}
			i++
		}); err != nil || i != len(charges) {
			t.Fatalf("%d of %d charges, %v", i, len(charges), err)
		}
	})
}

// An id is one that rand.Text makes, and nothing else gets as far as the store.
func TestValidReservation(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := rand.Text()
		if !validReservation(id) || seen[id] {
			t.Fatalf("%q, seen %v", id, seen[id])
		}
		seen[id] = true
	}
	for _, id := range []string{"", "A", "aaaaaaaaaaaaaaaaaaaaaaaaaa", "AAAAAAAAAAAAAAAAAAAAAAAAA1", "AAAAAAAAAAAAAAAAAAAAAAAAA}", "AAAAAAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAAAA\x00"} {
		if validReservation(id) {
			t.Errorf("%q is taken for an id", id)
		}
	}
}
