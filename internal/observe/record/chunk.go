package record

import (
	"encoding/binary"
	"errors"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-rl/weir/internal/util/chars"
)

// Chunk is a part of a stratum, compressed. It stands alone: its texts are in it.
type Chunk struct {
	Stratum  int
	Data     []byte
	From, To int64 // of its entries, in µs
	Requests int
	Size     int // before it was compressed; -1 for one that is not
}

// chunkOverhead is the memory of a chunk beside its data.
const chunkOverhead = 96

// writer writes entries into the last, open chunk of a stratum.
//
// An entry is the time and the turns since the entry before (zigzag varint, varint), flags and kind
// of client in a byte, and the client. A request goes on with hits, delay, the shape, the values,
// with flagAlso its further readings, and the descriptors. An answer goes on with the status. A
// text is its number in the chunk's table (from 1), or a 0, its length and itself, which adds it to
// the table.
type writer struct {
	buf      []byte
	table    map[string]uint32
	texts    int // bytes in table
	last     int64
	turn     uint64
	from, to int64
	requests int
}

// text writes a text by its number.
func (w *writer) text(b []byte) {
	if n, ok := w.table[chars.View(b)]; ok {
		w.buf = binary.AppendUvarint(w.buf, uint64(n))
		return
	}
	if w.table == nil {
		w.table = map[string]uint32{}
	}
	w.table[string(b)] = uint32(len(w.table) + 1)
	w.texts += len(b)
	w.buf = append(w.buf, 0)
	w.buf = binary.AppendUvarint(w.buf, uint64(len(b)))
	w.buf = append(w.buf, b...)
}

func (w *writer) add(e *entry, turn uint64) {
	if w.from == 0 {
		w.from, w.last = e.time, 0
	}
	w.to = max(w.to, e.time)
	w.buf = binary.AppendVarint(w.buf, e.time-w.last)
	w.buf = binary.AppendUvarint(w.buf, turn-w.turn)
	w.last, w.turn = e.time, turn
	w.buf = append(w.buf, e.flags|e.kind<<flagBits)
	var client [8]byte
	binary.LittleEndian.PutUint64(client[:], e.client)
	w.text(client[:])
	w.buf = binary.AppendVarint(w.buf, e.hits)
	if e.flags&flagAnswer != 0 {
		return
	}
	w.requests++
	w.buf = binary.AppendVarint(w.buf, e.delay)
	w.text(e.shape)
	r := reader{b: e.values, ok: true}
	for len(r.b) > 0 {
		w.text(r.take(r.uvarint()))
	}
	if e.flags&flagAlso != 0 {
		w.text(e.also)
	}
	w.text(e.descriptors)
}

// held returns the memory of the open chunk: the texts are both in the buffer and in the table.
func (w *writer) held() int64 { return int64(cap(w.buf) + w.texts + 64*len(w.table)) }

// close returns the open chunk, and begins a new one.
func (w *writer) close(z *zstd.Encoder) Chunk {
	c := Chunk{Data: z.EncodeAll(w.buf, nil), From: w.from, To: w.to, Requests: w.requests, Size: len(w.buf)}
	c.Data = append(make([]byte, 0, len(c.Data)), c.Data...) // EncodeAll leaves room behind
	*w = writer{buf: w.buf[:0]}                              // a map would keep its room
	return c
}

var errBroken = errors.New("a chunk of the record is broken")

// decoder reads the entries of a chunk. An entry is valid until the next one is read.
type decoder struct {
	r     reader
	table []string
	last  int64
	turn  uint64
}

func (d *decoder) open(raw []byte) {
	d.r = reader{b: raw, ok: true}
	d.table, d.last, d.turn = d.table[:0], 0, 0
}

// text returns a text that shares the memory of the chunk.
func (d *decoder) text() string {
	n := d.r.uvarint()
	if n == 0 {
		b := d.r.take(d.r.uvarint())
		s := chars.View(b)
		d.table = append(d.table, s)
		return s
	}
	if n > uint64(len(d.table)) {
		d.r.fail()
		return ""
	}
	return d.table[n-1]
}

// next reads an entry into e, whose values it reuses. It reports whether there was one.
func (d *decoder) next(e *Request, shapes *shapes) (bool, error) {
	if len(d.r.b) == 0 {
		return false, nil
	}
	e.Time = d.last + d.r.varint()
	d.turn += d.r.uvarint()
	d.last, e.turn = e.Time, d.turn
	flags := d.r.byte()
	e.flags, e.kind = flags&(1<<flagBits-1), flags>>flagBits
	client := d.text()
	if len(client) != 8 {
		return false, errBroken
	}
	e.Client = binary.LittleEndian.Uint64([]byte(client))
	e.Hits = d.r.varint()
	e.values, e.delay, e.shape, e.also, e.descriptors = e.values[:0], 0, nil, "", ""
	if e.flags&flagAnswer == 0 {
		e.delay = d.r.varint()
		e.shape = shapes.of(d.text())
		if e.shape == nil {
			return false, errBroken
		}
		for range e.shape.names {
			e.values = append(e.values, d.text())
		}
		if e.flags&flagAlso != 0 {
			e.also = d.text()
		}
		e.descriptors = d.text()
	}
	if !d.r.ok {
		return false, errBroken
	}
	return true, nil
}
