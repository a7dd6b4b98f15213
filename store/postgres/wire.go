package postgres

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/weir-rl/weir/store/cas"
)

// Types of parameters, by their OID.
const (
	oidBytea      = 17
	oidInt8       = 20
	oidText       = 25
	oidByteas     = 1001
	oidInt2s      = 1005
	oidInt4s      = 1007
	oidTexts      = 1009
	oidInt8s      = 1016
	oidInt2       = 21
	oidInt4       = 23
	binaryFormat  = 1
	nullInArray   = 0xFFFFFFFF
	maxParameters = 16
)

// params holds the parameters of a call, in PostgreSQL's binary form. They are written into one
// buffer, which is used again: a call allocates nothing for them.
type params struct {
	buf   []byte
	ends  []int // of the parameters in buf; negative: the parameter is null and ends there
	types []uint32
	list  [][]byte
}

var binaryFormats = func() (f [maxParameters]int16) {
	for i := range f {
		f[i] = binaryFormat
	}
	return f
}()

func (p *params) reset() { p.buf, p.ends, p.types = p.buf[:0], p.ends[:0], p.types[:0] }

func (p *params) end(oid uint32) { p.ends, p.types = append(p.ends, len(p.buf)), append(p.types, oid) }

// values returns the parameters; they are valid until the next is added.
func (p *params) values() [][]byte {
	p.list = p.list[:0]
	begin := 0
	for _, end := range p.ends {
		if end < 0 {
			p.list = append(p.list, nil)
			continue
		}
		p.list = append(p.list, p.buf[begin:end:end])
		begin = end
	}
	return p.list
}

func (p *params) int8(v int64) {
	p.buf = binary.BigEndian.AppendUint64(p.buf, uint64(v))
	p.end(oidInt8)
}

func (p *params) int2(v int16) {
	p.buf = binary.BigEndian.AppendUint16(p.buf, uint16(v))
	p.end(oidInt2)
}

func (p *params) null(oid uint32) { p.ends, p.types = append(p.ends, -1), append(p.types, oid) }

func (p *params) text(s string) {
	p.buf = append(p.buf, s...)
	p.end(oidText)
}

func (p *params) bytea(b []byte) {
	p.buf = append(p.buf, b...)
	p.end(oidBytea)
}

// array writes an array of n elements; f appends each behind its length.
func (p *params) array(oid, of uint32, n int, f func(i int, dst []byte) (all []byte, null bool)) {
	if n == 0 {
		p.buf = append(p.buf, 0, 0, 0, 0, 0, 0, 0, 0)
		p.buf = binary.BigEndian.AppendUint32(p.buf, of)
		p.end(oid)
		return
	}
	begin := len(p.buf)
	p.buf = append(p.buf, 0, 0, 0, 1, 0, 0, 0, 0)
	p.buf = binary.BigEndian.AppendUint32(p.buf, of)
	p.buf = binary.BigEndian.AppendUint32(p.buf, uint32(n))
	p.buf = append(p.buf, 0, 0, 0, 1)
	for i := range n {
		at := len(p.buf)
		p.buf = append(p.buf, 0, 0, 0, 0)
		all, null := f(i, p.buf)
		if p.buf = all; null {
			p.buf[begin+7] = 1
			binary.BigEndian.PutUint32(p.buf[at:], nullInArray)
		} else {
			binary.BigEndian.PutUint32(p.buf[at:], uint32(len(p.buf)-at-4))
		}
	}
	p.end(oid)
}

func (p *params) int8s(n int, f func(i int) int64) {
	p.array(oidInt8s, oidInt8, n, func(i int, dst []byte) ([]byte, bool) {
		return binary.BigEndian.AppendUint64(dst, uint64(f(i))), false
	})
}

func (p *params) int4s(n int, f func(i int) int32) {
	p.array(oidInt4s, oidInt4, n, func(i int, dst []byte) ([]byte, bool) {
		return binary.BigEndian.AppendUint32(dst, uint32(f(i))), false
	})
}

func (p *params) int2s(n int, f func(i int) int16) {
	p.array(oidInt2s, oidInt2, n, func(i int, dst []byte) ([]byte, bool) {
		return binary.BigEndian.AppendUint16(dst, uint16(f(i))), false
	})
}

func (p *params) texts(all []string) {
	p.array(oidTexts, oidText, len(all),
		func(i int, dst []byte) ([]byte, bool) { return append(dst, all[i]...), false })
}

// byteas writes an array of n elements, which f appends.
func (p *params) byteas(n int, f func(i int, dst []byte) (all []byte, null bool)) {
	p.array(oidByteas, oidBytea, n, f)
}

var errReply = errors.New("postgres store: a reply has another form than was asked for")

// number reads a bigint of a reply.
func number(column []byte) (int64, error) {
	if len(column) != 8 {
		return 0, errReply
	}
	return int64(binary.BigEndian.Uint64(column)), nil
}

// readOne reads the row that one_NAME returns as a value: an instant, whether the change was made,
// and else the value. Each field has a type and a length before it.
func readOne(row []byte) (clock int64, done bool, v cas.Value, err error) {
	fields, err := readRow(row, 4)
	if err != nil {
		return 0, false, v, err
	}
	if clock, err = number(fields[0]); err != nil || len(fields[1]) != 1 {
		return 0, false, v, errReply
	}
	if done = fields[1][0] == 1; done {
		return clock, true, v, nil
	}
	version, err := number(fields[2])
	if v.Version = uint64(version); version != 0 {
		v.Data = bytes.Clone(fields[3])
	}
	return clock, false, v, err
}

// readRow reads the fields of a row that is a value; those that are null are nil.
func readRow(row []byte, n int) ([][]byte, error) {
	if len(row) < 4 || binary.BigEndian.Uint32(row) != uint32(n) {
		return nil, errReply
	}
	row = row[4:]
	fields := make([][]byte, n)
	for i := range fields {
		if len(row) < 8 {
			return nil, errReply
		}
		size := int32(binary.BigEndian.Uint32(row[4:]))
		if row = row[8:]; size < 0 {
			continue
		}
		if int(size) > len(row) {
			return nil, errReply
		}
		fields[i], row = row[:size], row[size:]
	}
	return fields, nil
}
