package forwardauth

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Bounds of the memory of answered checks.
const (
	repeatFor = 2 * time.Second // how long an answer is given again, from when it was given first
	// repeatsMost bounds the answers that are remembered, at some 1 KB each; past it the oldest go,
	// and their repetitions count again.
	repeatsMost = 1 << 15
	// repeatTimes is how often an answer is given again. nginx goes on with a request in another
	// location ten times at most, so that only a client which chose its X-Request-Id by itself
	// comes that far.
	repeatTimes = 16
)

// repeats gives the answer to a check again when the same check comes once more, so that it counts
// once. Safe for concurrent use.
type repeats struct {
	mu struct {
		sync.Mutex
		byPrint map[[sha256.Size]byte]*repeat
		queue   []*repeat // a ring, in the order in which they came
		first   int
		n       int
	}
}

// repeatAnswer is an answer without a body.
type repeatAnswer struct {
	status int
	fields []headerField // of the header; not to be changed
	keep   bool          // give it again
}

type headerField struct {
	name   string
	values []string
}

// repeat is one check with its answer.
type repeat struct {
	print [sha256.Size]byte
	done  chan struct{} // closed when the answer is there

	repeatAnswer // from when done is closed

	// Under repeats.mu.
	until time.Time // zero while the answer is not there
	left  int       // how often the answer may be given again
}

func newRepeats() *repeats {
	d := new(repeats)
	d.mu.byPrint = map[[sha256.Size]byte]*repeat{}
	return d
}

// answer returns ask's answer, or the answer that it gave not long ago to the same check. Callers
// that come while the first one is being decided wait for it, until ctx ends. An answer that is not
// to be kept is given to nobody else.
func (d *repeats) answer(ctx context.Context, print [sha256.Size]byte, ask func() repeatAnswer) repeatAnswer {
	r, first := d.find(print)
	if first {
		return d.settle(r, ask)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return repeatAnswer{status: http.StatusServiceUnavailable} // nobody reads it
	}
	if r.keep {
		return r.repeatAnswer
	}
	return ask()
}

// find returns the repeat of a check; first says that its answer is still to be found by the
// caller.
func (d *repeats) find(print [sha256.Size]byte) (r *repeat, first bool) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.mu.byPrint[print]; r != nil && r.left > 0 && !r.over(now) {
		r.left--
		return r, false
	}
	for d.mu.n > 0 && (d.mu.n == repeatsMost || d.mu.queue[d.mu.first].over(now)) {
		d.forgetFirst()
	}
	r = &repeat{print: print, done: make(chan struct{}), left: repeatTimes}
	if d.mu.n == len(d.mu.queue) {
		d.grow()
	}
	d.mu.queue[(d.mu.first+d.mu.n)%len(d.mu.queue)] = r
	d.mu.n++
	d.mu.byPrint[print] = r
	return r, true
}

// over reports whether the answer is not to be given any more.
func (r *repeat) over(now time.Time) bool { return !r.until.IsZero() && now.After(r.until) }

// forgetFirst forgets the one that came first.
func (d *repeats) forgetFirst() {
	r := d.mu.queue[d.mu.first]
	d.mu.queue[d.mu.first] = nil
	d.mu.first = (d.mu.first + 1) % len(d.mu.queue)
	d.mu.n--
	if d.mu.byPrint[r.print] == r { // the same check may have come anew
		delete(d.mu.byPrint, r.print)
	}
}

// grow makes room in the ring.
func (d *repeats) grow() {
	wider := make([]*repeat, max(64, 2*len(d.mu.queue)))
	for i := range d.mu.n {
		wider[i] = d.mu.queue[(d.mu.first+i)%len(d.mu.queue)]
	}
	d.mu.queue, d.mu.first = wider, 0
}

// settle finds the answer of r, also for the repetitions that wait for it.
func (d *repeats) settle(r *repeat, ask func() repeatAnswer) repeatAnswer {
	defer func() { // also if ask panics
		d.mu.Lock()
		defer d.mu.Unlock()
		if r.until = time.Now().Add(repeatFor); !r.keep {
			r.until = time.Now().Add(-1)
		}
		close(r.done)
	}()
	r.repeatAnswer = ask()
	return r.repeatAnswer
}

// fingerprint computes what all repetitions of one check have in common, and no other check has.
// Not safe for concurrent use.
type fingerprint struct {
	hash  hash.Hash
	names []string
	part  []byte
}

// of returns the fingerprint of the check r, read into c: of all that its rules could see, and its
// X-Request-Id.
func (p *fingerprint) of(r *http.Request, c *call) (print [sha256.Size]byte) {
	if p.hash == nil {
		p.hash = sha256.New()
	}
	p.hash.Reset()
	ip, _ := c.attributes.Attribute("ip")
	p.add(c.request.Domain)
	p.add(c.method)
	p.add(c.host)
	p.add(c.uri)
	p.add(ip)
	p.names = p.names[:0]
	for name := range r.Header {
		p.names = append(p.names, name)
	}
	slices.Sort(p.names)
	for _, name := range p.names {
		p.add(name)
		lines := r.Header[name]
		p.addLength(len(lines))
		for _, line := range lines {
			p.add(line)
		}
	}
	p.hash.Sum(print[:0])
	clear(p.names)
	return print
}

// add puts a part in, so that no two lists of parts look the same.
func (p *fingerprint) add(s string) {
	p.addLength(len(s))
	p.part = append(p.part[:0], s...)
	p.hash.Write(p.part)
}

func (p *fingerprint) addLength(n int) {
	p.part = binary.LittleEndian.AppendUint64(p.part[:0], uint64(n))
	p.hash.Write(p.part)
}
