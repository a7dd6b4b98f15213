package rule

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"strconv"
	"unicode/utf8"
)

// AppendKeyText appends a key made by Match as people read it: the parts that KeyParts gives,
// `name=value` each, with ", " in between. It appends nothing for the key of a limit without per,
// and if key is no key of w's.
//
// edit is called after each part was appended whose value came with the request; the value is
// dst[at:], which edit may shorten or write over. If edit does not allocate, AppendKeyText
// allocates only to grow dst. nil leaves the values as they are.
func (w *Window) AppendKeyText(dst, key []byte, edit func(dst []byte, name string, at int) []byte) []byte {
	r := w.Rule.compiled
	if r == nil {
		return dst
	}
	begin, ok := len(dst), true
	value := func(name string) {
		at := len(dst)
		if dst, key, ok = appendPartText(dst, key, int(r.ipv6Prefix)); ok && edit != nil {
			dst = edit(dst, name, at)
		}
	}
	separate := func() {
		if len(dst) > begin {
			dst = append(dst, ", "...)
		}
	}
	switch {
	case r.entries:
		for ok && len(key) > 0 {
			separate()
			at := len(dst)
			if dst, key, ok = appendPartText(dst, key, int(r.ipv6Prefix)); ok {
				name := view(dst[at:])
				dst = append(dst, '=')
				value(name)
			}
		}
	case r.byPath():
		for _, l := range r.levels {
			separate()
			dst = append(append(dst, l.node.Key...), '=')
			if l.varies() {
				value(l.node.Key)
			} else {
				dst = append(dst, l.node.Value...)
			}
			if !ok {
				break
			}
		}
	default:
		for _, alternatives := range r.per {
			tag, n := binary.Uvarint(key)
			if n <= 0 || tag>>2 >= uint64(len(alternatives)) {
				return dst[:begin]
			}
			name := alternatives[tag>>2].name
			separate()
			dst = append(append(dst, name...), '=')
			if value(name); !ok {
				break
			}
		}
	}
	if !ok || len(key) > 0 {
		return dst[:begin]
	}
	return dst
}

// appendPartText appends the value of the first part of key, as cutPart gives it; ok is false, and
// nothing is appended, if there is none.
func appendPartText(dst, key []byte, ipv6Prefix int) (_, rest []byte, ok bool) {
	tag, n := binary.Uvarint(key)
	if n <= 0 || tag>>2 > 1<<20 {
		return dst, nil, false
	}
	key = key[n:]
	size := 0
	switch tag & 3 {
	case tagText:
		length, n := binary.Uvarint(key)
		if n <= 0 || length > maxKeyValue {
			return dst, nil, false
		}
		key, size = key[n:], int(length)
	case tagHash:
		size = 32
	case tagIPv4:
		size = 4
	case tagIPv6:
		size = (ipv6Prefix + 7) / 8
	}
	if len(key) < size {
		return dst, nil, false
	}
	part, rest := key[:size], key[size:]
	switch tag & 3 {
	case tagText:
		dst = append(dst, part...)
	case tagHash:
		dst = hex.AppendEncode(append(dst, "sha256:"...), part)
	case tagIPv4:
		dst = netip.AddrFrom4([4]byte(part)).AppendTo(dst)
	case tagIPv6:
		var a [16]byte
		copy(a[:], part)
		dst = netip.AddrFrom16(a).AppendTo(dst)
		if ipv6Prefix < 128 {
			dst = strconv.AppendInt(append(dst, '/'), int64(ipv6Prefix), 10)
		}
	}
	return dst, rest, true
}

// CutKey copies a key made by Match into dst, with text values cut as short as it takes to fit: to
// 80 bytes each, or 40, 20 or 8. The copy is no longer the key, but AppendKeyText reads it as one.
// It returns the number of bytes, 0 if dst is too small or key is none. ipv6Prefix is the rules'.
// It allocates nothing.
func CutKey(dst, key []byte, ipv6Prefix int) (n int) {
	for _, most := range [...]int{80, 40, 20, 8} {
		if n = cutKey(dst, key, ipv6Prefix, most); n > 0 {
			return n
		}
	}
	return 0
}

func cutKey(dst, key []byte, ipv6Prefix, most int) (n int) {
	for len(key) > 0 {
		tag, read := binary.Uvarint(key)
		if read <= 0 {
			return 0
		}
		head, size, keep := read, 0, 0
		switch tag & 3 {
		case tagText:
			length, more := binary.Uvarint(key[read:])
			if more <= 0 || length > maxKeyValue {
				return 0
			}
			head, size = read+more, int(length)
			if keep = min(size, most); keep < size {
				for at := head + keep; keep > 0 && at < len(key) && !utf8.RuneStart(key[at]); at-- {
					keep--
				}
			}
		case tagHash:
			size, keep = 32, 32
		case tagIPv4:
			size, keep = 4, 4
		case tagIPv6:
			size = (ipv6Prefix + 7) / 8
			keep = size
		}
		if len(key) < head+size || len(dst) < n+head+keep {
			return 0
		}
		n += copy(dst[n:], key[:read])
		if tag&3 == tagText {
			n += binary.PutUvarint(dst[n:], uint64(keep))
		}
		n += copy(dst[n:], key[head:head+keep])
		key = key[head+size:]
	}
	return n
}
