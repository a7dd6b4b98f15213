package overload

import (
	"time"

	"github.com/weir-rl/weir"
)

// Room is the room that one request has. The zero value has none. Not safe for concurrent use.
type Room struct {
	Permit  Permit
	Entered bool      // the request was passed on
	Start   time.Time // when it was; valid if Entered

	waited bool // it is, or was, held
}

// Refuses takes room for the request that d decides, before it is charged, and reports whether l
// has none for it. A request that has been held takes none while it waits to ask again; see Enter.
func (r *Room) Refuses(l *Limiter, d *weir.Decision) bool {
	r.Permit.Return()
	if r.waited {
		return !l.WouldAdmit(PriorityOf(d))
	}
	var ok bool
	r.Permit, ok = l.Acquire(PriorityOf(d))
	return !ok
}

// Wait gives the room to others, since the request is about to be held.
func (r *Room) Wait() {
	r.Permit.Return()
	r.waited = true
}

// Enter notes that the request is passed on now; false if l has no room for it any more. l and load
// may be nil; with neither, nothing is noted.
func (r *Room) Enter(l *Limiter, load Load, d *weir.Decision) bool {
	if l == nil && load == nil {
		return true
	}
	if l != nil && !r.Permit.Held() {
		var ok bool
		if r.Permit, ok = l.Acquire(PriorityOf(d)); !ok {
			return false
		}
	}
	r.Entered, r.Start = true, time.Now()
	r.Permit.Restart()
	if load != nil {
		load.Enter()
	}
	return true
}

// Leave gives all room back: the request is over. r is the zero value then.
func (r *Room) Leave(load Load) {
	if r.Entered {
		r.Permit.Done() // of a fixed limit
		if load != nil {
			load.Leave()
		}
	}
	r.Permit.Return() // of a request that was not passed on
	*r = Room{}
}
