package record

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// entry is a recorded request, or an answer to one. Its bytes are in a buffer that it shares with
// others.
type entry struct {
	time   int64 // µs since the Unix epoch
	client uint64
	turn   uint32 // of two at the same instant the one with the larger turn came first
	flags  byte
	kind   byte // of client
	hits   int64
	delay  int64  // ns
	shape  []byte // the domain, and the names of the attributes, each ended by a 0
	values []byte // each with its length before it, as a uvarint
	also   []byte // the differences of further readings, as by appendAlso; empty for none
	// the descriptors, as by appendDescriptors; empty for none
	descriptors []byte
}

// The flags of an entry.
const (
	flagAllowed = 1 << iota
	flagBanned
	flagAnswer // not a request: one was answered; hits is the status
	flagCut    // a value was too long, or there was no room for another one
	flagAlso   // the request has further readings

	flagBits = iota
)

// MaxValue bounds a recorded value, and the name of an attribute, in bytes.
const MaxValue = 512

// Bounds of an entry.
const (
	maxEntry      = 4 << 10 // as it is staged
	maxAttributes = 40
	headBytes     = 8 + 8 + 4 + 1 + 1 + 8 + 8
)

// names are the attributes that are recorded, for each domain of a set.
type names struct {
	set     *rule.Set
	domains map[string]*domainNames
}

type domainNames struct {
	list []attributeName
	all  bool // a rule goes through all of them
}

type attributeName struct {
	name   string
	hidden bool
}

// always are attributes that new rules are likely to read.
var always = []string{"method", "path", "user", "ip", "host"}

// Always returns the attributes that are recorded even if no rule in force reads them.
func (o Options) Always() []string { return slices.Concat(always, o.Known) }

func (r *Recorder) namesOf(s *rule.Set) *names {
	n := &names{set: s, domains: map[string]*domainNames{}}
	for _, domain := range s.Domains() {
		read, all := s.Reads(domain)
		list := slices.Concat(r.o.Always(), read)
		d := &domainNames{all: all}
		seen := map[string]bool{}
		for _, text := range list {
			if !seen[text] && len(d.list) < maxAttributes && len(text) <= MaxValue && !strings.Contains(text, "\x00") {
				seen[text] = true
				d.list = append(d.list, attributeName{text, r.hides(text)})
			}
		}
		n.domains[domain] = d
	}
	return n
}

// hides reports whether the values of an attribute are not kept.
func (r *Recorder) hides(name string) bool { return httpfield.HiddenAttribute(r.o.Hide, name) }

// write appends a request to a staging buffer that is locked and has room for maxEntry. It reports
// whether the buffer is now half full.
func (r *Recorder) write(s *staging, n *names, q *weir.Request, d *weir.Decision, now int64, turn uint32, hash uint64,
	kind byte) bool {
	flags := byte(0)
	if d.Allowed {
		flags |= flagAllowed
	}
	if d.Banned.Rule != nil {
		flags |= flagBanned
	}
	begin := len(s.buf)
	end := begin + maxEntry
	b := append(s.buf, 0, 0) // the length
	b = appendHead(b, now, hash, turn, flags, kind, q.Cost(), delayOf(q))
	cut := false
	// The values come before the shape, so that one pass over the names writes both.
	values := len(b)
	b = append(b, 0, 0)
	s.shape = s.shape[:0]
	s.room = end - maxEntry/8 - len(cutTo(d.Domain)) - 3
	if q.Attributes != nil {
		if of := n.domains[d.Domain]; of != nil {
			for i := range of.list {
				a := &of.list[i]
				v, ok := q.Attributes.Attribute(a.name)
				if !ok && !anyHas(q.Also, a.name) {
					continue
				}
				b, cut = s.appendAttribute(r, b, a.name, v, a.hidden, end-maxEntry/2, cut)
			}
			if of.all {
				b, cut = r.writeOthers(s, b, of, q, end-maxEntry/2, cut)
			}
		}
	}
	binary.LittleEndian.PutUint16(b[values:], uint16(len(b)-values-2))
	names := len(b)
	b = append(b, 0, 0)
	b = append(append(b, cutTo(d.Domain)...), 0)
	for _, name := range s.shape {
		b = append(append(b, name...), 0)
	}
	binary.LittleEndian.PutUint16(b[names:], uint16(len(b)-names-2))
	ok := true
	if len(q.Also) > 0 {
		b[begin+2+20] |= flagAlso
		b, cut, ok = r.appendAlso(s, b, q, end, cut)
	}
	clear(s.shape)
	if ok && len(q.Descriptors) > 0 {
		b, ok = r.appendDescriptors(s, b, q.Descriptors, end)
	}
	if !ok {
		s.buf = b[:begin] // without its readings or its descriptors it would be another request
		r.lost.Add(1)
		return false
	}
	if cut {
		b[begin+2+20] |= flagCut
	}
	binary.LittleEndian.PutUint16(b[begin:], uint16(len(b)-begin-2))
	s.buf = b
	return len(b) > cap(b)/2
}

// writeOthers appends the attributes that are not in the list.
func (r *Recorder) writeOthers(s *staging, b []byte, of *domainNames, q *weir.Request, end int,
	cut bool) ([]byte, bool) {
	for text, v := range q.Attributes.All() {
		if slices.ContainsFunc(of.list, func(n attributeName) bool { return n.name == text }) ||
			strings.Contains(text, "\x00") {
			continue
		}
		if len(s.shape) == maxAttributes || len(b)+len(v)+8 > end || len(text) > MaxValue {
			return b, true
		}
		b, cut = s.appendAttribute(r, b, text, v, r.hides(text), end, cut)
	}
	return b, cut
}

// appendAttribute appends a value, and its name to the shape, if there is room for both.
func (s *staging) appendAttribute(r *Recorder, b []byte, name, v string, hidden bool, end int,
	cut bool) ([]byte, bool) {
	before := len(b)
	b, cut = s.appendValue(r, b, v, hidden, end, cut)
	if s.room -= len(name) + 1; len(b) > s.room {
		s.room += len(name) + 1
		return b[:before], true
	}
	s.shape = append(s.shape, name)
	return b, cut
}

// anyHas reports whether one of the readings has an attribute.
func anyHas(readings []rule.Attributes, name string) bool {
	return slices.ContainsFunc(readings, func(a rule.Attributes) bool {
		_, ok := a.Attribute(name)
		return ok
	})
}

// appendAlso writes the further readings of a request, behind their total length. Each has the
// number of values that differ from the first reading, and these values with their places in the
// shape. ok is false if they do not fit.
func (r *Recorder) appendAlso(s *staging, b []byte, q *weir.Request, end int, cut bool) (_ []byte, _, ok bool) {
	begin := len(b)
	b = append(b, 0, 0)
	for _, a := range q.Also {
		differ := len(b)
		b = append(b, 0) // there are at most maxAttributes
		for i, name := range s.shape {
			v, _ := a.Attribute(name)
			if first, _ := q.Attributes.Attribute(name); v == first {
				continue
			}
			if len(b)+min(len(v), MaxValue)+int(hiddenBytes)+8 > end {
				return b, cut, false
			}
			b, cut = s.appendValue(r, append(b, byte(i)), v, r.hides(name), end, cut)
			b[differ]++
		}
	}
	binary.LittleEndian.PutUint16(b[begin:], uint16(len(b)-begin-2))
	return b, cut, true
}

// appendValue appends a value with its length. A value that is too long is cut.
func (s *staging) appendValue(r *Recorder, b []byte, v string, hidden bool, end int, cut bool) ([]byte, bool) {
	if hidden && v != "" {
		b = binary.AppendUvarint(b, hiddenBytes)
		return r.hidden(s, b, v), cut
	}
	most := max(0, min(MaxValue, end-len(b)-2))
	if len(v) > most {
		v, cut = v[:most], true
	}
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...), cut
}

// hiddenBytes is the length of the text that stands for a secret value.
const hiddenBytes = uint64(len(observe.HiddenMark) + observe.KeptDigits)

// hidden appends what stands for a secret value.
func (r *Recorder) hidden(s *staging, dst []byte, value string) []byte {
	s.sum = observe.Hide(append(s.sum[:0], value...), 0, r.seed.Load(), observe.KeptDigits)
	return append(dst, s.sum...)
}

func cutTo(s string) string { return s[:min(len(s), MaxValue)] }

// writeAnswer appends an answer to a staging buffer that is locked.
func (r *Recorder) writeAnswer(s *staging, now int64, hash uint64, status int) bool {
	b := binary.LittleEndian.AppendUint16(s.buf, headBytes+4)
	b = appendHead(b, now, hash, 0, flagAnswer, 0, int64(status), 0)
	s.buf = append(b, 0, 0, 0, 0)
	return len(s.buf) > cap(s.buf)/2
}

// delayOf packs MaxDelay and Within of a request into one number, which setDelay unpacks. With
// RuleDelay, it stores Within as a number below RuleDelay.
func delayOf(q *weir.Request) int64 {
	switch {
	case q.Within <= 0:
		return int64(q.MaxDelay)
	case q.MaxDelay == weir.RuleDelay:
		return int64(weir.RuleDelay - q.Within)
	case q.MaxDelay < 0:
		return int64(q.Within)
	}
	return int64(min(q.MaxDelay, q.Within))
}

// setDelay is the inverse of delayOf.
func setDelay(q *weir.Request, delay int64) {
	if q.MaxDelay = time.Duration(delay); q.MaxDelay < weir.RuleDelay {
		q.MaxDelay, q.Within = weir.RuleDelay, weir.RuleDelay-q.MaxDelay
	}
}

func appendHead(b []byte, now int64, hash uint64, turn uint32, flags, kind byte, hits, delay int64) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(now))
	b = binary.LittleEndian.AppendUint64(b, hash)
	b = binary.LittleEndian.AppendUint32(b, turn)
	b = append(b, flags, kind)
	b = binary.LittleEndian.AppendUint64(b, uint64(hits))
	return binary.LittleEndian.AppendUint64(b, uint64(delay))
}

// appendDescriptors writes descriptors; ok is false if they do not fit.
func (r *Recorder) appendDescriptors(s *staging, b []byte, list []rule.Descriptor, end int) (_ []byte, ok bool) {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for i := range list {
		d := &list[i]
		b = binary.AppendUvarint(b, uint64(len(d.Entries)))
		for _, e := range d.Entries {
			if len(e.Key) > MaxValue || len(e.Value) > MaxValue ||
				len(b)+len(e.Key)+max(len(e.Value), int(hiddenBytes))+48 > end {
				return b, false
			}
			b = append(binary.AppendUvarint(b, uint64(len(e.Key))), e.Key...)
			b, _ = s.appendValue(r, b, e.Value, r.hides(e.Key), end, false)
		}
		if len(b)+48 > end {
			return b, false
		}
		flags := byte(0)
		if d.HasHits {
			flags |= 1
		}
		if d.Override != nil {
			flags |= 2
		}
		b = binary.AppendVarint(append(b, flags), d.Hits)
		if o := d.Override; o != nil {
			unit := o.Unit[:min(len(o.Unit), 16)]
			b = binary.AppendUvarint(b, uint64(o.Requests))
			b = append(binary.AppendUvarint(b, uint64(len(unit))), unit...)
		}
	}
	return b, true
}

// readDescriptors reads descriptors from appendDescriptors; nil if they are broken.
func readDescriptors(data []byte) []rule.Descriptor {
	r := reader{b: data, ok: true}
	n := r.uvarint()
	if n > uint64(len(data)) {
		return nil
	}
	list := make([]rule.Descriptor, 0, n)
	for range n {
		var d rule.Descriptor
		entries := r.uvarint()
		if entries > uint64(len(data)) {
			return nil
		}
		for range entries {
			key := string(r.take(r.uvarint()))
			d.Entries = append(d.Entries, rule.Entry{Key: key, Value: string(r.take(r.uvarint()))})
		}
		flags := r.byte()
		d.Hits, d.HasHits = r.varint(), flags&1 != 0
		if flags&2 != 0 {
			requests := uint32(r.uvarint())
			d.Override = &rule.DescriptorLimit{Requests: requests, Unit: string(r.take(r.uvarint()))}
		}
		list = append(list, d)
	}
	if !r.ok {
		return nil
	}
	return list
}

// reader reads numbers and bytes. After an error it returns only empty values.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) fail() { r.b, r.ok = nil, false }

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	taken := r.b[:n:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) byte() byte {
	if b := r.take(1); len(b) == 1 {
		return b[0]
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) fixed(size uint64) (v uint64) {
	for i, b := range r.take(size) {
		v |= uint64(b) << (8 * i)
	}
	return v
}

// readStaged reads the entries in staging buffers. The entries point into b.
func readStaged(b []byte) (list []entry) {
	all := reader{b: b, ok: true}
	for len(all.b) > 0 {
		r := reader{b: all.take(all.fixed(2)), ok: true}
		e := entry{time: int64(r.fixed(8)), client: r.fixed(8), turn: uint32(r.fixed(4)), flags: r.byte(),
			kind: r.byte(), hits: int64(r.fixed(8)), delay: int64(r.fixed(8))}
		e.values = r.take(r.fixed(2))
		e.shape = r.take(r.fixed(2))
		if e.flags&flagAlso != 0 {
			e.also = r.take(r.fixed(2))
		}
		e.descriptors = r.b
		if !all.ok || !r.ok {
			return list
		}
		list = append(list, e)
	}
	return list
}

func compareEntries(a, b entry) int {
	if c := cmp.Compare(a.time, b.time); c != 0 {
		return c
	}
	return cmp.Compare(b.turn, a.turn)
}

// into returns e with its bytes at the end of an arena of their own.
func (e entry) into(arena *[]byte) entry {
	for _, part := range [...]*[]byte{&e.shape, &e.values, &e.also, &e.descriptors} {
		from := len(*arena)
		*arena = append(*arena, *part...)
		*part = (*arena)[from:len(*arena):len(*arena)]
	}
	return e
}
