package rule

import (
	"math/bits"
	"slices"
)

// gramTable finds the literals that a text holds anywhere, by one pass over the text whatever their
// number. It files a literal under up to eight bytes of it (a gram): its rarest ones, if it is
// longer. It may so find a literal that the text does not hold, and never misses one that it does.
//
// An Aho-Corasick automaton would find literals of any length exactly, but takes an edge for each
// byte of each literal, where this takes one entry for each literal.
type gramTable struct {
	lengths []int    // of the grams, ascending
	filter  []uint64 // two bits set for each gram, by its hash
	numbers map[gram]int32
	first   []int32 // by number of the gram: where its ids begin in ids
	ids     []int32
	pending []pendingLiteral
}

// gram is the bytes of a gram, the first one lowest, and their number.
type gram struct {
	bytes  uint64
	length uint8
}

type pendingLiteral struct {
	text string
	id   int32
}

const (
	maxGram    = 8
	maxPlaces  = 12 // places of a long literal at which its grams are looked at
	filterBits = 16 // bits of the filter for each gram
)

func (t *gramTable) add(literal string, id int32) {
	t.pending = append(t.pending, pendingLiteral{literal, id})
}

// gramOf returns the gram of the first n bytes of s.
func gramOf(s string, n int) gram {
	g := gram{length: uint8(n)}
	for i := range n {
		g.bytes |= uint64(s[i]) << (8 * i)
	}
	return g
}

// hash spreads a gram's bits over all of the hash.
func (g gram) hash() uint64 {
	high, low := bits.Mul64(g.bytes^0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9+uint64(g.length)<<1)
	return high ^ low
}

// windows calls yield with grams of a literal that is longer than one.
func windows(literal string, yield func(gram)) {
	last := len(literal) - maxGram
	step := 1 + last/maxPlaces
	for i := 0; i < last; i += step {
		yield(gramOf(literal[i:], maxGram))
	}
	yield(gramOf(literal[last:], maxGram))
}

// finish makes the table of the literals that were added.
func (t *gramTable) finish() {
	common := map[gram]int{} // in how many literals a gram stands
	seen := map[string]bool{}
	for _, p := range t.pending {
		if len(p.text) > maxGram && !seen[p.text] {
			seen[p.text] = true
			windows(p.text, func(g gram) { common[g]++ })
		}
	}
	t.numbers = map[gram]int32{}
	var lists [][]int32 // of ids, by number
	for _, p := range t.pending {
		best := gramOf(p.text, min(len(p.text), maxGram))
		if len(p.text) > maxGram {
			windows(p.text, func(g gram) {
				if common[g] < common[best] {
					best = g
				}
			})
		}
		n, ok := t.numbers[best]
		if !ok {
			n = int32(len(lists))
			t.numbers[best] = n
			lists = append(lists, nil)
			if i, found := slices.BinarySearch(t.lengths, int(best.length)); !found {
				t.lengths = slices.Insert(t.lengths, i, int(best.length))
			}
		}
		if list := lists[n]; len(list) == 0 || list[len(list)-1] != p.id {
			lists[n] = append(list, p.id)
		}
	}
	for _, list := range lists {
		t.first = append(t.first, int32(len(t.ids)))
		t.ids = append(t.ids, list...)
	}
	t.first = append(t.first, int32(len(t.ids)))
	t.pending = nil
	words := 1
	for words*64 < len(lists)*filterBits {
		words *= 2
	}
	t.filter = make([]uint64, words)
	for g := range t.numbers {
		h := g.hash()
		t.filter[t.word(h)] |= twoBits(h)
	}
}

// word is the word of the filter for a hash, and twoBits the two bits in it.
func (t *gramTable) word(h uint64) uint64 { return h >> 16 & uint64(len(t.filter)-1) }
func twoBits(h uint64) uint64             { return 1<<(h>>6&63) | 1<<(h&63) }

// appendIDs appends the ids of all literals that s holds; m is its memory meanwhile.
func (t *gramTable) appendIDs(m *Matches, dst []int32, s string) []int32 {
	m.grams = m.grams[:0]
	var window uint64 // the next eight bytes, as far as there are
	for i := min(len(s), maxGram) - 1; i >= 0; i-- {
		window = window<<8 | uint64(s[i])
	}
	for i := range len(s) {
		for _, n := range t.lengths {
			if i+n > len(s) {
				break
			}
			g := gram{window << (64 - 8*n) >> (64 - 8*n), uint8(n)}
			h := g.hash()
			if two := twoBits(h); t.filter[t.word(h)]&two == two {
				if number, ok := t.numbers[g]; ok {
					m.sawGram(number)
				}
			}
		}
		window >>= 8
		if i+maxGram < len(s) {
			window |= uint64(s[i+maxGram]) << 56
		}
	}
	for _, n := range m.grams {
		dst = append(dst, t.ids[t.first[n]:t.first[n+1]]...)
		m.gramSeen[n/64] = 0
	}
	return dst
}

// sawGram notes a gram, once however often it stands in a text.
func (m *Matches) sawGram(number int32) {
	word, bit := int(number/64), uint64(1)<<(number%64)
	if word >= len(m.gramSeen) {
		m.gramSeen = append(m.gramSeen, make([]uint64, word+1-len(m.gramSeen))...)
	}
	if m.gramSeen[word]&bit == 0 {
		m.gramSeen[word] |= bit
		m.grams = append(m.grams, number)
	}
}
