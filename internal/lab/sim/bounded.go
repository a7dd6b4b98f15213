package sim

import (
	"cmp"
	"slices"
	"strings"
)

// The tables in here keep their memory bounded however many different values a log holds. Up to
// their bound they are exact.

// keySet counts distinct keys, and how many of them were denied. Past its bound it keeps a uniform
// sample of the keys (P. Gibbons, Distinct Sampling, VLDB 2001).
type keySet struct {
	table  []uint64 // hash with the lowest bit set for denied; 0 is empty
	used   int
	denied int
	level  uint // only hashes whose top level bits are 0 are kept
	bound  int
}

const keySetBound = 1 << 20

func (s *keySet) add(hash uint64, denied bool) {
	if s.level > 0 && hash>>(64-s.level) != 0 {
		return
	}
	hash &^= 1
	if hash == 0 {
		hash = 2
	}
	if 2*s.used >= len(s.table) {
		s.grow()
		if s.level > 0 && hash>>(64-s.level) != 0 {
			return
		}
	}
	mask := uint64(len(s.table) - 1)
	for i := hash >> 1 & mask; ; i = (i + 1) & mask {
		switch s.table[i] &^ 1 {
		case 0:
			s.used++
			s.table[i] = hash
		case hash:
		default:
			continue
		}
		if denied && s.table[i]&1 == 0 {
			s.table[i] |= 1
			s.denied++
		}
		return
	}
}

func (s *keySet) grow() {
	bound := s.bound
	if bound == 0 {
		bound = keySetBound
	}
	old := s.table
	size := max(16, 2*len(old))
	if s.used >= bound {
		s.level++
		size = len(old)
	}
	s.table, s.used, s.denied = make([]uint64, size), 0, 0
	for _, h := range old {
		if h != 0 {
			s.add(h, h&1 != 0)
		}
	}
}

// counts returns how many keys there were, how many were denied, and whether that is an estimate.
func (s *keySet) counts() (keys, denied int64, estimated bool) {
	return int64(s.used) << s.level, int64(s.denied) << s.level, s.level > 0
}

// maxSets is how many rule sets a replay compares.
const maxSets = 2

// tally counts requests and refusals of the most frequent values. Past its bound it forgets the
// less frequent half; a value that returns later counts from then on, so that counts can only be
// too low.
type tally struct {
	index   map[string]int32
	entries []tallyEntry
	bound   int
	pruned  bool
}

type tallyEntry struct {
	value    string
	requests int64
	denied   [maxSets]int64
}

// maxValue is the length from which values are cut for display.
const maxValue = 256

func newTally(bound int) *tally { return &tally{index: make(map[string]int32), bound: bound} }

// at returns the entry of a value, valid until the next call.
func (t *tally) at(value string) *tallyEntry {
	if len(value) > maxValue {
		value = value[:maxValue]
	}
	if i, ok := t.index[value]; ok {
		return &t.entries[i]
	}
	if len(t.entries) == t.bound {
		t.prune()
	}
	value = strings.Clone(value)
	t.index[value] = int32(len(t.entries))
	t.entries = append(t.entries, tallyEntry{value: value})
	return &t.entries[len(t.entries)-1]
}

func (e *tallyEntry) weight() int64 { return e.requests + 8*(e.denied[0]+e.denied[1]) }

func (t *tally) prune() {
	t.pruned = true
	slices.SortStableFunc(t.entries, func(a, b tallyEntry) int { return cmp.Compare(b.weight(), a.weight()) })
	keep := t.bound / 2
	clear(t.entries[keep:])
	t.entries = t.entries[:keep]
	clear(t.index)
	for i := range t.entries {
		t.index[t.entries[i].value] = int32(i)
	}
}

// top returns the n entries with the highest count, highest first, and no zero ones.
func (t *tally) top(n int, count func(*tallyEntry) int64) []tallyEntry {
	list := slices.Clone(t.entries)
	list = slices.DeleteFunc(list, func(e tallyEntry) bool { return count(&e) == 0 })
	slices.SortFunc(list, func(a, b tallyEntry) int {
		return cmp.Or(cmp.Compare(count(&b), count(&a)), cmp.Compare(b.requests, a.requests),
			strings.Compare(a.value, b.value))
	})
	return list[:min(n, len(list))]
}

// timeline counts in time buckets of one width, in several columns. When more than maxBuckets would
// be needed, neighbours merge and the width grows. Buckets lie at whole multiples of the width
// since the epoch.
type timeline struct {
	step    int   // index into widths
	first   int64 // number of the first bucket
	columns [][]int64
	used    int // buckets in use
}

const maxBuckets = 480

// widths of the buckets in seconds; each divides the next, up to where they only double.
var widths = [...]int64{1, 5, 10, 30, 60, 120, 600, 1200, 3600, 7200, 21600, 43200, 86400}

func (t *timeline) width() int64 {
	if t.step < len(widths) {
		return widths[t.step] * 1_000_000
	}
	return widths[len(widths)-1] * 1_000_000 << (t.step - len(widths) + 1)
}

// column adds a column and returns its number.
func (t *timeline) column() int {
	t.columns = append(t.columns, make([]int64, maxBuckets))
	return len(t.columns) - 1
}

// at returns the bucket of an instant, in µs; instants never run backwards.
func (t *timeline) at(now int64) int {
	n := now / t.width()
	if t.used == 0 {
		t.first = n
		t.used = 1
	}
	for n-t.first >= maxBuckets {
		t.widen()
		n = now / t.width()
	}
	i := int(n - t.first)
	t.used = max(t.used, i+1)
	return i
}

func (t *timeline) widen() {
	old := t.width()
	t.step++
	factor := t.width() / old
	first := t.first / factor
	for _, c := range t.columns {
		for i := range t.used {
			v := c[i]
			c[i] = 0
			c[(t.first+int64(i))/factor-first] += v
		}
	}
	t.used = int((t.first+int64(t.used)-1)/factor-first) + 1
	t.first = first
}
