package h2

import (
	"hash/maphash"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// The fields of answers that are alike from one to the next are put into the client's dynamic table
// (RFC 7541, 2.3.2), so that they take a byte or two. Their names are listed here: no field that
// may be a secret is among them, since a table that several users' answers go through shows whether
// a value is in it (7.1.3). hpack.Encoder would put every field there, those that change with each
// answer as well, and looks each up in two maps: its answers take more time.

// fieldCode holds facts about a name of fields.
type fieldCode struct {
	static byte // its index in the static table; 0 for none
	shared byte // its index in sharedNames; 0 if its values do not go into the dynamic table
}

// slot is a field in the client's dynamic table. The zero value is none.
type slot struct {
	value  string
	number int    // as of encoder.inserted
	from   int    // encoder.total before it
	other  uint64 // the hash of the last value that was another
}

// slots hold the names in sharedNames.
type slots [len(sharedNames)]slot

const (
	// tableBytes is the size of the table, which a client has unless it says otherwise.
	tableBytes = 4096
	// maxSharedValue bounds the values in it.
	maxSharedValue = 256
)

var valueSeed = maphash.MakeSeed()

// sharedField is a field whose encoding depends on the contents of the table.
type sharedField struct {
	code  fieldCode
	value string
}

// appendShared appends a field, and may put it into the table: when it has none of this name, or
// when a value comes for the second time. So one that is another each time only lends its name.
func (e *encoder) appendShared(b []byte, f sharedField) []byte {
	name := sharedNames[f.code.shared]
	if e.literal || e.unary {
		return appendName(b, 0, 4, int(f.code.static), name, f.value)
	}
	if e.slots == nil {
		e.slots = new(slots)
	}
	s := &e.slots[f.code.shared]
	index := 0
	if s.number > 0 && e.total-s.from <= tableBytes {
		index = e.index(s.number)
		if s.value == f.value {
			return appendInt(append(b, 0x80), 7, index)
		}
	}
	named := int(f.code.static)
	if named == 0 {
		named = index
	}
	hash := maphash.String(valueSeed, f.value)
	if len(f.value) > maxSharedValue || index > 0 && s.other != hash {
		s.other = hash
		return appendName(b, 0, 4, named, name, f.value)
	}
	e.inserted++
	// A copy, since the value may be a piece of a whole header.
	*s = slot{value: strings.Clone(f.value), number: e.inserted, from: e.total}
	e.total += len(name) + len(f.value) + 32
	return appendName(b, 0x40, 6, named, name, f.value)
}

// appendName appends a literal field: its kind, in whose byte there are so many bits for the index
// of the name, that index or 0, the name for that case, and the value.
func appendName(b []byte, kind byte, bits, index int, name, value string) []byte {
	b = appendInt(append(b, kind), bits, index)
	if index == 0 {
		b = appendString(b, name)
	}
	return appendString(b, value)
}

// appendString appends a string, by Huffman's code if that is shorter.
func appendString(b []byte, s string) []byte {
	if n := int(hpack.HuffmanEncodeLength(s)); n < len(s) {
		return hpack.AppendHuffmanString(appendInt(append(b, 0x80), 7, n), s)
	}
	return append(appendInt(append(b, 0), 7, len(s)), s...)
}
