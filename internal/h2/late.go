package h2

import (
	"time"

	"github.com/weir-rl/weir/internal/shed"
)

// lateness is what a connection knows of the time that its calls stand in line. Beside the line of
// the process, which Options.Line knows, they stand behind each other: a batch of a thousand may
// take long, where rules are many. The zero value is ready.
type lateness struct {
	looked int  // calls of the batch
	untold int  // calls that Options.Line has not heard of
	now    bool // those at hand are late
	own    shed.Control
}

// lookEvery is how many calls are taken between two looks at the clock.
const lookEvery = 16

// isLate reports whether the call at hand has stood in line for too long.
func (c *conn) isLate() bool {
	l := &c.late
	if l.looked == 0 {
		c.now() // when the batch began
	}
	l.untold++
	if l.looked%lookEvery == 0 {
		l.now = c.s.o.Line.Late(l.untold) ||
			l.looked > 0 && l.own.Overloaded() && time.Since(c.batch) > c.s.o.Line.Bound()
		l.untold = 0
	}
	l.looked++
	return l.now
}

// noteBatch takes a reading of how long the last calls of a batch waited for those before.
func (c *conn) noteBatch() {
	l := &c.late
	if l.looked == 0 {
		return
	}
	if l.looked > lookEvery || l.own.Overloaded() {
		now := time.Now()
		l.own.Read(now, now.Sub(c.batch), c.s.o.Line.Bound())
	} else {
		l.own = shed.Control{}
	}
	l.looked, l.now = 0, false
}

// turn turns a call away.
func (c *conn) turn(st *stream) {
	out, status := c.s.o.Turn(c.scratch[:0])
	c.s.o.Line.Turned(1)
	c.reply(st, out, status)
	c.scratch = out
}
