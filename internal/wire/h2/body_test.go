package h2

import (
	"bytes"
	"testing"

	property "pgregory.net/rapid"
)

// TestParts: a body is read as it came in, whatever its frames and the reads are, takes little more
// memory than what of it is unread, and is counted.
func TestParts(t *testing.T) {
	property.Check(t, func(rt *property.T) {
		s := New(Options{MaxBuffered: 1 << 30})
		st, b := newBody(s)
		c := b.c
		frame := property.OneOf(property.IntRange(1, 4), property.IntRange(1, 3000), property.IntRange(1, maxFrame),
			property.SampledFrom([]int{minPart, minPart + 1, maxFrame/4 + 1, maxFrame / 2, maxFrame/2 + 1, maxFrame}))
		var unread []byte
		next, read := byte(0), false
		for range property.IntRange(1, 60).Draw(rt, "steps") {
			if property.Bool().Draw(rt, "feed") {
				p := make([]byte, frame.Draw(rt, "frame"))
				for i := range p {
					p[i] = next
					next = next*5 + 3
				}
				c.feed(st, p)
				unread = append(unread, p...)
			} else if len(unread) > 0 {
				p := make([]byte, frame.Draw(rt, "read"))
				n, err := b.Read(p)
				if n != min(len(p), len(unread)) || err != nil || !bytes.Equal(p[:n], unread[:n]) {
					rt.Fatalf("%d bytes of %d are read, %v, or others than came", n, len(unread), err)
				}
				unread, read = unread[n:], true
			}
			kept := st.kept()
			if st.unread != len(unread) || c.unread != len(unread) {
				rt.Fatalf("%d and %d bytes are counted as unread, of %d", st.unread, c.unread, len(unread))
			}
			if st.held != kept || c.held != kept || s.held.Load() != int64(kept) {
				rt.Fatalf("%d, %d, %d bytes are counted as held, of %d", st.held, c.held, s.held.Load(), kept)
			}
			most := len(unread) + 2*maxFrame // of which the first is partly read, and the last partly filled
			if !read {
				// The last one is at most twice the one before, which is full, or what is in it.
				most = min(most, 3*len(unread)+minPart)
			}
			if kept > most {
				rt.Fatalf("%d bytes are kept for %d", kept, len(unread))
			}
		}
		// What is left is given back with the stream.
		c.streams = map[uint32]*stream{1: st}
		c.close(st)
		if st.parts != nil || st.lastPart != nil || c.unread != 0 || c.held != 0 || s.held.Load() != 0 {
			rt.Fatalf("after the end %d bytes are counted as unread, %d as held", c.unread, s.held.Load())
		}
	})
}

// newBody returns the body of a stream whose client is away.
func newBody(s *Server) (*stream, *body) {
	c := &conn{s: s}
	c.recvWindow = connWindow
	c.writing = true // by somebody else, as it were
	st := &stream{id: 1, request: &request{}}
	st.cond.L = &c.mu
	return st, &body{c: c, st: st}
}

// kept is the memory of the unread bytes of a body. conn.mu must be held.
func (st *stream) kept() (n int) {
	for p := st.parts; p != nil; p = p.next {
		n += cap(p.b)
	}
	return n
}
