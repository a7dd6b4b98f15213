package reserve

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
)

// noteOf makes the note of a decision with some charges.
func noteOf(at int64, charges []Charge) []byte {
	var note, last []byte
	for i := range charges {
		note = AppendNote(note, at, &charges[i], last)
		last = charges[i].Key
	}
	return note
}

// What is written is read again, to the last unit, and every cut of it is noticed.
func TestNoteProperty(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		at := rapid.Int64Range(0, 1<<53-1).Draw(r, "at")
		charges := make([]Charge, rapid.IntRange(1, 6).Draw(r, "charges"))
		for i := range charges {
			n := &charges[i]
			n.Counter = rapid.Uint64().Draw(r, "counter")
			n.Reserved = rapid.Int64Range(0, algo.MaxCost).Draw(r, "reserved")
			n.Each = rapid.Int64Range(0, algo.MaxCost).Draw(r, "each")
			if i > 0 && rapid.Bool().Draw(r, "same key") {
				n.Key = charges[i-1].Key
			} else {
				n.Key = rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(r, "key")
			}
		}
		note := noteOf(at, charges)
		if was, ok := Instant(note); !ok || was != at {
			r.Fatalf("decided at %d, the note says %d, %v", at, was, ok)
		}
		i := 0
		err := readNote(note, func(was int64, n *Charge) {
			if i >= len(charges) || was != at || n.Counter != charges[i].Counter || n.Reserved != charges[i].Reserved ||
				n.Each != charges[i].Each ||
				!bytes.Equal(n.Key, charges[i].Key) {
				r.Fatalf("charge %d: got %d %+v of %+v", i, was, *n, charges)
			}
			i++
		})
		if err != nil || i != len(charges) {
			r.Fatalf("%d of %d charges, %v", i, len(charges), err)
		}
		cut := rapid.IntRange(0, len(note)-1).Draw(r, "cut")
		whole := 0
		if err := readNote(note[:cut], func(int64, *Charge) { whole++ }); err == nil && whole >= len(charges) {
			r.Fatalf("a note cut at %d of %d was read whole", cut, len(note))
		}
	})
}

// A note is read by nodes of other versions, and after a restart: every byte is as it was.
func TestNoteBytes(t *testing.T) {
	note := noteOf(1_767_225_600_000_000, []Charge{{1, 5000, 1, []byte("ada")}, {2, 300, 0, []byte("ada")},
		{1<<64 - 1, 1, 7, nil}})
	const want = "01" + "808081b184e99103" + "0000000000000001" + "8827" + "01" + "04616461" +
		"0000000000000002" + "ac02" + "00" + "00" + "ffffffffffffffff" + "01" + "07" + "01"
	if got := fmt.Sprintf("%x", note); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The windows of a rule share their key in a note.
func TestNoteIsCompact(t *testing.T) {
	key := bytes.Repeat([]byte{'k'}, 100)
	one := len(noteOf(1_767_225_600_000_000, []Charge{{1, 5000, 1, key}}))
	two := len(noteOf(1_767_225_600_000_000, []Charge{{1, 5000, 1, key}, {2, 5000, 1, key}}))
	if one > 130 || two-one > 12 {
		t.Errorf("one charge takes %d bytes, a second one with the same key %d more", one, two-one)
	}
}

// FuzzNote: whatever a store hands out, reading it neither crashes nor makes numbers out of bounds.
func FuzzNote(f *testing.F) {
	f.Add(noteOf(1_767_225_600_000_000, []Charge{{1, 5000, 1, []byte("ada")}, {2, 5000, 1, []byte("ada")},
		{3, 1, 0, nil}}))
	f.Add([]byte{noteVersion})
	f.Add([]byte{noteVersion, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0})
	f.Add([]byte{noteVersion, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add([]byte{noteVersion + 1, 0})
	f.Fuzz(func(t *testing.T, note []byte) {
		var charges []Charge
		var at int64
		err := readNote(note, func(was int64, n *Charge) {
			if was < 0 || was >= 1<<53 || n.Reserved < 0 || n.Reserved > algo.MaxCost || n.Each < 0 ||
				n.Each > algo.MaxCost || len(n.Key) > len(note) {
				t.Fatalf("out of bounds: %d %+v", was, *n)
			}
			at, charges = was, append(charges, *n)
		})
		if err != nil {
			Instant(note)
			return
		}
		if was, ok := Instant(note); !ok || was != at {
			t.Fatalf("decided at %d, Instant says %d, %v", at, was, ok)
		}
		again := noteOf(at, charges)
		i := 0
		if err := readNote(again, func(was int64, n *Charge) {
			if was != at || n.Counter != charges[i].Counter || n.Reserved != charges[i].Reserved ||
				!bytes.Equal(n.Key, charges[i].Key) {
				t.Fatalf("charge %d: got %+v, want %+v", i, *n, charges[i])
			}
			i++
		}); err != nil || i != len(charges) {
			t.Fatalf("%d of %d charges, %v", i, len(charges), err)
		}
	})
}

// An id is one that rand.Text makes, and nothing else gets as far as the store.
func TestValidID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := rand.Text()
		if !validID(id) || seen[id] {
			t.Fatalf("%q, seen %v", id, seen[id])
		}
		seen[id] = true
	}
	for _, id := range []string{"", "A", "aaaaaaaaaaaaaaaaaaaaaaaaaa", "AAAAAAAAAAAAAAAAAAAAAAAAA1",
		"AAAAAAAAAAAAAAAAAAAAAAAAA}", "AAAAAAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAAAA\x00"} {
		if validID(id) {
			t.Errorf("%q is taken for an id", id)
		}
	}
}
