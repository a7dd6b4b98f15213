package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/util/sparselog"
)

// dawdleAfter is how long a client that has a place may be waited for: for its body, all of it or
// as much as others have to send before they get a place. Most are there at once. Tests change it.
var dawdleAfter = 250 * time.Millisecond

// dawdler looks after a request that has a place while its client may have to be waited for, to
// send its body or to take its answer. When that takes too long, the request counts in the share of
// its address, or is cut.
type dawdler struct {
	proxy  *Proxy
	client waitedFor
	share  *httplimit.Dawdling
	answer bool
	method string
	path   string
	timer  *time.Timer
	enough int64 // bytes that have to come within dawdleAfter; from then on the rate counts

	mu      sync.Mutex
	over    bool // all has come, or the request is over
	counted bool // it is in the share
	// At the last look at which the client was not behind.
	waited time.Duration
	moved  int64
}

// waitedFor is a transfer for which a client may have to be waited for.
type waitedFor interface {
	// spent returns how long the client was waited for so far, and how many bytes that has brought.
	// It is called from any goroutine.
	spent() (waited time.Duration, moved int64)
	// cut ends the request. It is called from any goroutine.
	cut()
}

// newDawdler looks after a request from now on, until end is called. answer says that its client is
// waited for to take the answer, else to send the body.
func (p *Proxy) newDawdler(r *http.Request, pass *httplimit.Pass, client waitedFor, answer bool,
	enough int64) *dawdler {
	d := &dawdler{proxy: p, client: client, answer: answer, method: r.Method, path: r.URL.Path, enough: enough}
	d.share = pass.Dawdling(answer, d.cut)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer = time.AfterFunc(p.dawdleAfter, d.look)
	return d
}

// look is called again and again. What came faster than it has to is good for nothing later.
func (d *dawdler) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	after := d.proxy.dawdleAfter
	d.timer.Reset(after)
	waited, moved := d.client.spent()
	if moved < d.enough {
		if waited >= after {
			d.late()
		}
		return
	}
	behind := waited - d.waited - d.proxy.timeFor(moved-d.moved)
	switch {
	case behind >= dawdlePause*after:
		d.late()
		if behind >= d.proxy.grace && !d.over && d.counted && !d.share.Spare() {
			d.giveUp()
		}
		return
	case behind <= 0:
		d.waited, d.moved = waited, moved
	}
	if d.counted {
		d.counted = false
		d.share.End()
	}
}

// dawdlePause is how far a client may be behind its rate, in times of dawdleAfter.
const dawdlePause = 4

// timeFor is how long so many bytes may take.
func (p *Proxy) timeFor(n int64) time.Duration {
	return time.Duration(float64(n) / float64(p.o.BodyRate) * float64(time.Second))
}

// late says that the client takes too long. mu must be held.
func (d *dawdler) late() {
	if d.counted {
		return
	}
	if d.counted = d.share.Begin(); !d.counted {
		d.giveUp()
		return
	}
	p := d.proxy
	line, text := &p.lines.dawdling, "its body does not come"
	if d.answer {
		line, text = &p.lines.unread, "its answer is not read"
	}
	s := p.gate.Abandoned()
	p.warn(line,
		"proxy: %s %q holds a place, and %s: so do %d requests, which get half of the places for each address, and %d more while others are free; %d were cut so far for that, and %d turned away",
		sparselog.Excerpt(d.method), sparselog.Excerpt(d.path), text, s.Dawdling, s.Spare,
		p.cuts.crowded.Load()+p.cuts.unread.Load(), s.Refused)
}

// giveUp cuts the request. mu must be held.
func (d *dawdler) giveUp() {
	d.stop()
	d.client.cut()
}

// cut is giveUp for others.
func (d *dawdler) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over && d.counted {
		d.giveUp()
	}
}

// stop ends the looking. mu must be held.
func (d *dawdler) stop() {
	d.over = true
	if d.timer.Stop(); d.counted {
		d.counted = false
		d.share.End()
	}
}

// end says that nobody is waited for any more. d may be nil.
func (d *dawdler) end() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over {
		d.stop()
	}
}

// watchBody begins to look after the body of a request that has a place, if it has not come whole.
// It must be called before the body is read.
func (p *Proxy) watchBody(b *clientBody, r *http.Request, pass *httplimit.Pass) {
	if b == nil || p.o.BodyRate <= 0 || b.whole() || !pass.HoldsPlace() {
		return
	}
	b.dawdler = p.newDawdler(r, pass, b, false, b.enough())
}

// unwatch ends what watchBody began. b may be nil.
func (b *clientBody) unwatch() {
	if b != nil {
		b.dawdler.end()
	}
}
