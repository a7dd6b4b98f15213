package httplimit

import (
	"net/http"
	"net/netip"
	"slices"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/overload"
)

// Dawdling is a request that has a place while its client may have to be waited for. Safe for
// concurrent use. Make one with Pass.Dawdling.
type Dawdling struct {
	gate   *Gate
	of     []placesOf // empty for one that counts for none
	exempt bool
	answer bool // it waits for its client to take the answer
	cut    func()
	state  dawdleState // abandoned.mu guards it
}

// placesOf is a share of so many places; of room under overload their number varies.
type placesOf struct {
	share
	places  int64
	counted bool // the request is in it
}

type dawdleState uint8

const (
	noDawdler dawdleState = iota
	inShare
	isSpare // has its place while there are free ones
)

// Dawdling returns a Dawdling for the request, which counts it while its client keeps it waiting:
// for its body, or to take the answer. cut is called from any goroutine when the request is to be
// cut, after Begin and, if it is about to be called then, after End as well.
func (p *Pass) Dawdling(answer bool, cut func()) *Dawdling {
	d := &Dawdling{gate: p.gate, cut: cut, answer: answer, exempt: p.decision.Exempt}
	room := p.place.Permit.Held()
	p.places(&p.decision, func(s share, places int64) bool {
		if room || s.counter != 0 {
			d.of = append(d.of, placesOf{share: s, places: places})
		}
		return true
	})
	return d
}

// mayDawdle reports whether r has a body for which nobody waits before it takes a place: it has no
// length, and may be a call in both directions, or its client is to be asked for it.
func mayDawdle(r *http.Request) bool {
	return r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody &&
		(r.ContentLength < 0 || r.Header["Expect"] != nil)
}

// Begin notes that the client keeps the request waiting. From now on it counts as the abandoned
// ones of its address do, until End is called, before Pass.Leave. If its address has as many places
// with such requests as it may, the request is spare: it keeps its place while others are free, and
// is cut when none is any more. ok is false if none is now: the request is to be cut. Nobody here
// knows how many slots of a limit on concurrency are free, so that none of those is spare: a
// request with a slot counts in the share of that limit, too, as long as it is spare elsewhere.
func (d *Dawdling) Begin() (ok bool) {
	a := &d.gate.abandoned
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.exempt || d.state != noDawdler {
		return true
	}
	spare := false
	for i := range d.of {
		s := &d.of[i]
		if s.counter == 0 {
			s.places = int64(d.gate.o.Overload.Limit())
		}
		switch {
		case a.hasRoom(s.share, s.places):
		case s.counter == 0 && d.gate.hasFree():
			spare = true
		default:
			return false
		}
	}
	for i := range d.of {
		if s := &d.of[i]; s.counter != 0 || !spare {
			d.count(s)
		}
	}
	if spare {
		d.addSpare()
		return true
	}
	d.state = inShare
	a.dawdling.Add(1)
	return true
}

// Spare says that the request has kept its place for long enough: it is to be cut when no place is
// free, though its address has no more of these than it may. ok is false if none is free now: then
// it is to be cut at once. In slots of a limit on concurrency it counts as before.
func (d *Dawdling) Spare() (ok bool) {
	a := &d.gate.abandoned
	a.mu.Lock()
	defer a.mu.Unlock()
	if d.state != inShare || len(d.of) == 0 || d.of[0].counter != 0 {
		return true
	}
	if !d.gate.hasFree() {
		return false
	}
	d.giveBack(&d.of[0])
	a.dawdling.Add(-1)
	d.addSpare()
	return true
}

// End ends what Begin began.
func (d *Dawdling) End() {
	d.gate.abandoned.mu.Lock()
	defer d.gate.abandoned.mu.Unlock()
	d.leave()
}

// leave takes d out of the shares, and the spare ones. abandoned.mu must be held.
func (d *Dawdling) leave() {
	a := &d.gate.abandoned
	switch d.state {
	case inShare:
		a.dawdling.Add(-1)
	case isSpare:
		address := d.address()
		of := slices.DeleteFunc(a.spare[address], func(o *Dawdling) bool { return o == d })
		if a.spare[address] = of; len(of) == 0 {
			delete(a.spare, address)
		}
		a.spares.Add(-1)
	}
	for i := range d.of {
		d.giveBack(&d.of[i])
	}
	d.state = noDawdler
}

// count counts d in a share. abandoned.mu must be held.
func (d *Dawdling) count(s *placesOf) {
	a := &d.gate.abandoned
	s.counted = true
	if a.countOne(a.slow, s.share); d.answer {
		a.unread[s.share]++
		a.unreadNow.Add(1)
	}
}

// giveBack takes d out of a share, if it is in it. abandoned.mu must be held.
func (d *Dawdling) giveBack(s *placesOf) {
	if !s.counted {
		return
	}
	a := &d.gate.abandoned
	s.counted = false
	if a.giveBackOne(a.slow, s.share); d.answer {
		if a.unread[s.share]--; a.unread[s.share] == 0 {
			delete(a.unread, s.share)
		}
		a.unreadNow.Add(-1)
	}
}

// addSpare makes d spare. abandoned.mu must be held.
func (d *Dawdling) addSpare() {
	a := &d.gate.abandoned
	d.state = isSpare
	a.spare[d.address()] = append(a.spare[d.address()], d)
	a.spares.Add(1)
}

// address is the client's. d.of must not be empty.
func (d *Dawdling) address() netip.Addr { return d.of[0].address }

// hasFree reports whether there is room under Options.Overload for one more request.
func (g *Gate) hasFree() bool { return g.o.Overload.WouldAdmit(overload.Default) }

// lacks reports whether there is no room for one more request, or for one as important as d says.
func (g *Gate) lacks(d *weir.Decision) bool {
	if !g.hasFree() {
		return true
	}
	// A sheddable one finds less room than others.
	return overload.PriorityOf(d) == overload.Sheddable && !g.o.Overload.WouldAdmit(overload.Sheddable)
}

// makeRoom cuts one of the spare requests if no place is free any more: the oldest of the address
// that has most of them. It is called when the request of d has taken room under Options.Overload,
// or has found none.
func (g *Gate) makeRoom(d *weir.Decision) {
	a := &g.abandoned
	if a.spares.Load() == 0 || !g.lacks(d) {
		return
	}
	a.mu.Lock()
	var most []*Dawdling
	for _, of := range a.spare {
		if len(of) > len(most) {
			most = of
		}
	}
	if len(most) == 0 {
		a.mu.Unlock()
		return
	}
	out := most[0]
	out.leave()
	a.mu.Unlock()
	out.cut()
}

// crowdedOut reports whether the client's address gets no further place, since it could keep that
// one as well: its abandoned requests keep as many as they may; or those that dawdle do, and the
// request may dawdle with its body; or some of those wait for their answers to be taken, as any
// request may, and few places are free.
func (p *Pass) crowdedOut(d *weir.Decision) (out bool) {
	a := &p.gate.abandoned
	body := a.dawdling.Load()+a.spares.Load() > 0 && mayDawdle(p.attrs.r)
	answer := a.unreadNow.Load() > 0
	if a.now.Load() == 0 && !body && !answer || d.Exempt {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.places(d, func(s share, places int64) bool {
		out = a.of[s] >= half(places) ||
			(body || answer && a.unread[s] > 0 && p.gate.fewFree(s)) && !a.hasRoom(s, places)
		return !out
	})
	if out {
		a.refused.Add(1)
		p.dawdles = body
	}
	return out
}

// fewFree reports whether less than a quarter of the places is free, as far as is known.
func (g *Gate) fewFree(s share) bool {
	if s.counter != 0 {
		return true
	}
	of := g.o.Overload.Stats()
	return of.InFlight > of.Limit*3/4
}
