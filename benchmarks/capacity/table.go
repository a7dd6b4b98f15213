package capacity

import "math/bits"

// table finds numbers by names: an open-addressed hash table without removal. The zero value is
// empty.
type table struct {
	names []uint64 // name + 1; 0 is free
	at    []int32
	n     int
}

// slot returns the place of a name, or the place for it.
func (t *table) slot(name uint64) int {
	mask := len(t.names) - 1
	high, low := bits.Mul64(name+1, 0x9E3779B97F4A7C15)
	i := int(high^low) & mask
	for t.names[i] != 0 && t.names[i] != name+1 {
		i = (i + 1) & mask
	}
	return i
}

// find returns the number of a name. If it is new, it gets the number next, and fresh is true.
func (t *table) find(name uint64, next int32) (number int32, fresh bool) {
	if 2*t.n >= len(t.names) {
		t.grow()
	}
	i := t.slot(name)
	if t.names[i] != 0 {
		return t.at[i], false
	}
	t.names[i], t.at[i] = name+1, next
	t.n++
	return next, true
}

func (t *table) grow() {
	old := *t
	size := max(64, 2*len(old.names))
	t.names, t.at = make([]uint64, size), make([]int32, size)
	for i, name := range old.names {
		if name != 0 {
			j := t.slot(name - 1)
			t.names[j], t.at[j] = name, old.at[i]
		}
	}
}
