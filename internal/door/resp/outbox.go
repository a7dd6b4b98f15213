package resp

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// outbox writes answers beside the goroutine that reads commands, for clients that send more than
// the network holds before they read. It holds at most maxUnread bytes.
type outbox struct {
	c    *conn
	done chan struct{}

	mu     sync.Mutex
	change sync.Cond // bytes have gone, or come, or it is closed
	chunks net.Buffers
	taken  int // bytes of memory of the chunks
	bytes  int // in chunks, or being written
	err    error
	closed bool
}

// handOn gives the answers to the outbox. It waits while that is full.
func (c *conn) handOn() error {
	o := c.outbox
	if o == nil {
		o = &outbox{c: c, done: make(chan struct{})}
		o.change.L = &o.mu
		c.outbox = o
		go o.run()
	}
	if c.outTaken == 0 {
		if c.outTaken = cap(c.out); !c.take(c.outTaken) {
			c.outTaken = 0
			return errMemory
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.bytes > 0 && o.bytes+len(c.out) > maxUnread && o.err == nil {
		o.change.Wait()
	}
	if o.err != nil {
		return o.err
	}
	o.chunks = append(o.chunks, c.out)
	o.bytes += len(c.out)
	o.taken += c.outTaken
	c.out, c.outTaken = nil, 0
	c.writeUntil = time.Time{} // the outbox sets deadlines of its own
	o.change.Broadcast()
	return nil
}

func (o *outbox) idle() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes == 0
}

func (o *outbox) run() {
	defer close(o.done)
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		for len(o.chunks) == 0 && !o.closed {
			o.change.Wait()
		}
		if len(o.chunks) == 0 {
			return
		}
		chunks, taken := o.chunks, o.taken
		o.chunks, o.taken = nil, 0
		o.mu.Unlock()
		err := o.c.nc.SetWriteDeadline(time.Now().Add(o.c.o.Stall))
		n := int64(0)
		if err == nil {
			n, err = chunks.WriteTo(o.c.nc)
		}
		o.c.giveBack(taken)
		o.mu.Lock()
		o.bytes -= int(n)
		if err != nil {
			if o.err = err; errors.Is(err, os.ErrDeadlineExceeded) {
				o.err = errUnread
			}
			o.c.giveBack(o.taken)
			o.chunks, o.taken = nil, 0
			o.change.Broadcast()
			_ = o.c.nc.Close() // wakes the reader
			return
		}
		o.change.Broadcast()
	}
}

// close waits until all is written, or cannot be.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed = true
	o.change.Broadcast()
	o.mu.Unlock()
	<-o.done
}
