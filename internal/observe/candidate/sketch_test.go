package candidate

import (
	"fmt"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"testing"
)

// The sketch is within its error, from nothing to a hundred thousand, whatever comes twice. The
// hashes are the same in each run: of two random ones, one pair in 1,024 falls into one register,
// and counts as one.
func TestSketch(t *testing.T) {
	var s sketch
	if s.estimate() != 0 {
		t.Errorf("of nothing: %d", s.estimate())
	}
	random := rand.NewPCG(1, 2)
	n := uint64(0)
	for _, want := range []uint64{1, 2, 5, 10, 100, 1000, 2500, 5000, 20_000, 100_000} {
		for ; n < want; n++ {
			h := random.Uint64()
			s.add(h)
			s.add(h)
		}
		bound := 6 * 1.04 / math.Sqrt(registers) * float64(want) // six standard errors
		if want <= 10 {
			bound = 0 // small numbers are exact, unless two fall into one register
		}
		if got := s.estimate(); math.Abs(float64(got)-float64(want)) > bound {
			t.Errorf("of %d: %d", want, got)
		}
	}
}

// A key that comes more than one time in 32 is among the heaviest, and the counts are bounds.
func TestHeaviest(t *testing.T) {
	set := load(t, "limits: [{name: a, per: [user], allow: 1/min}]")
	w := set.Rules()[0].Windows[0]
	seed := maphash.MakeSeed()
	var h heaviest
	counted := map[string]uint64{}
	add := func(user string) {
		key, err := w.AppendKey(nil, []string{"user=" + user})
		if err != nil {
			t.Fatal(err)
		}
		counted["user="+user]++
		h.add(maphash.Bytes(seed, key), w, key, &veil{seed: seed})
	}
	for i := range 10_000 {
		add(fmt.Sprint("many-", i))
		if i%8 == 0 {
			add("heavy")
		}
		if i%12 == 0 {
			add("second")
		}
	}
	found := map[string]bool{}
	for i := range h.n {
		k := &h.keys[i]
		found[string(k.text)] = true
		if real := counted[string(k.text)]; k.count < real || k.count-k.over > real {
			t.Errorf("%s came %d times; counted %d, at most %d too many", k.text, real, k.count, k.over)
		}
	}
	if !found["user=heavy"] || !found["user=second"] {
		t.Errorf("found %v", found)
	}
}
