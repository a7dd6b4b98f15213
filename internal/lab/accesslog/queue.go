package accesslog

import (
	"encoding/binary"
	"fmt"
	"os"
)

// queue is a first-in, first-out queue of encoded entries. It keeps them in chunks; when more than
// memoryChunks are full, further ones go to a temporary file until it is their turn.
type queue struct {
	newest int64 // time of the last entry that was pushed
	head   []byte
	pos    int      // of the next entry in head
	ready  [][]byte // full chunks in memory, in order, that come after head
	first  int      // index of the next in ready
	spill  []int    // lengths of the chunks in the file, in order, that come after those
	from   int64    // offset of the first of them
	to     int64    // where the next is written
	tail   []byte   // the chunk that is being filled; comes last
	free   [][]byte
	file   *os.File
}

const (
	chunkSize    = 256 << 10
	memoryChunks = 32
	recordHead   = 12 // time and length
)

// room returns the tail with place for the head of a record: encode appends to it, and push
// finishes the record.
func (q *queue) room() []byte {
	if q.tail == nil {
		q.tail = q.chunk()
	}
	var head [recordHead]byte
	return append(q.tail, head[:]...)
}

func (q *queue) chunk() []byte {
	if n := len(q.free); n > 0 {
		b := q.free[n-1]
		q.free = q.free[:n-1]
		return b[:0]
	}
	return make([]byte, 0, chunkSize)
}

// push adds the record that was encoded onto room.
func (q *queue) push(t int64, tail []byte) error {
	start := len(q.tail)
	binary.LittleEndian.PutUint64(tail[start:], uint64(t))
	binary.LittleEndian.PutUint32(tail[start+8:], uint32(len(tail)-start-recordHead))
	q.tail = tail
	if len(tail) < chunkSize*3/4 {
		return nil
	}
	q.tail = nil
	if len(q.spill) == 0 && len(q.ready)-q.first < memoryChunks {
		q.ready = append(q.ready, tail)
		return nil
	}
	err := q.write(tail)
	q.recycle(tail)
	return err
}

func (q *queue) write(b []byte) error {
	if q.file == nil {
		f, err := os.CreateTemp("", "weir-replay-*")
		if err != nil {
			return fmt.Errorf("a temporary file for lines that wait for their turn: %w", err)
		}
		os.Remove(f.Name()) // where a file in use cannot be removed, close does it
		q.file = f
	}
	if _, err := q.file.WriteAt(b, q.to); err != nil {
		return fmt.Errorf("a temporary file for lines that wait for their turn: %w", err)
	}
	q.spill = append(q.spill, len(b))
	q.to += int64(len(b))
	return nil
}

func (q *queue) recycle(b []byte) {
	if cap(b) >= chunkSize && cap(b) <= 2*chunkSize && len(q.free) < 4 {
		q.free = append(q.free, b)
	}
}

// advance makes head the chunk with the next record; it returns false if there is none.
func (q *queue) advance() (bool, error) {
	for q.pos == len(q.head) {
		switch {
		case q.first < len(q.ready):
			q.recycle(q.head)
			q.head, q.pos = q.ready[q.first], 0
			q.ready[q.first] = nil
			if q.first++; q.first == len(q.ready) {
				q.ready, q.first = q.ready[:0], 0
			}
		case len(q.spill) > 0:
			n := q.spill[0]
			if cap(q.head) < n {
				q.head = make([]byte, 0, n)
			}
			q.head, q.pos = q.head[:n], 0
			if _, err := q.file.ReadAt(q.head, q.from); err != nil {
				return false, fmt.Errorf("a temporary file for lines that wait for their turn: %w", err)
			}
			q.from += int64(n)
			if q.spill = q.spill[1:]; len(q.spill) == 0 {
				q.spill, q.from, q.to = nil, 0, 0
			}
		case len(q.tail) > 0:
			q.recycle(q.head)
			q.head, q.pos, q.tail = q.tail, 0, nil
		default:
			return false, nil
		}
	}
	return true, nil
}

// peek returns the time of the first record; ok is false if the queue is empty.
func (q *queue) peek() (t int64, ok bool) {
	if q.pos < len(q.head) {
		return int64(binary.LittleEndian.Uint64(q.head[q.pos:])), true
	}
	switch {
	case q.first < len(q.ready):
		return int64(binary.LittleEndian.Uint64(q.ready[q.first])), true
	case len(q.spill) > 0:
		// pop reports the error of reading, should there be one.
		if ok, err := q.advance(); !ok || err != nil {
			return 0, true
		}
		return int64(binary.LittleEndian.Uint64(q.head[q.pos:])), true
	case len(q.tail) > 0:
		return int64(binary.LittleEndian.Uint64(q.tail)), true
	}
	return 0, false
}

// pop returns the first record, valid until the next pop.
func (q *queue) pop() (t int64, data []byte, err error) {
	if ok, err := q.advance(); err != nil || !ok {
		return 0, nil, err
	}
	t = int64(binary.LittleEndian.Uint64(q.head[q.pos:]))
	n := int(binary.LittleEndian.Uint32(q.head[q.pos+8:]))
	data = q.head[q.pos+recordHead : q.pos+recordHead+n]
	q.pos += recordHead + n
	return t, data, nil
}

func (q *queue) close() {
	if q.file != nil {
		name := q.file.Name()
		q.file.Close()
		os.Remove(name)
		q.file = nil
	}
}
