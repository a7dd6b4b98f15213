package rule

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unsafe"
)

// A key is the sequence of its parts. Each begins with a tag (a uvarint): the alternative that was
// present, counted from 0, times 4, plus what follows. So no two lists of values make the same key.
const (
	tagText = 0 // a uvarint length, and the value
	tagHash = 1 // SHA-256 of a value of more than maxKeyValue bytes
	tagIPv4 = 2 // 4 bytes
	// the first bytes of the address, as many as hold the bits by which addresses are grouped
	tagIPv6 = 3
)

// maxKeyValue is up to how many bytes a value is kept as it is.
const maxKeyValue = 256

// defaultIPv6Prefix is the number of bits by which IPv6 addresses are grouped.
const defaultIPv6Prefix = 64

// alternative is one attribute of an entry of per.
type alternative struct {
	slot int
	name string
	kind attributeKind
}

// view returns b as a string without copying; it is valid until b is written to.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// appendText appends a part that is text.
func appendText(dst []byte, alt int, text string) []byte {
	if len(text) > maxKeyValue {
		dst = binary.AppendUvarint(dst, uint64(alt)<<2|tagHash)
		sum := sha256.Sum256(unsafe.Slice(unsafe.StringData(text), len(text)))
		return append(dst, sum[:]...)
	}
	if alt < 32 && len(text) < 128 {
		dst = append(dst, byte(alt<<2|tagText), byte(len(text)))
		return append(dst, text...)
	}
	dst = binary.AppendUvarint(dst, uint64(alt)<<2|tagText)
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	return append(dst, text...)
}

// appendAddr appends a part that is an address.
func appendAddr(dst []byte, alt int, addr netip.Addr, ipv6Prefix int) []byte {
	if addr.Is4() {
		dst = binary.AppendUvarint(dst, uint64(alt)<<2|tagIPv4)
		a := addr.As4()
		return append(dst, a[:]...)
	}
	dst = binary.AppendUvarint(dst, uint64(alt)<<2|tagIPv6)
	a := addr.As16()
	n := (ipv6Prefix + 7) / 8
	if odd := ipv6Prefix % 8; odd != 0 {
		a[n-1] &= 0xff << (8 - odd)
	}
	return append(dst, a[:n]...)
}

// appendPart appends the part for a value that is not normal yet, as the attribute's kind wants it;
// with folded, as it stands in the keys of r.
func (r *matchRule) appendPart(dst []byte, alt int, kind attributeKind, value string, folded bool) []byte {
	var scratch []byte
	text, addr := normalText(kind, value, &scratch)
	prefix := int(r.ipv6Prefix)
	switch {
	case addr.IsValid():
		return appendAddr(dst, alt, addr, prefix)
	case kind == kindIP:
		if p, err := netip.ParsePrefix(value); err == nil && p.Addr().Is6() && !p.Addr().Is4In6() &&
			p.Bits() == prefix {
			return appendAddr(dst, alt, p.Addr(), prefix) // as KeyParts shows it
		}
	case !folded || r.folds&spelledOf(kind) == 0:
	case kind == kindMethod && text == "HEAD":
		text = "GET"
	case kind == kindPath:
		var lower, key []byte
		lowered := lowerPath(text, &lower)
		text = r.keyPath(text, cutEnd(lowered), lowered, &key)
	}
	return appendText(dst, alt, text)
}

// appendPartZero appends the part of key that begins at i, with alternative 0, and returns where
// the next one begins. The key is one that Match made.
func appendPartZero(dst, key []byte, i, ipv6Prefix int) ([]byte, int) {
	tag, n := binary.Uvarint(key[i:])
	i += n
	dst = append(dst, byte(tag&3))
	size := 0
	switch tag & 3 {
	case tagText:
		length, n := binary.Uvarint(key[i:])
		size = n + int(length)
	case tagHash:
		size = sha256.Size
	case tagIPv4:
		size = 4
	case tagIPv6:
		size = (ipv6Prefix + 7) / 8
	}
	return append(dst, key[i:i+size]...), i + size
}

// keyPart is a decoded part of a key.
type keyPart struct {
	alt   int
	value string
}

var errBadKey = errors.New("not a key of this limit")

// cutPart decodes the first part of key.
func cutPart(key []byte, ipv6Prefix int) (p keyPart, rest []byte, err error) {
	tag, n := binary.Uvarint(key)
	if n <= 0 || tag>>2 > 1<<20 {
		return p, nil, errBadKey
	}
	key, p.alt = key[n:], int(tag>>2)
	take := func(size int) ([]byte, bool) {
		if size < 0 || len(key) < size {
			return nil, false
		}
		b := key[:size]
		key = key[size:]
		return b, true
	}
	switch tag & 3 {
	case tagText:
		size, n := binary.Uvarint(key)
		if n <= 0 || size > maxKeyValue {
			return p, nil, errBadKey
		}
		key = key[n:]
		b, ok := take(int(size))
		if !ok {
			return p, nil, errBadKey
		}
		p.value = string(b)
	case tagHash:
		b, ok := take(sha256.Size)
		if !ok {
			return p, nil, errBadKey
		}
		p.value = "sha256:" + hex.EncodeToString(b)
	case tagIPv4:
		b, ok := take(4)
		if !ok {
			return p, nil, errBadKey
		}
		p.value = netip.AddrFrom4([4]byte(b)).String()
	case tagIPv6:
		b, ok := take((ipv6Prefix + 7) / 8)
		if !ok {
			return p, nil, errBadKey
		}
		var a [16]byte
		copy(a[:], b)
		p.value = netip.AddrFrom16(a).String()
		if ipv6Prefix < 128 {
			p.value = fmt.Sprintf("%s/%d", p.value, ipv6Prefix)
		}
	}
	return p, key, nil
}

// KeyParts splits a key made by Match into readable parts, for admin pages: `name=value` each; an
// IPv6 address as the block that is counted together, and a value too long to be kept as its hash
// (`name=sha256:…`). It returns nil for the key of a limit without per, and if key is no key of
// w's.
func (w *Window) KeyParts(key []byte) []string {
	r := w.Rule.compiled
	if r == nil {
		return nil
	}
	var parts []string
	next := func() (keyPart, bool) {
		p, rest, err := cutPart(key, int(r.ipv6Prefix))
		if err != nil {
			return p, false
		}
		key = rest
		return p, true
	}
	switch {
	case r.entries:
		for len(key) > 0 {
			name, ok := next()
			if !ok {
				return nil
			}
			value, ok := next()
			if !ok {
				return nil
			}
			parts = append(parts, name.value+"="+value.value)
		}
	case r.byPath():
		for _, l := range r.levels {
			value := l.node.Value
			if l.varies() {
				p, ok := next()
				if !ok {
					return nil
				}
				value = p.value
			}
			parts = append(parts, l.node.Key+"="+value)
		}
	default:
		for _, alternatives := range r.per {
			p, ok := next()
			if !ok || p.alt >= len(alternatives) {
				return nil
			}
			parts = append(parts, alternatives[p.alt].name+"="+p.value)
		}
	}
	if len(key) > 0 {
		return nil
	}
	return parts
}

// AppendKey makes the key of the given parts (as KeyParts gives them), the inverse of KeyParts for
// values that were not hashed. Values are brought into the normal form of their attribute; of an
// IPv6 block any address will do. A part may be a value alone. It is of the first name that the
// rule has in this place, but an address is of ip and any other text is not, where the rule has
// both. One that holds a = needs its name. One text for a key of several parts is cut at its
// commas, behind which a space may stand before the name of a part. The error says which part does
// not fit.
func (w *Window) AppendKey(dst []byte, parts []string) ([]byte, error) {
	return w.appendKey(dst, parts, true)
}

// AppendWrittenKey is AppendKey for a key as a request writes it (Matches.WrittenKey): paths and
// methods are not folded.
func (w *Window) AppendWrittenKey(dst []byte, parts []string) ([]byte, error) {
	return w.appendKey(dst, parts, false)
}

func (w *Window) appendKey(dst []byte, parts []string, folded bool) ([]byte, error) {
	r := w.Rule.compiled
	if r == nil {
		return dst, errors.New("the rule is not part of a set")
	}
	begin := len(dst)
	want := len(r.per)
	if r.byPath() {
		want = len(r.levels)
	}
	if !r.entries && want > 1 && len(parts) == 1 {
		parts = r.cutParts(parts[0], want)
	}
	if !r.entries && len(parts) != want {
		return dst, fmt.Errorf("limit %s has keys of %s, not %d", w.Name, quantity(want, "part"), len(parts))
	}
	for i, part := range parts {
		name, value, ok := cutEntry(r, i, part)
		switch {
		case !ok:
			return dst[:begin], fmt.Errorf("part %d of the key, %q, is not name=value with %s", i+1, shorten(part),
				r.partNames(i))
		case r.entries:
			dst = appendText(appendText(dst, 0, name), 0, value)
		case r.byPath():
			if l := r.levels[i]; l.varies() {
				dst = appendText(dst, 0, value)
			} else if l.node.Value != value {
				return dst[:begin], fmt.Errorf("part %d of the key must be %s=%s", i+1, l.node.Key, l.node.Value)
			}
		default:
			for alt, a := range r.per[i] {
				if a.name == name {
					dst = r.appendPart(dst, alt, a.kind, value, folded)
					break
				}
			}
		}
	}
	return dst, nil
}

// cutParts cuts the text of a whole key at its commas: at all of them, or if that makes too many
// parts, where the name of the next part follows.
func (r *matchRule) cutParts(text string, want int) []string {
	pieces := strings.Split(text, ",")
	// named returns a piece without the space that lists for people have behind a comma, if it
	// begins with the name of part i. A value alone may begin with a space of its own.
	named := func(i int, piece string) (part string, ok bool) {
		if i >= want {
			return piece, false
		}
		part = strings.TrimPrefix(piece, " ")
		_, _, ok = cutEntry(r, i, part)
		return part, ok && strings.Contains(part, "=")
	}
	if len(pieces) <= want {
		for i, piece := range pieces {
			if part, ok := named(i, piece); ok && i > 0 {
				pieces[i] = part
			}
		}
		return pieces
	}
	parts := pieces[:1:1]
	for _, piece := range pieces[1:] {
		next := len(parts)
		if part, ok := named(next, piece); ok {
			parts = append(parts, part)
		} else if _, ok := named(next-1, piece); ok {
			return pieces // any of them may begin the part
		} else {
			parts[next-1] += "," + piece
		}
	}
	if len(parts) != want {
		return pieces
	}
	return parts
}

// cutEntry splits a readable part into the name, which is one that the rule has in this place, and
// the value.
func cutEntry(r *matchRule, i int, part string) (name, value string, ok bool) {
	switch {
	case r.entries:
		return strings.Cut(part, "=")
	case r.byPath():
		name = r.levels[i].node.Key
		if value, ok = strings.CutPrefix(part, name+"="); ok {
			return name, value, true
		}
		return name, part, !strings.Contains(part, "=")
	}
	for _, a := range r.per[i] {
		if value, ok = strings.CutPrefix(part, a.name+"="); ok {
			return a.name, value, true
		}
	}
	return r.nameFor(i, part), part, !strings.Contains(part, "=")
}

// nameFor is the name of a value that stands alone in this place of a key.
func (r *matchRule) nameFor(i int, value string) string {
	address := parseIP(value).IsValid()
	if !address {
		_, err := netip.ParsePrefix(value)
		address = err == nil
	}
	for _, a := range r.per[i] {
		if (a.kind == kindIP) == address {
			return a.name
		}
	}
	return r.per[i][0].name
}

// NotAddress returns the part of a key that stands where an address should, and is none; "" if
// there is no such part. A request that came from an address never has such a key.
func (w *Window) NotAddress(key []byte) string {
	r := w.Rule.compiled
	if r == nil || r.entries || r.byPath() {
		return ""
	}
	for _, alternatives := range r.per {
		tag, n := binary.Uvarint(key)
		p, rest, err := cutPart(key, int(r.ipv6Prefix))
		if n <= 0 || err != nil || p.alt >= len(alternatives) {
			return ""
		}
		if a := alternatives[p.alt]; a.kind == kindIP && tag&3 != tagIPv4 && tag&3 != tagIPv6 {
			return a.name + "=" + p.value
		}
		key = rest
	}
	return ""
}

// partNames names what may stand before the = of a part.
func (r *matchRule) partNames(i int) string {
	switch {
	case r.entries:
		return "the key of an entry"
	case r.byPath():
		return r.levels[i].node.Key
	}
	var b bytes.Buffer
	for k, a := range r.per[i] {
		if k > 0 {
			b.WriteString(" or ")
		}
		b.WriteString(a.name)
	}
	return b.String()
}

// shorten shortens a value for a message.
func shorten(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// quantity spells a number of things.
func quantity(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
