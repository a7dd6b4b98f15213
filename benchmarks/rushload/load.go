package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/testkit/histogram"
)

// load is one load on a door.
type load struct {
	door, address  string
	connections    int
	rate           float64 // requests a second, of all connections; 0: window under way, always
	window         int     // with rate, how many may be under way; 0: as many as the protocol allows
	took, patience time.Duration
}

// result counts the outcomes of the requests.
type result struct {
	due, decided, shed, unsent int64
	inTime                     int64 // decided within 20 ms
	latency, refusals          histogram.Histogram
	settled                    histogram.Histogram // latency of the decisions that were due after the beginning
}

// beginning is how long a load is new to the server.
const beginning = 500 * time.Millisecond

// inTime is how long Envoy waits for a rate limit service.
const inTime = 20 * time.Millisecond

// protocol writes requests, and reads answers. One connection uses it.
type protocol interface {
	// hello is sent first.
	hello() []byte
	// request appends the request of a number, from 0.
	request(dst []byte, number int) []byte
	// answers takes bytes that were read; it calls done with the number of each request that is
	// answered, and returns how many it took, and the bytes to send back.
	answers(b []byte, done func(number int, decided bool)) (taken int, back []byte, err error)
	// most is how many requests may be under way.
	most() int
}

var protocols = map[string]func() protocol{
	"rls": newRLS, "resp": func() protocol { return &resp{} }, "http": func() protocol { return &http1{} },
}

func (l *load) run() (*result, error) {
	list := make([]result, l.connections)
	errs := make([]error, l.connections)
	conns := make([]net.Conn, l.connections)
	for i := range conns {
		nc, err := dial(l.address)
		if err != nil {
			return nil, err
		}
		defer nc.Close()
		conns[i] = nc
	}
	var all sync.WaitGroup
	start := time.Now().Add(50 * time.Millisecond)
	for i, nc := range conns {
		all.Go(func() { errs[i] = l.connection(nc, i, start, &list[i]) })
	}
	all.Wait()
	sum := &result{}
	for i := range list {
		r := &list[i]
		sum.due += r.due
		sum.decided += r.decided
		sum.shed += r.shed
		sum.unsent += r.unsent
		sum.inTime += r.inTime
		sum.latency.Merge(&r.latency)
		sum.settled.Merge(&r.settled)
		sum.refusals.Merge(&r.refusals)
	}
	return sum, errors.Join(errs...)
}

// dial waits for the server to open its door.
func dial(address string) (nc net.Conn, err error) {
	for range 600 {
		if nc, err = net.Dial("tcp", address); err == nil {
			return nc, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, err
}

// ring holds when each request under way was due.
const ring = 1 << 16

// connection is the load of one connection.
func (l *load) connection(nc net.Conn, i int, start time.Time, r *result) error {
	p := protocols[l.door]()
	most := p.most()
	if l.window > 0 {
		most = min(most, l.window)
	}
	var due [ring]time.Duration // since start
	var sent, answered atomic.Int64
	wake := make(chan struct{}, 1)
	var mu sync.Mutex // of writes
	write := func(b []byte) error {
		mu.Lock()
		defer mu.Unlock()
		_, err := nc.Write(b)
		return err
	}
	if err := write(p.hello()); err != nil {
		return err
	}
	end := l.took
	_ = nc.SetDeadline(start.Add(end + 2*time.Second))
	read := make(chan error, 1)
	go func() {
		in, w := make([]byte, 256<<10), 0
		for {
			n, err := nc.Read(in[w:])
			if err != nil {
				read <- err
				return
			}
			w += n
			now := time.Since(start)
			taken, back, err := p.answers(in[:w], func(number int, decided bool) {
				took := now - due[number%ring]
				switch {
				case now > end: // answers after the end are no part of the rate
				case decided:
					r.decided++
					r.latency.Add(took, 1)
					if due[number%ring] >= beginning {
						r.settled.Add(took, 1)
					}
					if took <= inTime {
						r.inTime++
					}
				default:
					r.shed++
					r.refusals.Add(took, 1)
				}
				answered.Add(1)
			})
			if err == nil && len(back) > 0 {
				err = write(back)
			}
			if err != nil {
				read <- fmt.Errorf("%w in %.100q", err, in[:w])
				return
			}
			w = copy(in, in[taken:w])
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}()
	time.Sleep(time.Until(start))
	every := time.Duration(0)
	if l.rate > 0 {
		every = time.Duration(float64(l.connections) / l.rate * float64(time.Second))
	}
	next := every * time.Duration(i) / time.Duration(l.connections)
	var out []byte
	for now := time.Since(start); now < end; now = time.Since(start) {
		out = out[:0]
		for int(sent.Load()-answered.Load()) < most && len(out) < 64<<10 && (every == 0 || next <= now) {
			at := next
			if every == 0 {
				at = now
			}
			next += every
			r.due++
			if now-at > l.patience {
				r.unsent++
				continue
			}
			number := sent.Add(1) - 1
			due[number%ring] = at
			out = p.request(out, int(number))
		}
		if len(out) > 0 {
			if err := write(out); err != nil {
				return err
			}
			continue
		}
		// Until the next one is due, or an answer makes room for one that is.
		wait, room := max(next-now, time.Millisecond), wake
		if every > 0 && next > now {
			room = nil
		} else {
			wait = end - now
		}
		timer := time.NewTimer(wait)
		select {
		case <-room:
		case <-timer.C:
		case err := <-read:
			return err
		}
		timer.Stop()
	}
	if every > 0 && next < end { // what never got its turn
		n := int64((end - next) / every)
		r.due += n
		r.unsent += n
	}
	// Drain the requests that are under way, so that the next load begins at rest.
	for deadline := time.Now().Add(time.Second); answered.Load() < sent.Load() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	_ = nc.Close()
	if err := <-read; !errors.Is(err, net.ErrClosed) && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
