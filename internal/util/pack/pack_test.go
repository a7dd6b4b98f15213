package pack

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"
)

// Numbers that JSON cannot hold are not read.
func TestNumbers(t *testing.T) {
	for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		c := Writer(nil)
		x := math.Float64bits(bad)
		c.Fixed(&x)
		in := Reader(c.Bytes())
		if in.Float(new(float64)); !in.Failed() {
			t.Errorf("%v is read", bad)
		}
		c = Writer(nil)
		x = uint64(math.Float32bits(float32(bad)))
		c.Uint(&x)
		in = Reader(c.Bytes())
		if in.Float32(new(float32)); !in.Failed() {
			t.Errorf("%v is read, of 32 bits", bad)
		}
	}
}

// What is written is read as it was, and what is cut off anywhere is not.
func TestRoundTrip(t *testing.T) {
	type values struct {
		u    uint64
		i    int64
		n    uint8
		f    float64
		g    float32
		b    bool
		s    string
		at   time.Time
		list []string
	}
	code := func(c *Coder, v *values) {
		c.Uint(&v.u)
		c.Int(&v.i)
		Number(c, &v.n)
		c.Float(&v.f)
		c.Float32(&v.g)
		c.Bool(&v.b)
		c.Text(&v.s)
		c.Time(&v.at)
		Slice(c, &v.list, 3, c.Text)
	}
	in := values{1 << 63, -5, 200, math.Pi, 0.5, true, "ö", time.UnixMicro(1e15).UTC(), []string{"a", "", "b"}}
	w := Writer([]byte("before"))
	code(w, &in)
	data := bytes.TrimPrefix(w.Bytes(), []byte("before"))
	var out values
	r := Reader(data)
	if code(r, &out); !r.ReadAll() || out.u != in.u || out.i != in.i || out.n != in.n || out.f != in.f ||
		out.g != in.g ||
		out.b != in.b || out.s != in.s || !out.at.Equal(in.at) || !slices.Equal(out.list, in.list) {
		t.Errorf("%+v, written as %+v", out, in)
	}
	for n := range data {
		r := Reader(data[:n])
		if code(r, &out); r.ReadAll() {
			t.Errorf("the first %d of %d bytes are read", n, len(data))
		}
	}
	in.list = append(in.list, "one too many")
	w = Writer(nil)
	code(w, &in)
	r = Reader(w.Bytes())
	if code(r, &out); !r.Failed() {
		t.Error("a list that is too long is read")
	}
}
