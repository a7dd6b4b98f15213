package record

import (
	"errors"

	"github.com/klauspost/compress/zstd"
)

// stream reads the chunks of a stratum of one node.
type stream struct {
	chunks []Chunk
	raw    []byte
	d      decoder
	e      Request
	ok     bool
}

// Reader reads requests of several streams in order of time. Not safe for concurrent use.
type Reader struct {
	streams []*stream
	shapes  shapes
	z       *zstd.Decoder
	last    *stream
}

// NewReader returns a Reader of streams, as Record.Streams returns them. Close frees it.
func NewReader(lists [][]Chunk) (*Reader, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(16<<20))
	if err != nil {
		return nil, err
	}
	m := &Reader{z: z}
	for _, chunks := range lists {
		s := &stream{chunks: chunks}
		if err := m.advance(s); err != nil {
			z.Close()
			return nil, err
		}
		m.streams = append(m.streams, s)
	}
	return m, nil
}

// advance reads the next entry of a stream.
func (m *Reader) advance(s *stream) (err error) {
	for {
		if s.ok, err = s.d.next(&s.e, &m.shapes); s.ok || err != nil || len(s.chunks) == 0 {
			return err
		}
		c := &s.chunks[0]
		if c.Size < 0 { // an open one
			s.raw = c.Data
		} else if s.raw, err = m.z.DecodeAll(c.Data, s.raw[:0]); err != nil {
			return errors.Join(errBroken, err)
		}
		s.chunks = s.chunks[1:]
		s.d.open(s.raw)
	}
}

// Next returns the next request or answer, valid until the next call; nil if there is none.
func (m *Reader) Next() (*Request, error) {
	if m.last != nil {
		if err := m.advance(m.last); err != nil {
			return nil, err
		}
	}
	m.last = nil
	for _, s := range m.streams {
		if s.ok && (m.last == nil || s.e.Time < m.last.e.Time ||
			s.e.Time == m.last.e.Time && s.e.turn < m.last.e.turn) {
			m.last = s
		}
	}
	if m.last == nil {
		return nil, nil
	}
	return &m.last.e, nil
}

// Close frees the decoder. The reader must not be used after it.
func (m *Reader) Close() { m.z.Close() }
