package rule

import (
	"iter"
	"net/netip"

	"github.com/weir-rl/weir/internal/util/httpfield"
)

// slot is an attribute that a domain uses.
type slot struct {
	name string
	kind attributeKind
}

// value is the value of a slot on one request, in normal form. It is valid in the generation in
// which it was made.
type value struct {
	text       string
	generation uint32
	indexed    uint32 // the generation in which its candidates were gathered
	listed     uint32 // the generation in which it was put into Matches.names
	present    bool
}

// value returns the value of a slot, looking it up once a request.
func (m *Matches) value(slot int) *value {
	v := &m.values[slot]
	if v.generation != m.generation {
		m.lookUp(slot) // apart, so that value is inlined
	}
	return v
}

func (m *Matches) lookUp(slot int) {
	raw, ok, name := "", false, m.domain.slots[slot].name
	if m.pairs != nil { // as its method does, which would be called through two others
		for i := range m.pairs {
			if p := &m.pairs[i]; p.Name == name {
				raw, ok = p.Value, true
				break
			}
		}
	} else if m.source != nil {
		raw, ok = m.source.Attribute(name)
	}
	m.set(slot, raw, ok)
}

// maxKeptValue is up to how many bytes a value may be held on to by a Matches that is not in use.
const maxKeptValue = 4096

// maxKeptScratch is up to how many bytes of scratch it keeps.
const maxKeptScratch = 64 << 10

// set sets the value of a slot.
func (m *Matches) set(slot int, raw string, ok bool) {
	v := &m.values[slot]
	v.generation = m.generation
	if !ok || raw == "" {
		v.text, v.present = "", false
		return
	}
	if len(raw) > maxKeptValue {
		m.large = true
	}
	switch kind := m.domain.slots[slot].kind; kind {
	case kindPlain: // most values
		v.text, v.present = raw, true
		return
	case kindField:
		v.present = true
		v.text, _ = httpfield.CutSigned(raw)
		return
	case kindPath:
		v.text, v.present = raw, true
		if normal, folded := scanPath(raw); !folded {
			m.setOddPath(v, raw, normal)
		}
		return
	case kindIP:
		v.text, m.addr = normalText(kind, raw, &m.scratch)
	case kindMethod:
		if v.text, _ = normalText(kind, raw, &m.scratch); v.text == "HEAD" {
			m.odd |= headSpelled
		}
	default:
		v.text, _ = normalText(kind, raw, &m.scratch)
	}
	v.present = v.text != ""
}

// addrOf returns the address that is the value of a slot; the zero Addr if it is none.
func (m *Matches) addrOf(slot int) netip.Addr {
	if slot == m.domain.ipSlot {
		return m.addr
	}
	return netip.Addr{}
}

// attribute returns the value of any attribute, in normal form, as expressions see it.
func (m *Matches) attribute(name string) (string, bool) {
	if n, ok := m.domain.slotOf[name]; ok {
		v := m.value(n)
		return m.spelled(n, v), v.present
	}
	if m.source != nil {
		text, ok := m.source.Attribute(name)
		return text, ok && text != ""
	}
	if m.union {
		for i := range m.descriptors {
			for k := range m.descriptors[i].Entries {
				if e := &m.descriptors[i].Entries[k]; e.Key == name {
					return e.Value, e.Value != ""
				}
			}
		}
	}
	return "", false
}

// attributes iterates over all attributes as they came. In a union a name may come several times,
// and the first holds.
func (m *Matches) attributes() iter.Seq2[string, string] {
	if m.source != nil {
		return m.source.All()
	}
	return func(yield func(string, string) bool) {
		remote, hasRemote, hasIP := "", false, false
		for i := range m.descriptors {
			for _, e := range m.descriptors[i].Entries {
				if !yield(e.Key, e.Value) {
					return
				}
				if e.Key == RemoteAddress && !hasRemote {
					remote, hasRemote = e.Value, true
				}
				hasIP = hasIP || e.Key == "ip"
			}
		}
		if hasRemote && !hasIP {
			yield("ip", remote)
		}
	}
}

// fillUnion sets the slots from the descriptors' entries: the first value of a key holds, and
// remote_address is ip where no entry is called that.
func (m *Matches) fillUnion() {
	d := m.domain
	if len(d.slots) == 0 {
		return
	}
	remote, haveRemote := "", false
	for i := range m.descriptors {
		for k := range m.descriptors[i].Entries {
			e := &m.descriptors[i].Entries[k]
			if !haveRemote && e.Key == RemoteAddress {
				remote, haveRemote = e.Value, true
			}
			n := -1
			if len(d.slots) <= 4 {
				for s := range d.slots {
					if d.slots[s].name == e.Key {
						n = s
						break
					}
				}
			} else if s, ok := d.slotOf[e.Key]; ok {
				n = s
			}
			if n >= 0 && m.values[n].generation != m.generation {
				m.set(n, e.Value, true)
			}
		}
	}
	if haveRemote && d.ipSlot >= 0 && m.values[d.ipSlot].generation != m.generation {
		m.set(d.ipSlot, remote, true)
	}
}
