package overload

import (
	"time"

	"github.com/weir-rl/weir"
)

// Place is the place that one request has among those under way, in a middleware that decides by a
// weir.Limiter, too: it takes the place, gives it back while the request is held, and leaves. How
// an answer describes the load differs between protocols, and is left to the middleware. The zero
// value has no place. Not safe for concurrent use.
type Place struct {
	Permit  Permit
	Entered bool      // the request was passed on
	Start   time.Time // when it was; valid if Entered

	waited bool // it is, or was, held
}

// Refuses takes a place for the request that d decides, before it is charged, and reports whether l
// has none for it. A request that has been held takes none while it waits to ask again; see Enter.
func (p *Place) Refuses(l *Limiter, d *weir.Decision) bool {
	p.Permit.Return()
	if p.waited {
		return !l.WouldAdmit(PriorityOf(d))
	}
	var ok bool
	p.Permit, ok = l.Acquire(PriorityOf(d))
	return !ok
}

// Wait leaves the place to others, since the request is about to be held.
func (p *Place) Wait() {
	p.Permit.Return()
	p.waited = true
}

// Enter notes that the request is passed on now; false if l has no place for it any more. l and
// load may be nil; with neither, nothing is noted.
func (p *Place) Enter(l *Limiter, load Load, d *weir.Decision) bool {
	if l == nil && load == nil {
		return true
	}
	if l != nil && !p.Permit.Held() {
		var ok bool
		if p.Permit, ok = l.Acquire(PriorityOf(d)); !ok {
			return false
		}
	}
	p.Entered, p.Start = true, time.Now()
	p.Permit.Restart()
	if load != nil {
		load.Enter()
	}
	return true
}

// Leave gives the place back: the request is over. p is the zero value then.
func (p *Place) Leave(load Load) {
	if p.Entered {
		p.Permit.Done() // of a fixed limit
		if load != nil {
			load.Leave()
		}
	}
	p.Permit.Return() // of a request that was not passed on
	*p = Place{}
}
