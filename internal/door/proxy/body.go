package proxy

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// clientBody is the body that a client sends. It bounds how long the client is waited for, and
// remembers what went wrong with it, which is the client's fault and not the upstream's.
type clientBody struct {
	control *http.ResponseController
	http1   bool
	duplex  bool          // the response may begin before the request has ended (HTTP/1)
	length  int64         // below 0 if unknown
	pause   time.Duration // the longest; 0 for any
	rate    int64         // the least, in bytes a second; 0 for any
	grace   pace          // its first pace
	cuts    *bodyCuts
	window  *h2.Window // of the connection; nil over HTTP/1

	trailer   http.Header // of the request; nil if it announces none
	announced []string

	dawdler *dawdler // nil for most
	parts   parts    // of a chunk, while there is one
	lost    func()   // called when reading fails, except at a deadline; nil for nothing

	over atomic.Bool // finish was called
	read atomic.Int64
	err  atomic.Pointer[error] // sticky; io.EOF at the end

	mu    sync.Mutex // held while reading, which may take long
	body  io.ReadCloser
	ahead []byte // was read ahead, and is not taken yet
	pace  pace
	slow  bool      // the rate bounds the present read, and not the pause
	by    time.Time // when all of it has to be there; zero for never

	clock    sync.Mutex // of the read deadline; taken under mu, or alone
	until    time.Time  // the read deadline that is set
	answered bool       // the answer has begun
	crowded  bool       // it is cut, see dawdler
	// How long the client was waited for, for the dawdler; the same in the read that goes on.
	waited time.Duration
	since  time.Time // zero while nothing is read
	shutBy time.Duration
}

// pace is how long a client may still be waited for if its body is to come at a least rate.
type pace time.Duration

// bodyGrace is how long a body may be waited for beyond what its rate allows. Tests change it.
var bodyGrace = 10 * time.Second

// mostAhead bounds for how long a body that came fast may come slowly.
const mostAhead = time.Minute

// add notes that n bytes came after a wait, where so many have to come in a second.
func (p *pace) add(n int, wait time.Duration, rate int64) {
	left := *p - pace(wait)
	*p = max(left, min(left+pace(float64(n)/float64(rate)*float64(time.Second)), pace(mostAhead)))
}

// bodyCuts counts the bodies that were given up.
type bodyCuts struct {
	slow, stalled, crowded atomic.Uint64
	unread                 atomic.Uint64 // of answers
	line                   sparselog.Line
}

// newBody returns the body of r, to be read before the response begins.
func (p *Proxy) newBody(w http.ResponseWriter, r *http.Request) *clientBody {
	announced := p.requestTrailers(r)
	var window *h2.Window
	if r.ProtoMajor == 2 {
		window = h2.WindowOf(r.Context())
	}
	return &clientBody{
		window:  window,
		trailer: r.Trailer, announced: announced,
		body: r.Body, length: r.ContentLength, control: http.NewResponseController(w), http1: r.ProtoMajor == 1,
		pause: max(0, p.o.BodyTimeout), rate: max(0, p.o.BodyRate), pace: pace(p.grace), grace: pace(p.grace),
		cuts: p.cuts,
	}
}

// unbounded says that the body may come as slowly as it likes.
func (b *clientBody) unbounded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pause, b.rate = 0, 0
}

// stream says that the body of r is to be passed on as it comes.
func (b *clientBody) stream(r *http.Request) {
	// By default an HTTP/1 server discards the rest of the request when the response begins. A
	// client that waits to be asked for its body, and one that leaves HTTP, need the default.
	if b.http1 && r.Header.Get("Expect") == "" && r.Header.Get("Upgrade") == "" {
		b.duplex = b.control.EnableFullDuplex() == nil
	}
}

// Read implements io.Reader.
func (b *clientBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.ahead) > 0 {
		n := copy(p, b.ahead)
		if b.ahead = b.ahead[n:]; len(b.ahead) > 0 {
			return n, nil
		}
		b.ahead = nil
		if err := b.err.Load(); err != nil {
			return n, *err
		}
		return n, nil
	}
	return b.receive(p)
}

// fetch reads the first n bytes ahead, or all if there are fewer. Room is made as they come: a
// client that announces much and sends little holds little. Bytes that come quickly before the
// request takes a place earn it no time in that.
func (b *clientBody) fetch(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.ahead) < n {
		if len(b.ahead) == cap(b.ahead) {
			b.ahead = slices.Grow(b.ahead, min(n-len(b.ahead), max(len(b.ahead), 4<<10)))
		}
		m, err := b.receive(b.ahead[len(b.ahead):min(n, cap(b.ahead))])
		b.ahead = b.ahead[:len(b.ahead)+m]
		if err == io.EOF {
			break // if it is too soon, who takes it will see
		}
		if err != nil {
			return err
		}
	}
	b.pace = min(b.pace, b.grace)
	return nil
}

// receive reads from the client. mu must be held.
func (b *clientBody) receive(p []byte) (int, error) {
	if err := b.err.Load(); err != nil {
		return 0, *err
	}
	if b.http1 && b.length < 0 && b.rate > 0 {
		// A chunk fills p before Read returns: no more is asked for than may come in time.
		most := max(512, int(time.Duration(b.pace).Seconds()*float64(b.rate)))
		if b.dawdler != nil {
			most = min(most, max(b.parts.most(), int(min(b.rate/4, bufferSize))))
		}
		p = p[:min(len(p), most)]
	}
	bounded := b.pause > 0 || b.rate > 0 || !b.by.IsZero()
	var start time.Time
	var shut time.Duration
	if bounded {
		start, shut = time.Now(), b.window.Shut()
		b.bound(start, shut)
	}
	n, err := b.body.Read(p)
	if read := b.read.Add(int64(n)); err != nil || read == b.length {
		b.dawdler.end()
	}
	switch {
	case err != nil:
		b.end(err, bounded)
	case b.rate > 0:
		shut = b.window.Shut() - shut // in which the client could not send
		waited := max(0, time.Since(start)-shut)
		b.pace.add(n, waited, b.rate)
		if b.dawdler != nil {
			b.came(waited)
			b.parts.took(n, waited, b.dawdler.proxy.dawdleAfter)
		}
	}
	return n, err
}

// came notes how long a read has waited for the client.
func (b *clientBody) came(waited time.Duration) {
	b.clock.Lock()
	defer b.clock.Unlock()
	b.waited += waited
	b.since = time.Time{}
}

// spent implements waitedFor.
func (b *clientBody) spent() (waited time.Duration, moved int64) {
	b.clock.Lock()
	defer b.clock.Unlock()
	waited = b.waited
	if !b.since.IsZero() {
		waited += max(0, time.Since(b.since)-(b.window.Shut()-b.shutBy))
	}
	return waited, b.read.Load()
}

// cut implements waitedFor.
func (b *clientBody) cut() {
	b.clock.Lock()
	defer b.clock.Unlock()
	b.crowded = true
	b.setDeadline(time.Time{}) // which is a time that has passed
}

func (b *clientBody) isCrowded() bool {
	b.clock.Lock()
	defer b.clock.Unlock()
	return b.crowded
}

// whole reports whether all of the body has come.
func (b *clientBody) whole() bool { return b.read.Load() == b.length || b.err.Load() != nil }

// enough is how much of the body others have to send before they get a place.
func (b *clientBody) enough() int64 {
	if b.length < 0 {
		return upstream.MaxBody
	}
	return min(b.length, upstream.MaxBody)
}

// within bounds the time until all of it is there.
func (b *clientBody) within(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.by = time.Now().Add(d)
}

// bound sets the deadline of the read that begins now. shut is Window.Shut.
func (b *clientBody) bound(now time.Time, shut time.Duration) {
	b.clock.Lock()
	defer b.clock.Unlock()
	if b.dawdler != nil {
		b.since, b.shutBy = now, shut
	}
	most := b.longest()
	if left := time.Duration(b.pace); b.rate > 0 && !b.answered && (most == 0 || left < most) {
		most, b.slow = max(left, 1), true
	} else {
		b.slow = false
	}
	if !b.by.IsZero() && (most == 0 || b.by.Sub(now) < most) {
		most = max(b.by.Sub(now), 1)
	}
	if most == 0 {
		b.setDeadline(time.Time{})
		return
	}
	// Setting a deadline costs more than reading the clock. So it lies a tenth later than it has
	// to, and moves when that is used up.
	least, spare := now.Add(most), most/10
	if b.until.Before(least) || b.until.After(least.Add(2*spare)) {
		b.setDeadline(least.Add(spare))
	}
}

// longest is the longest pause; 0 for any. clock must be held.
func (b *clientBody) longest() time.Duration {
	if b.answered && !b.http1 {
		return 0 // a call in both directions, which may be silent in one of them
	}
	return b.pause
}

// setDeadline sets the read deadline. clock must be held.
func (b *clientBody) setDeadline(t time.Time) {
	if b.crowded {
		t = time.Unix(1, 0)
	}
	if b.until != t {
		b.until = t
		_ = b.control.SetReadDeadline(t) // a writer that is not net/http's may have none
	}
}

// begun says that the response has begun. How fast the rest of the body comes is from then on a
// matter between client and upstream.
func (b *clientBody) begun() {
	if b == nil {
		return
	}
	if b.dawdler.end(); b.ended() {
		return
	}
	b.clock.Lock()
	defer b.clock.Unlock()
	b.answered = true
	switch most := b.longest(); {
	case b.ended() || b.until.IsZero():
	case most == 0:
		b.setDeadline(time.Time{})
	default:
		b.setDeadline(time.Now().Add(most))
	}
}

// end notes that nothing more can be read. mu must be held.
func (b *clientBody) end(err error, bounded bool) {
	if err == io.EOF && b.trailer != nil {
		maps.DeleteFunc(b.trailer, func(name string, _ []string) bool { return !slices.Contains(b.announced, name) })
	}
	b.err.Store(&err)
	switch {
	case err == io.EOF:
		if bounded && b.http1 && !b.over.Load() {
			// The connection is read on, to notice a hang-up, for as long as the response takes.
			b.clock.Lock()
			b.setDeadline(time.Time{})
			b.clock.Unlock()
		}
	case !errors.Is(err, os.ErrDeadlineExceeded):
		if b.lost != nil {
			b.lost()
		}
	case b.isCrowded():
		b.cuts.crowded.Add(1)
	case b.slow:
		b.cuts.slow.Add(1)
	default:
		b.cuts.stalled.Add(1)
	}
}

// Close implements io.Closer.
func (b *clientBody) Close() error { return b.body.Close() }

// failure returns the error of the client's body; nil if there is no error, or no body.
// cancelled says that the request's context is done: it is so by the very read that fails, a moment
// before that returns.
func (b *clientBody) failure(cancelled bool) error {
	if b == nil {
		return nil
	}
	if cancelled {
		b.mu.Lock()
		defer b.mu.Unlock()
	}
	if err := b.err.Load(); err != nil && *err != io.EOF {
		return *err
	}
	return nil
}

// mustClose reports whether the connection cannot be kept if the response begins now: in full
// duplex net/http reads the rest of the request after the handler, and panics if it meets the end
// of it there. Where the length is known, finish sees to it.
func (b *clientBody) mustClose() bool {
	return b != nil && b.duplex && b.length < 0 && !b.ended()
}

func (b *clientBody) ended() bool {
	err := b.err.Load()
	return err != nil && *err == io.EOF
}

// maxLeftOver is how much of a body that the upstream did not want is read to keep the connection.
// It is net/http's own bound.
const maxLeftOver = 256 << 10

// finish reads the rest of the body when the response has ended, so that net/http need not.
func (b *clientBody) finish() {
	if b == nil {
		return
	}
	if b.over.Store(true); !b.duplex {
		return
	}
	switch {
	case b.ended():
		b.mu.Lock() // a Read may be about to return
		defer b.mu.Unlock()
	case b.length < 0:
		// The connection is to be closed (see mustClose), once net/http has given the client time
		// to take the answer.
		if b.pause > 0 {
			_ = b.control.SetReadDeadline(time.Now().Add(b.pause))
		}
	case b.length-b.read.Load() <= maxLeftOver: // else net/http closes the connection
		// the client may be waiting for the answer before it sends more; if it is gone, so be it
		_ = b.control.Flush()
		if _, err := io.Copy(io.Discard, b); err != nil {
			// closes the connection, or else the rest of the body would be taken for a request
			panic(http.ErrAbortHandler)
		}
	}
}
