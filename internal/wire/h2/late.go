package h2

// turn turns a call away.
func (c *conn) turn(st *stream) {
	out, status := c.s.o.Turn(c.scratch[:0])
	c.s.o.Line.Turned(1)
	c.reply(st, out, status)
	c.scratch = out
}
