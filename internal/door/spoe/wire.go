package spoe

import (
	"net/netip"
	"strconv"

	"github.com/weir-rl/weir/internal/util/clientip"
)

// The data types of the protocol: the low four bits of a value's first byte.
const (
	typeNull = iota
	typeBool
	typeInt32
	typeUint32
	typeInt64
	typeUint64
	typeIPv4
	typeIPv6
	typeString
	typeBinary
)

// flagTrue is the flag, beside the type, of a boolean that is true.
const flagTrue = 0x10

// value is one item of typed data.
type value struct {
	kind   byte
	truth  bool   // of a boolean
	number uint64 // of an integer
	text   string // of a string or binary, and the bytes of an address
}

// varintAt reads the variable-length integer at the start of s; n is how many bytes it has, 0 if
// there is none, or one beyond 64 bits.
func varintAt(s string) (v uint64, n int) {
	if s == "" {
		return 0, 0
	}
	v = uint64(s[0])
	if v < 0xf0 {
		return v, 1
	}
	shift := 4
	for n = 1; n < len(s); n++ {
		b := uint64(s[n])
		if shift > 60 || shift == 60 && b > 0xf {
			return 0, 0
		}
		sum := v + b<<shift
		if sum < v {
			return 0, 0
		}
		v = sum
		if b < 0x80 {
			return v, n + 1
		}
		shift += 7
	}
	return 0, 0
}

// appendVarint appends v as a variable-length integer.
func appendVarint(b []byte, v uint64) []byte {
	if v < 0xf0 {
		return append(b, byte(v))
	}
	b = append(b, byte(v)|0xf0)
	for v = (v - 0xf0) >> 4; v >= 0x80; v = (v - 0x80) >> 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}

// varintSize is how many bytes appendVarint appends.
func varintSize(v uint64) int {
	if v < 0xf0 {
		return 1
	}
	n := 2
	for v = (v - 0xf0) >> 4; v >= 0x80; v = (v - 0x80) >> 7 {
		n++
	}
	return n
}

// cutText cuts a string with its length off s.
func cutText(s string) (text, rest string, ok bool) {
	size, n := varintAt(s)
	if n == 0 || size > uint64(len(s)-n) {
		return "", s, false
	}
	s = s[n:]
	return s[:size], s[size:], true
}

// cutValue cuts an item of typed data off s. Flags without a meaning are ignored, types without one
// are not.
func cutValue(s string) (v value, rest string, ok bool) {
	if s == "" {
		return value{}, s, false
	}
	v.kind = s[0] & 0x0f
	flags := s[0] & 0xf0
	s = s[1:]
	size := 0
	switch v.kind {
	case typeNull:
		return v, s, true
	case typeBool:
		v.truth = flags&flagTrue != 0
		return v, s, true
	case typeInt32, typeUint32, typeInt64, typeUint64:
		number, n := varintAt(s)
		v.number = number
		return v, s[n:], n > 0
	case typeString, typeBinary:
		v.text, s, ok = cutText(s)
		return v, s, ok
	case typeIPv4:
		size = 4
	case typeIPv6:
		size = 16
	default:
		return value{}, s, false
	}
	if len(s) < size {
		return value{}, s, false
	}
	v.text = s[:size]
	return v, s[size:], true
}

// integer returns the number that v is, as HAProxy means it: signed unless it says otherwise. ok is
// false if v is no integer or does not fit an int64.
func (v *value) integer() (n int64, ok bool) {
	switch v.kind {
	case typeInt32:
		return int64(int32(v.number)), true
	case typeInt64:
		return int64(v.number), true
	case typeUint32, typeUint64:
		return int64(v.number), int64(v.number) >= 0
	}
	return 0, false
}

// appendTo appends v as text: numbers in decimals, addresses in their canonical form (one of IPv6
// that stands for IPv4 as that), strings and binary data as they are.
func (v *value) appendTo(b []byte) []byte {
	switch v.kind {
	case typeBool:
		return strconv.AppendBool(b, v.truth)
	case typeInt32, typeInt64:
		n, _ := v.integer()
		return strconv.AppendInt(b, n, 10)
	case typeUint32, typeUint64:
		return strconv.AppendUint(b, v.number, 10)
	case typeIPv4:
		return netip.AddrFrom4([4]byte([]byte(v.text))).AppendTo(b)
	case typeIPv6:
		return clientip.Addr(netip.AddrFrom16([16]byte([]byte(v.text)))).AppendTo(b)
	}
	return append(b, v.text...)
}
