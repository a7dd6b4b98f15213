package recent

import (
	"encoding/binary"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/rule"
)

// marks say why a decision is worth keeping.
type marks uint8

const (
	markDenied marks = 1 << iota
	markShadowDenied
	markSoft
	markNear
	markBanned
)

// markNames are the names of the marks, in the order in which they make the outcome.
var markNames = [...]struct {
	mark marks
	name string
}{{markDenied, "denied"}, {markShadowDenied, "shadow_denied"}, {markSoft, "soft"}, {markNear, "near_limit"}}

// Outcomes are the values of Query.Outcome, named as in metrics. A decision with several outcomes
// shows under each.
var Outcomes = []string{"denied", "shadow_denied", "soft", "near_limit", "allowed"}

func marksOf(d *weir.Decision) marks {
	var m marks
	if !d.Allowed {
		m |= markDenied
		if d.Banned.Rule != nil {
			m |= markBanned
		}
	}
	for i := range d.Limits {
		switch l := &d.Limits[i]; {
		case l.Mode == rule.Shadow:
			if !l.Allowed {
				m |= markShadowDenied
			}
		case d.Allowed && l.Soft:
			m |= markSoft
		case d.Warns(l):
			m |= markNear
		}
	}
	return m
}

// Bounds of an entry. Longer text is cut, and ends with observe.CutMark.
const (
	mostLimits     = 16
	mostAttributes = 16
	mostName       = 96 // bytes of a name
	mostValue      = 128
	mostKey        = 192
	mostText       = 1024 // what an item may grow beyond the entry before it is left out again
)

// limitNumbers is how many numbers of a limit stand before its key.
const limitNumbers = 11

// Bits of a limit's flags.
const (
	limitAllowed = 1 << iota
	limitRefuses
	limitNear
	limitSoft
)

// encoder writes entries, one after the other, into a buffer of its own.
//
// Plain structs with texts in one byte slice would need no codec. They were measured: for a refusal
// that met three limits and two attributes such an entry takes 632 bytes and 242 ns, while the
// codec takes 296 bytes and 335 ns; neither allocates. The codec stays, because the buffer is
// bounded in bytes: in structs, fewer limits would fit into the 1,024 bytes that Options grant each
// entry.
type encoder struct {
	buf   []byte
	names [mostAttributes]string // of the attributes that are written
	count int                    // of names
	sum   []byte                 // for hidden values
	looks []look                 // of the rule whose limit is written
	b     *Buffer
}

// encode makes the entry of d in e.buf. It gives d an id.
func (e *encoder) encode(b *Buffer, r *weir.Request, d *weir.Decision, m marks) {
	e.b, e.count = b, 0
	p := binary.LittleEndian.AppendUint64(e.buf[:0], uint64(d.Identity()))
	p = append(p, byte(m))
	p = binary.AppendVarint(p, instant(d))
	p = binary.AppendUvarint(p, d.Generation)
	p = binary.AppendVarint(p, r.Cost())
	p = binary.AppendVarint(p, d.RetryAfter)
	p = binary.AppendVarint(p, d.Delay)
	p = appendCut(p, d.Domain, mostName)
	p = appendCut(p, r.Door, mostName)
	e.buf = p
	e.limits(r, d)
	e.attributes(r, d)
	for i := range e.count { // let go of the request's memory
		e.names[i] = ""
	}
	e.b, e.looks = nil, nil
}

// weight orders the limits of d for writing: those that refuse, then those that give an admission
// its outcome, then the rest.
func weight(d *weir.Decision, l *weir.LimitResult) int {
	switch {
	case d.Refuses(l):
		return 0
	case d.Allowed && (!l.Allowed || l.Soft || d.Warns(l)):
		return 1
	}
	return 2
}

// limits writes the limits that were met, those that make the outcome first: not all may fit.
func (e *encoder) limits(r *weir.Request, d *weir.Decision) {
	head := len(e.buf)
	e.buf = append(e.buf, 0, 0, 0)
	most := e.b.entry * 3 / 4 // leaves room for attributes
	n, left := 0, 0
	for of := range 3 {
		for i := range d.Limits {
			if weight(d, &d.Limits[i]) != of {
				continue
			}
			before := len(e.buf)
			if n < mostLimits {
				e.limit(r, d, i)
			}
			if n == mostLimits || n > 0 && len(e.buf) > most {
				e.buf = e.buf[:before]
				left++
				continue
			}
			n++
		}
	}
	e.buf[head] = byte(n)
	binary.LittleEndian.PutUint16(e.buf[head+1:], uint16(min(left, 1<<16-1)))
}

func (e *encoder) limit(r *weir.Request, d *weir.Decision, i int) {
	l := &d.Limits[i]
	w := l.Window
	flags := byte(0)
	for bit, on := range [...]bool{l.Allowed, d.Refuses(l), l.Near, l.Soft} {
		if on {
			flags |= 1 << bit
		}
	}
	var c algo.Config
	if in := d.InForce(i); in != nil {
		c = in.Config()
	}
	p := append(e.buf, flags, byte(l.Mode), byte(c.Algorithm), byte(c.Calendar))
	p = appendCut(p, w.Name, mostName)
	p = appendCut(p, w.Rule.Name, mostName)
	given := ""
	if lyft := w.Rule.Lyft; lyft != nil {
		given = lyft.LimitName
	}
	p = appendCut(p, given, mostName)
	p = appendCut(p, w.Rule.Pos.File, mostName)
	p = binary.AppendUvarint(p, uint64(w.Rule.Pos.Line))
	for _, v := range [limitNumbers]int64{
		c.N, c.Burst, c.Window.Microseconds(), l.Limit, l.SoftLimit, l.Remaining, l.RetryAfter, l.ResetAfter, l.Delay,
		observe.Asked(r, d, i), int64(l.Descriptor),
	} {
		p = binary.AppendVarint(p, v)
	}
	// The length of the key's text is filled in once it is known: two bytes are enough for it.
	at := len(p)
	p = append(p, 0, 0)
	if i < len(d.Matches.Hits) {
		e.looks = e.b.looks(d.Rules, w.Rule)
		p = w.AppendKeyText(p, d.Matches.Hits[i].Key, e.keyPart)
	}
	if text := p[at+2:]; len(text) > mostKey {
		p = append(p[:at+2+observe.CutAt(text, mostKey)], observe.CutMark...)
	}
	binary.LittleEndian.PutUint16(p[at:], uint16(len(p)-at-2))
	e.buf = p
}

// keyPart cuts or hides the value in a part of a key, dst[at:].
func (e *encoder) keyPart(dst []byte, name string, at int) []byte {
	if e.hides(name) {
		return observe.Hide(dst, at, e.b.tally.Seed(), observe.ShownDigits)
	}
	if value := dst[at:]; len(value) > mostValue {
		return append(dst[:at+observe.CutAt(value, mostValue)], observe.CutMark...)
	}
	return dst
}

func (e *encoder) hides(name string) bool {
	for _, l := range e.looks {
		for i := range l {
			if l[i].name == name {
				return l[i].hidden
			}
		}
	}
	return e.b.hides(name)
}

// attributes writes the attributes that were read by the rules that the request met.
func (e *encoder) attributes(r *weir.Request, d *weir.Decision) {
	head := len(e.buf)
	e.buf = append(e.buf, 0)
	if r.Attributes == nil {
		return
	}
	var last *rule.Rule
	for i := range d.Matches.Hits {
		rl := d.Matches.Hits[i].Window.Rule
		if rl == last {
			continue
		}
		last = rl
		for _, look := range e.b.looks(d.Rules, rl) {
			for _, a := range look {
				if e.has(a.name) {
					break
				}
				value, ok := r.Attributes.Attribute(a.name)
				if !ok || value == "" {
					continue
				}
				if !e.attribute(a, value) {
					return
				}
				e.buf[head]++
				break
			}
		}
	}
}

func (e *encoder) has(name string) bool {
	for i := range e.count {
		if e.names[i] == name {
			return true
		}
	}
	return false
}

// attribute writes one attribute; false if there is no room.
func (e *encoder) attribute(a attribute, value string) bool {
	if e.count == mostAttributes {
		return false
	}
	before := len(e.buf)
	p := appendCut(e.buf, a.name, mostName)
	if a.hidden {
		at := len(p)
		p = e.hidden(append(p, 0), value)
		p[at] = byte(len(p) - at - 1)
	} else {
		p = appendCut(p, value, mostValue)
	}
	if e.buf = p; len(p) > e.b.entry {
		e.buf = p[:before]
		return false
	}
	e.names[e.count] = a.name
	e.count++
	return true
}

// hidden appends what is shown in place of a secret value.
func (e *encoder) hidden(dst []byte, value string) []byte {
	e.sum = observe.Hide(append(e.sum[:0], value...), 0, e.b.tally.Seed(), observe.ShownDigits)
	dst = append(dst, e.sum...)
	if cap(e.sum) > mostBytes {
		e.sum = nil
	}
	return dst
}

// appendCut appends s with its length, cut to most bytes.
func appendCut(p []byte, s string, most int) []byte {
	if len(s) <= most {
		p = binary.AppendUvarint(p, uint64(len(s)))
		return append(p, s...)
	}
	n := observe.CutAt(s, most)
	p = binary.AppendUvarint(p, uint64(n+len(observe.CutMark)))
	return append(append(p, s[:n]...), observe.CutMark...)
}
