package hashchain

import (
	"fmt"
	"strings"
	"testing"
)

// TestFollow: a chain begins where it should, each record follows the one before, and a noted hash
// says up to which record nothing was changed.
func TestFollow(t *testing.T) {
	hash := func(n int) string { return Sum([]byte(fmt.Sprint(n))) }
	c := Chain{Hash: Start, Noted: hash(2)}
	prev := Start
	for n := 1; n <= 3; n++ {
		if err := c.Follow(uint64(n), prev, hash(n)); err != nil {
			t.Fatal(err)
		}
		prev = hash(n)
	}
	if c != (Chain{Number: 3, Hash: hash(3), Noted: hash(2), Upto: 2}) {
		t.Errorf("%+v", c)
	}
	for want, next := range map[string]struct {
		chain  Chain
		number uint64
		prev   string
	}{
		"does not follow":           {c, 4, hash(2)},
		"has the number 5 behind 3": {c, 5, hash(3)},
		"has the number 3 behind 3": {c, 3, hash(3)},
		"has the number 2 behind 0": {Chain{Hash: Start}, 2, Start},
		"":                          {Chain{}, 7, hash(6)},
	} {
		before := next.chain
		err := next.chain.Follow(next.number, next.prev, hash(9))
		if (err == nil) != (want == "") || err != nil &&
			(!strings.Contains(err.Error(), want) || next.chain != before) {
			t.Errorf("%+v: %v, want %q", next, err, want)
		}
	}
}
