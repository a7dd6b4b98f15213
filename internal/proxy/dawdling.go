package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/seldom"
)

// dawdleAfter is how long a body that nobody could wait for may take to come, all of it or as much
// as others have to send before they get a place. Most are there at once. Tests change it.
var dawdleAfter = 250 * time.Millisecond

// dawdler looks after a request that has got its place before its body has come. If that takes
// longer than dawdleAfter, the request counts in the share of its address, or is cut.
type dawdler struct {
	proxy        *Proxy
	body         *clientBody
	pass         *httplimit.Pass
	method, path string
	timer        *time.Timer

	mu      sync.Mutex
	over    bool   // the body or the answer has come, or the request is over
	counted func() // takes it out of the share again; nil while it is not in there
}

// watchBody begins to look after the body of a request that has a place. It must be called before
// the body is read.
func (p *Proxy) watchBody(b *clientBody, r *http.Request, pass *httplimit.Pass) {
	_, _ = pass.Attributes().Attribute("ip") // which the pass then knows, in whatever goroutine
	d := &dawdler{proxy: p, body: b, pass: pass, method: r.Method, path: r.URL.Path}
	b.dawdler = d
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer = time.AfterFunc(dawdleAfter, d.late)
}

// unwatch ends what watchBody began. b may be nil.
func (b *clientBody) unwatch() {
	if b != nil {
		b.dawdler.end()
	}
}

// late is called when the body has not come.
func (d *dawdler) late() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	var ok bool
	if d.counted, ok = d.pass.Dawdle(); ok {
		p := d.proxy
		s := p.gate.Abandoned()
		p.warn(&p.lines.dawdling, "proxy: %s %q holds a place, and its body does not come: so do %d requests, which get half of the places for each address; %d were cut so far for that, and %d turned away",
			seldom.Excerpt(d.method), seldom.Excerpt(d.path), s.Dawdling, p.cuts.crowded.Load(), s.Refused)
		return
	}
	b := d.body
	b.clock.Lock()
	defer b.clock.Unlock()
	b.crowded = true
	b.setDeadline(time.Time{}) // which is a time that has passed
}

// end says that the request dawdles no more. d may be nil.
func (d *dawdler) end() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		return
	}
	d.over = true
	if d.timer.Stop(); d.counted != nil {
		d.counted()
	}
}

func (b *clientBody) isCrowded() bool {
	b.clock.Lock()
	defer b.clock.Unlock()
	return b.crowded
}
