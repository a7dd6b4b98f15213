package recent

import (
	"encoding/binary"

	"github.com/weir-rl/weir/internal/observe/find"
)

// Search gives to a Book what is kept of decisions: the keys that they met, and the attributes that
// rules read. It decodes nothing else of an entry.
func (b *Buffer) Search(book *find.Book) {
	l := looking{Buffer: b, book: book, came: map[cameIn]int{}, cut: map[uint64]bool{}}
	for i := range b.refused {
		if book.Stopped() {
			return
		}
		l.ring(&b.refused[i])
	}
	for i := range b.others {
		if book.Stopped() {
			return
		}
		l.ring(&b.others[i])
	}
	book.Incomplete(l.cut, b.refusals.chance.Load() >= book.Since/1e6)
}

// Seed returns the seed by which secret values are hidden.
func (b *Buffer) Seed() uint64 { return b.tally.Seed() }

// looking is a search under way.
type looking struct {
	*Buffer
	book *find.Book
	came map[cameIn]int  // refusals
	cut  map[uint64]bool // counters of which not all refusals are kept, by hash
	text []byte
}

// cameIn is a counter in a second.
type cameIn struct {
	counter uint64
	unix    int64
}

// ring looks at one part of the buffer.
func (l *looking) ring(r *ring) {
	full, oldest := r.next.Load() >= uint64(len(r.slots)), int64(1<<63-1)
	var counters []uint64
	for i := range r.slots {
		s := &r.slots[i]
		id := s.id.Load()
		if id == 0 {
			continue
		}
		found := l.book.ID(id)
		s.mu.Lock()
		at, counter := l.entry(s.data, s.seq.Load())
		if found {
			if e, ok := s.entry(); ok && (l.book.Domain == "" || e.Domain == l.book.Domain) {
				l.book.Decided(decisionOf(&e))
			}
		}
		s.mu.Unlock()
		oldest = min(oldest, at)
		if counter != 0 {
			counters = append(counters, counter)
		}
	}
	if full && oldest > l.book.Since {
		for _, c := range counters {
			l.cut[c] = true
		}
	}
}

func decisionOf(e *Entry) find.Decision {
	d := find.Decision{ID: e.ID, Time: e.Time, Domain: e.Domain, Outcome: e.Outcome}
	if l := e.Main(); l != nil {
		d.Key = l.Key
	}
	return d
}

// entry looks at one decision. counter is the hash of the counter that refused it lately; 0 if none
// did.
func (l *looking) entry(data []byte, number uint64) (at int64, counter uint64) {
	r := reader{b: data, ok: true}
	r.take(8)
	m := marks(r.byte())
	at = r.varint()
	r.uvarint() // generation
	for range 3 {
		r.varint()
	}
	s := find.Seen{Number: number, At: at, Domain: r.bytes(), Refused: m&markDenied != 0, Banned: m&markBanned != 0}
	r.bytes() // door
	limits := int(r.byte())
	r.take(2)
	var keys [mostLimits][]byte
	if limits > len(keys) {
		return at, counter
	}
	for i := range limits {
		r.take(4) // flags, mode, algorithm, calendar
		r.bytes() // name
		rule := r.bytes()
		r.bytes()   // given name
		r.bytes()   // file
		r.uvarint() // line
		for range limitNumbers {
			r.varint()
		}
		keys[i] = r.take(int(binary.LittleEndian.Uint16(r.take(2))))
		if i == 0 && s.Refused { // it is the one that refuses
			s.Rule, s.RuleKey = rule, l.tally.Hash(keys[0])
			if at >= l.book.Since {
				counter = s.RuleKey
				l.count(counter, at)
			}
		}
	}
	attributes := r.b
	for range r.byte() {
		r.bytes()
		r.bytes()
	}
	if !r.ok {
		return at, counter
	}
	for _, key := range keys[:limits] {
		l.book.Key(&s, key)
	}
	for r = (reader{b: attributes[1:], ok: true}); len(r.b) > 0; {
		l.text = append(append(append(l.text[:0], r.bytes()...), '='), r.bytes()...)
		l.book.Attribute(&s, l.text)
	}
	return at, counter
}

// count counts a refusal. A counter that has its share of a second may have more than are kept.
func (l *looking) count(counter uint64, at int64) {
	in := cameIn{counter, at / 1e6}
	if l.came[in]++; l.came[in] >= perKey {
		l.cut[counter] = true
	}
}
