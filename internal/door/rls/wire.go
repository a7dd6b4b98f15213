package rls

import (
	"errors"
	"fmt"
	"unicode/utf8"
	"unsafe"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weir-rl/weir/rule"
)

// readWire reads a RateLimitRequest without a message in between; decoding and encoding messages
// would be most of the cost of a call. Faults of the request are kept in c, so that it is answered
// with the proper code. The strings of c are parts of text.
func (c *call) readWire(text string) {
	if err := c.fromWire(text); err != nil {
		c.bad = status.Errorf(codes.InvalidArgument, "the request is no RateLimitRequest: %v", err)
	}
}

// writeWire appends the answer, a RateLimitResponse, to out.
func (c *call) writeWire(out []byte) ([]byte, error) {
	if c.service.o.ResponseHeaders || c.service.o.DynamicMetadata {
		return proto.MarshalOptions{}.MarshalAppend(out, c.toProto())
	}
	return c.appendWire(out), nil
}

var (
	errUTF8 = errors.New("a string is not valid UTF-8")
	errCut  = errors.New("a message ends early")
)

// field is one field of a message on the wire.
type field struct {
	number protowire.Number
	typ    protowire.Type
	varint uint64 // of a VarintType
	bytes  string // of a BytesType
}

// varintAt reads the varint at the start of s; n is 0 or below if there is none. It is
// protowire.ConsumeVarint for a string, which need not be copied to be cut.
func varintAt(s string) (v uint64, n int) {
	for n < len(s) && n < 10 {
		b := s[n]
		v |= uint64(b&0x7f) << (7 * n)
		n++
		if b < 0x80 {
			if n == 10 && b > 1 {
				return 0, 0
			}
			return v, n
		}
	}
	return 0, 0
}

// next cuts the first field off s, a message that is not empty.
func (f *field) next(s string) (rest string, err error) {
	tag, n := varintAt(s)
	number, typ := protowire.DecodeTag(tag)
	if n <= 0 || number < protowire.MinValidNumber || number > protowire.MaxValidNumber {
		return "", errors.New("a field's tag is invalid")
	}
	f.number, f.typ = number, typ
	s = s[n:]
	switch typ {
	case protowire.VarintType:
		f.varint, n = varintAt(s)
		if n <= 0 {
			return "", errCut
		}
		return s[n:], nil
	case protowire.BytesType:
		size, n := varintAt(s)
		if n <= 0 || size > uint64(len(s)-n) {
			return "", errCut
		}
		f.bytes = s[n : n+int(size)]
		return s[n+int(size):], nil
	default: // of no field that is known; a group may nest
		// which only reads
		n := protowire.ConsumeFieldValue(number, typ, unsafe.Slice(unsafe.StringData(s), len(s)))
		if n < 0 {
			return "", protowire.ParseError(n)
		}
		return s[n:], nil
	}
}

func (f *field) is(number protowire.Number, typ protowire.Type) bool {
	return f.number == number && f.typ == typ
}

// text is the string in f.
func (f *field) text(into *string) error {
	if !utf8.ValidString(f.bytes) {
		return errUTF8
	}
	*into = f.bytes
	return nil
}

// fromWire reads a RateLimitRequest.
func (c *call) fromWire(s string) (err error) {
	var f field
	for len(s) > 0 && err == nil {
		if s, err = f.next(s); err != nil {
			break
		}
		switch {
		case f.is(1, protowire.BytesType):
			err = f.text(&c.domain)
		case f.is(2, protowire.BytesType):
			if len(c.descriptors) == maxDescriptors {
				return tooMany("descriptors", maxDescriptors)
			}
			err = c.descriptorFromWire(f.bytes)
		case f.is(3, protowire.VarintType):
			c.hits = uint32(f.varint)
		}
	}
	return err
}

// tooMany refuses a request that holds more than is served.
func tooMany(what string, most int) error {
	return fmt.Errorf("it has too many %s: at most %d are served in one request", what, most)
}

// descriptorFromWire reads a RateLimitDescriptor.
func (c *call) descriptorFromWire(s string) (err error) {
	var f field
	var raw rawDescriptor
	first := len(c.entries)
	for len(s) > 0 && err == nil {
		if s, err = f.next(s); err != nil {
			break
		}
		switch {
		case f.is(1, protowire.BytesType):
			if len(c.entries) == maxEntries {
				return tooMany("entries", maxEntries)
			}
			err = c.entryFromWire(f.bytes)
		case f.is(2, protowire.BytesType):
			raw.override = true
			err = raw.limitFromWire(f.bytes)
		case f.is(3, protowire.BytesType):
			raw.hasHits = true
			err = raw.hitsFromWire(f.bytes)
		case f.is(4, protowire.VarintType):
			raw.negative = f.varint != 0
		}
	}
	c.add(first, raw)
	return err
}

// add ends a descriptor, whose entries are those from first on.
func (c *call) add(first int, raw rawDescriptor) {
	c.descriptors = append(c.descriptors, rule.Descriptor{Entries: c.entries[first:len(c.entries):len(c.entries)]})
	c.raw = append(c.raw, raw)
}

func (c *call) entryFromWire(s string) (err error) {
	var f field
	var e rule.Entry
	for len(s) > 0 && err == nil {
		if s, err = f.next(s); err != nil {
			break
		}
		switch {
		case f.is(1, protowire.BytesType):
			err = f.text(&e.Key)
		case f.is(2, protowire.BytesType):
			err = f.text(&e.Value)
		}
	}
	c.entries = append(c.entries, e)
	return err
}

func (d *rawDescriptor) limitFromWire(s string) (err error) {
	var f field
	for len(s) > 0 && err == nil {
		if s, err = f.next(s); err != nil {
			break
		}
		switch {
		case f.is(1, protowire.VarintType):
			d.requests = uint32(f.varint)
		case f.is(2, protowire.VarintType):
			d.unit = uint32(f.varint)
		}
	}
	return err
}

func (d *rawDescriptor) hitsFromWire(s string) (err error) {
	var f field
	for len(s) > 0 && err == nil {
		if s, err = f.next(s); err == nil && f.is(1, protowire.VarintType) {
			d.hits = f.varint
		}
	}
	return err
}

// fromProto reads a message.
func (c *call) fromProto(m *rlspb.RateLimitRequest) {
	c.domain, c.hits = m.GetDomain(), m.GetHitsAddend()
	for _, d := range m.GetDescriptors() {
		first := len(c.entries)
		for _, e := range d.GetEntries() {
			c.entries = append(c.entries, rule.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		raw := rawDescriptor{negative: d.GetIsNegativeHits()}
		if l := d.GetLimit(); l != nil {
			raw.override, raw.requests, raw.unit = true, l.GetRequestsPerUnit(), uint32(l.GetUnit())
		}
		if h := d.GetHitsAddend(); h != nil {
			raw.hasHits, raw.hits = true, h.GetValue()
		}
		c.add(first, raw)
	}
	switch {
	case len(c.descriptors) > maxDescriptors:
		c.bad = status.Error(codes.InvalidArgument, tooMany("descriptors", maxDescriptors).Error())
	case len(c.entries) > maxEntries:
		c.bad = status.Error(codes.InvalidArgument, tooMany("entries", maxEntries).Error())
	}
}

func varintFieldSize(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func appendVarintField(b []byte, tag byte, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(append(b, tag), v)
}

// Tags of the answer's fields: number and wire type in one byte.
const (
	tag1Varint byte = 1 << 3
	tag2Varint byte = 2 << 3
	tag3Varint byte = 3 << 3
	tag2Bytes  byte = 2<<3 | 2
	tag3Bytes  byte = 3<<3 | 2
	tag4Bytes  byte = 4<<3 | 2
)

func (s *descriptorStatus) currentSize() int {
	n := varintFieldSize(uint64(s.limit)) + varintFieldSize(uint64(s.unit))
	if s.name != "" {
		n += 1 + protowire.SizeBytes(len(s.name))
	}
	return n
}

func (s *descriptorStatus) wireSize() int {
	n := varintFieldSize(uint64(s.code)) + varintFieldSize(uint64(s.remaining))
	if s.current {
		n += 1 + protowire.SizeBytes(s.currentSize())
		n += 1 + protowire.SizeBytes(varintFieldSize(uint64(s.reset)))
	}
	return n
}

// appendWire writes a RateLimitResponse of overall code and statuses.
func (c *call) appendWire(b []byte) []byte {
	b = appendVarintField(b, tag1Varint, uint64(c.overall))
	for i := range c.statuses {
		s := &c.statuses[i]
		b = protowire.AppendVarint(append(b, tag2Bytes), uint64(s.wireSize()))
		b = appendVarintField(b, tag1Varint, uint64(s.code))
		if s.current {
			b = protowire.AppendVarint(append(b, tag2Bytes), uint64(s.currentSize()))
			b = appendVarintField(b, tag1Varint, uint64(s.limit))
			b = appendVarintField(b, tag2Varint, uint64(s.unit))
			if s.name != "" {
				b = protowire.AppendString(append(b, tag3Bytes), s.name)
			}
		}
		b = appendVarintField(b, tag3Varint, uint64(s.remaining))
		if s.current {
			b = protowire.AppendVarint(append(b, tag4Bytes), uint64(varintFieldSize(uint64(s.reset))))
			b = appendVarintField(b, tag1Varint, uint64(s.reset))
		}
	}
	return b
}
