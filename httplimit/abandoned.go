package httplimit

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/util/clientip"
)

// A request whose client hangs up is abandoned: nobody waits for its answer. Where a handler passes
// requests on, the server behind works on it all the same, so that its place is not free. A client
// that could free it by hanging up would get round each bound on concurrency.
//
// The same holds for one that has its place while its client is waited for, to send the rest of its
// body or to take the answer: the client could have the place for nothing, and again when it is cut
// (dawdle.go).

// abandoned holds the abandoned requests that keep their places, and those that dawdle.
type abandoned struct {
	now                atomic.Int64 // how many there are: while none, nothing is looked up
	dawdling           atomic.Int64 // the same of the others
	kept, cut, refused atomic.Uint64

	ending context.Context // ends when none is kept any more
	end    context.CancelFunc

	mu   sync.Mutex
	of   map[share]int
	slow map[share]int // of those that dawdle
	all  map[share]int // both, of all addresses: of a share without one
	// of those that dawdle, those whose answers are not taken
	unread    map[share]int
	unreadNow atomic.Int64               // how often one counts there
	spare     map[netip.Addr][]*Dawdling // by their addresses, the oldest first
	// how many are spare: while none, nothing is looked up
	spares atomic.Int64
}

// share names one address's share of a set of places.
type share struct {
	address netip.Addr // an IPv6 /64 for all that are in it
	// of a limit on concurrency; zero for room under overload
	counter uint64
	key     string
}

// AbandonedStats counts the requests whose clients hung up while they had a place.
type AbandonedStats struct {
	Now  int    // keep their places now
	Kept uint64 // kept their places
	Cut  uint64 // were cut at once, since their address had half of the places already
	// Refused were turned away, since half of the places were with abandoned requests of their
	// address; or, if their own bodies had not come, with those and others that dawdle.
	Refused  uint64
	Dawdling int // have a place of the share of their address, see Dawdling
	Spare    int // have one beyond that, while there are free ones
}

// Abandoned returns a reading.
func (g *Gate) Abandoned() AbandonedStats {
	a := &g.abandoned
	return AbandonedStats{
		Now: int(a.now.Load()), Kept: a.kept.Load(), Cut: a.cut.Load(), Refused: a.refused.Load(),
		Dawdling: int(a.dawdling.Load()), Spare: int(a.spares.Load()),
	}
}

// fewPlaces is how few places are not shared by address: half of them would be one at most, and the
// client that has it could not ask again.
const fewPlaces = 4

// places calls use for each of the places that a request needs or has and that others, of other
// addresses, may lack: with the share of its own address, and how many places there are. It ends
// when use returns false. A request without an address, as from a unix socket, has no share.
func (p *Pass) places(d *weir.Decision, use func(s share, places int64) bool) {
	text, _ := p.attrs.Attribute("ip")
	s := share{address: networkOf(text)}
	if !s.address.IsValid() {
		return
	}
	if l := p.gate.o.Overload; l != nil {
		if n := int64(l.Limit()); n >= fewPlaces && !use(s, n) {
			return
		}
	}
	for i := range d.Matches.Hits {
		h := &d.Matches.Hits[i]
		if !slotted(h) || p.gate.o.Identity.ownKey(h.Window.Rule.Per) {
			continue
		}
		s.counter, s.key = h.Window.Counter.ID, string(h.Key)
		if n := h.Limit.Config().N; n >= fewPlaces && !use(s, n) {
			return
		}
	}
}

// networkOf is the address of a client as it counts for its share.
func networkOf(ip string) netip.Addr {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return netip.Addr{}
	}
	return clientip.Network(a)
}

// half is how many of so many places the abandoned requests of one address may keep.
func half(places int64) int { return int(places / 2) }

// hasRoom reports whether one more request of a share may be abandoned, or dawdle: its address has
// less than half of the places with such requests, and afterwards no more than are left for all
// others. So several addresses never have all places. a.mu must be held.
func (a *abandoned) hasRoom(s share, places int64) bool {
	n := a.of[s] + a.slow[s]
	return n < half(places) && n+1 < int(places)-a.all[s.ofAll()]
}

// ofAll is the share of all addresses together.
func (s share) ofAll() share {
	s.address = netip.Addr{}
	return s
}

// count adds a request to a count of shares, which is a.of or a.slow. a.mu must be held.
func (a *abandoned) count(of map[share]int, shares []share) {
	for _, s := range shares {
		a.countOne(of, s)
	}
}

func (a *abandoned) countOne(of map[share]int, s share) {
	of[s]++
	a.all[s.ofAll()]++
}

// Keeps reports whether the request has a place that it keeps when its client hangs up, by
// Options.KeepAbandoned: then the caller is to call Abandon.
func (p *Pass) Keeps() bool { return p.gate.o.KeepAbandoned && p.HoldsPlace() }

// HoldsPlace reports whether the request has a place that others then lack: room under
// Options.Overload, or a slot of a limit on concurrency.
func (p *Pass) HoldsPlace() bool {
	if p.place.Permit.Held() {
		return true
	}
	for i := range p.decision.Limits {
		if p.decision.Limits[i].Slot != "" && slotted(&p.decision.Matches.Hits[i]) {
			return true
		}
	}
	return false
}

// Abandon notes that the client has hung up while the request is worked on elsewhere. The request
// is to be waited for until its answer begins, or until the context that Abandon returns ends; its
// place is kept until Leave. nil means that it is to be cut: its body has not come whole, so that
// the server behind may wait for the rest for ever; its address has too many such requests; the
// gate has been drained, or Options.KeptWhile has ended.
func (p *Pass) Abandon() context.Context {
	if p.body != nil && p.body.end.Load() == 0 {
		return nil
	}
	return p.AbandonUnsent()
}

// AbandonUnsent is Abandon for a request whose body has not come whole, and will not; the server
// behind gets to know that. The request is to be waited for until the server has answered, or
// closed the connection. It says nil after an Abandon that did so for other reasons than the body.
func (p *Pass) AbandonUnsent() context.Context {
	if p.kept || p.unkept {
		return nil
	}
	a := &p.gate.abandoned
	ending, forget := a.ending, func() {}
	if o := &p.gate.o; o.KeptWhile != nil {
		if while := o.KeptWhile(p.attrs.r); while != nil {
			if while.Err() != nil {
				p.unkept = true
				return nil
			}
			ctx, cancel := context.WithCancel(a.ending)
			stop := context.AfterFunc(while, cancel)
			ending, forget = ctx, func() { stop(); cancel() }
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	room := a.ending.Err() == nil
	var shares []share
	p.places(&p.decision, func(s share, places int64) bool {
		shares = append(shares, s)
		room = room && a.hasRoom(s, places)
		return room
	})
	if !room {
		forget()
		p.unkept = true
		a.cut.Add(1)
		return nil
	}
	a.count(a.of, shares)
	a.now.Add(1)
	a.kept.Add(1)
	p.kept, p.shares, p.forget = true, shares, forget
	return ending
}

// giveBack takes a request out of a count of shares. a.mu must be held.
func (a *abandoned) giveBack(of map[share]int, shares []share) {
	for _, s := range shares {
		a.giveBackOne(of, s)
	}
}

func (a *abandoned) giveBackOne(of map[share]int, s share) {
	if of[s]--; of[s] == 0 {
		delete(of, s)
	}
	if all := s.ofAll(); a.all[all] > 1 {
		a.all[all]--
	} else {
		delete(a.all, all)
	}
}

// Abandoned reports whether Abandon was called, and the request kept its place.
func (p *Pass) Abandoned() bool { return p.kept }

// settleAbandoned notes that an abandoned request is over.
func (p *Pass) settleAbandoned() {
	if !p.kept {
		return
	}
	p.forget()
	a := &p.gate.abandoned
	a.mu.Lock()
	defer a.mu.Unlock()
	a.giveBack(a.of, p.shares)
	a.now.Add(-1)
}
