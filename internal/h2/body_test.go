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
		c := &conn{s: s}
		c.writing = true // by somebody else, as it were: there is no client
		c.recvWindow = connWindow
		st := &stream{id: 1, request: &request{}}
		st.cond.L = &c.mu
		b := &body{c: c, st: st}
		frame := property.OneOf(property.IntRange(1, 4), property.IntRange(1, 3000), property.IntRange(1, maxFrame),
			property.SampledFrom([]int{minPart, maxFrame/4 + 1, maxFrame / 2, maxFrame/2 + 1, maxFrame}))
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
			if st.unread != len(unread) || c.unread != len(unread) || st.held != len(unread) || s.held.Load() != int64(len(unread)) {
				rt.Fatalf("%d, %d, %d, %d bytes are counted of %d", st.unread, c.unread, st.held, s.held.Load(), len(unread))
			}
			most := len(unread) + 2*maxFrame // of which the first is partly read, and the last partly filled
			if !read {
				// The last one is less than four times the one before, which is full.
				most = min(most, 5*len(unread)+minPart)
			}
			if kept := st.kept(); kept > most {
				rt.Fatalf("%d bytes are kept for %d", kept, len(unread))
			}
		}
		// What is left is given back with the stream.
		c.streams = map[uint32]*stream{1: st}
		c.close(st)
		if st.parts != nil || st.lastPart != nil || c.unread != 0 || s.held.Load() != 0 {
			rt.Fatalf("after the end %d bytes are counted as unread, %d as held", c.unread, s.held.Load())
		}
	})
}

// kept is the memory of what has come in of a body and is not read. conn.mu must be held.
func (st *stream) kept() (n int) {
	for p := st.parts; p != nil; p = p.next {
		n += cap(p.b)
	}
	return n
}
