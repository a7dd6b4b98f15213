package httplimit

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// A request whose client hangs up is abandoned: nobody waits for its answer. Where a handler passes
// requests on, the server behind works on it all the same, so that its place is not free. Whoever
// could free it by hanging up would get round each bound on concurrency.

// abandoned holds the abandoned requests that keep their places.
type abandoned struct {
	now                atomic.Int64 // how many there are: while none, nothing is looked up
	kept, cut, refused atomic.Uint64

	ending context.Context // ends when none is kept any more
	end    context.CancelFunc

	mu sync.Mutex
	of map[share]int
}

// share is what one address has of places that it shares with others.
type share struct {
	address netip.Addr // an IPv6 /64 for all that are in it; zero for peers without one
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
	// address.
	Refused uint64
}

// Abandoned returns a reading.
func (g *Gate) Abandoned() AbandonedStats {
	a := &g.abandoned
	return AbandonedStats{Now: int(a.now.Load()), Kept: a.kept.Load(), Cut: a.cut.Load(), Refused: a.refused.Load()}
}

// places calls use for each of the places that a request needs or has and that others, of other
// addresses, may lack: with the share of its own address, and how many places there are. It ends
// when use returns false.
func (p *Pass) places(d *weir.Decision, use func(s share, places int64) bool) {
	text, _ := p.attrs.Attribute("ip")
	s := share{address: networkOf(text)}
	if l := p.gate.o.Overload; l != nil && !use(s, int64(l.Limit())) {
		return
	}
	for i := range d.Matches.Hits {
		h := &d.Matches.Hits[i]
		if !slotted(h) || ownKey(h.Window.Rule.Per) {
			continue
		}
		s.counter, s.key = h.Window.Counter.ID, string(h.Key)
		if !use(s, h.Limit.Config().N) {
			return
		}
	}
}

// ownKey reports whether a key is of one client, and not one that clients share: then an address
// takes places of nobody else.
func ownKey(per []rule.Key) bool {
	for _, key := range per {
		for _, name := range key {
			switch name {
			case "path", "method", "host":
			default:
				return true
			}
		}
	}
	return false
}

// networkOf is the address of a client as it counts for its share.
func networkOf(ip string) netip.Addr {
	a, err := netip.ParseAddr(ip)
	if err != nil {
		return netip.Addr{}
	}
	return rule.ClientNetwork(a)
}

// half is how many of so many places the abandoned requests of one address may keep.
func half(places int64) int { return int(max(1, places/2)) }

// crowdedOut reports whether the abandoned requests of the client's address keep as many places as
// they may, so that it gets no further one: it could abandon that as well.
func (p *Pass) crowdedOut(d *weir.Decision) (out bool) {
	a := &p.gate.abandoned
	if a.now.Load() == 0 || d.Exempt {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.places(d, func(s share, places int64) bool {
		out = a.of[s] >= half(places)
		return !out
	})
	if out {
		a.refused.Add(1)
	}
	return out
}

// Keeps reports whether the request has a place that it keeps when its client hangs up, by
// Options.KeepAbandoned: then the caller is to call Abandon.
func (p *Pass) Keeps() bool {
	if !p.gate.o.KeepAbandoned {
		return false
	}
	if p.room.Permit.Held() {
		return true
	}
	for i := range p.decision.Limits {
		if p.decision.Limits[i].Slot != "" && slotted(&p.decision.Matches.Hits[i]) {
			return true
		}
	}
	return false
}

// Abandon tells that the client has hung up while the request is worked on elsewhere. The request
// is to be waited for until its answer begins, or until the context that Abandon returns ends; its
// place is kept until Leave. nil means that its address has too many such requests, or that the
// gate has been drained: it is to be cut.
func (p *Pass) Abandon() context.Context {
	a := &p.gate.abandoned
	a.mu.Lock()
	defer a.mu.Unlock()
	room := a.ending.Err() == nil
	var shares []share
	p.places(&p.decision, func(s share, places int64) bool {
		shares = append(shares, s)
		room = room && a.of[s] < half(places)
		return room
	})
	if !room {
		a.cut.Add(1)
		return nil
	}
	for _, s := range shares {
		a.of[s]++
	}
	a.now.Add(1)
	a.kept.Add(1)
	p.kept, p.shares = true, shares
	return a.ending
}

// Abandoned reports whether Abandon was called, and the request kept its place.
func (p *Pass) Abandoned() bool { return p.kept }

// settleAbandoned tells that an abandoned request is over.
func (p *Pass) settleAbandoned() {
	if !p.kept {
		return
	}
	a := &p.gate.abandoned
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range p.shares {
		if a.of[s]--; a.of[s] == 0 {
			delete(a.of, s)
		}
	}
	a.now.Add(-1)
}
