// Package pack writes values into bytes, and reads them back, by the same functions: so that what
// writes and what reads cannot differ.
package pack

import (
	"encoding/binary"
	"math"
	"time"
)

// Coder writes or reads values. A reader fails for good at the first value that is not there or is
// out of bounds. Make one with Writer or Reader.
type Coder struct {
	b      []byte
	writes bool
	failed bool
}

// Writer returns a Coder that appends to b.
func Writer(b []byte) *Coder { return &Coder{b: b, writes: true} }

// Reader returns a Coder that reads b.
func Reader(b []byte) *Coder { return &Coder{b: b} }

// Bytes returns what was written so far, or what is still to be read.
func (c *Coder) Bytes() []byte { return c.b }

// Reads reports whether the Coder reads.
func (c *Coder) Reads() bool { return !c.writes }

// Failed reports whether reading failed.
func (c *Coder) Failed() bool { return c.failed }

// ReadAll reports whether everything was read, and nothing failed.
func (c *Coder) ReadAll() bool { return !c.failed && len(c.b) == 0 }

// Fail ends reading: everything read so far is useless. Writing never fails.
func (c *Coder) Fail() {
	if !c.writes {
		c.failed, c.b = true, nil
	}
}

// Uint codes a number that is small as a rule.
func (c *Coder) Uint(v *uint64) {
	if c.writes {
		c.b = binary.AppendUvarint(c.b, *v)
		return
	}
	x, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.Fail()
		return
	}
	*v, c.b = x, c.b[n:]
}

// Int codes a number that is near 0 as a rule.
func (c *Coder) Int(v *int64) {
	x := uint64(*v)<<1 ^ uint64(*v>>63)
	c.Uint(&x)
	*v = int64(x>>1) ^ -int64(x&1)
}

// Number codes a number of any type.
func Number[T ~int | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64](c *Coder, v *T) {
	x := int64(*v)
	c.Int(&x)
	*v = T(x)
}

// Size codes the capacity of a list, at most most.
func (c *Coder) Size(v *int, most int) {
	if Number(c, v); *v < 0 || *v > most {
		c.Fail()
	}
}

// Fixed codes a number whose values are all equally likely.
func (c *Coder) Fixed(v *uint64) {
	if c.writes {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
		return
	}
	if len(c.b) < 8 {
		c.Fail()
		return
	}
	*v, c.b = binary.LittleEndian.Uint64(c.b), c.b[8:]
}

// Float codes a number that JSON can hold. An infinity or NaN is written as 0, and makes reading
// fail.
func (c *Coder) Float(v *float64) {
	x := math.Float64bits(*v)
	if c.writes && !finite(*v) {
		x = 0
	}
	if c.Fixed(&x); c.writes {
		return
	}
	if *v = math.Float64frombits(x); !finite(*v) {
		*v = 0
		c.Fail()
	}
}

// Float32 is Float for 32 bits.
func (c *Coder) Float32(v *float32) {
	x := uint64(math.Float32bits(*v))
	if c.writes && !finite(float64(*v)) {
		x = 0
	}
	if c.Uint(&x); c.writes {
		return
	}
	if *v = math.Float32frombits(uint32(x)); !finite(float64(*v)) {
		*v = 0
		c.Fail()
	}
}

// finite reports whether JSON can hold a number.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Bool codes a truth value.
func (c *Coder) Bool(v *bool) {
	x := uint64(0)
	if *v {
		x = 1
	}
	c.Uint(&x)
	*v = x != 0
}

// Text codes a string.
func (c *Coder) Text(v *string) {
	n := uint64(len(*v))
	c.Uint(&n)
	if c.writes {
		c.b = append(c.b, *v...)
		return
	}
	if n > uint64(len(c.b)) {
		c.Fail()
		return
	}
	*v, c.b = string(c.b[:n]), c.b[n:]
}

// LastSecond is the end of the year 9999, to which JSON writes dates.
const LastSecond = 253_402_300_799

// Instant codes Unix seconds, which JSON can hold as a date.
func (c *Coder) Instant(v *int64) {
	if c.Int(v); *v < 0 || *v > LastSecond {
		c.Fail()
	}
}

// Time codes an instant in µs, which JSON can hold as a date.
func (c *Coder) Time(v *time.Time) {
	x := v.UnixMicro()
	c.Int(&x)
	if c.writes {
		return
	}
	if *v = time.UnixMicro(x).UTC(); v.Year() < 1 || v.Year() > 9999 {
		c.Fail()
	}
}

// Slice codes a slice of at most most elements by f; a reader rejects more. Each element takes at
// least one byte, so no length makes a reader use more memory than it was sent. If the slice is
// empty, the reader gets nil.
func Slice[T any](c *Coder, list *[]T, most int, f func(*T)) {
	n := uint64(len(*list))
	c.Uint(&n)
	if c.writes {
		for i := range *list {
			f(&(*list)[i])
		}
		return
	}
	if n > uint64(len(c.b)) || n > uint64(most) {
		c.Fail()
		return
	}
	*list = nil
	for range n {
		if c.failed {
			return
		}
		var x T
		f(&x)
		*list = append(*list, x)
	}
}
