package httplimit

import (
	"net/http"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
)

// slotted reports whether a hit takes a slot of a limit on concurrency that is enforced.
func slotted(h *rule.Hit) bool {
	return h.Mode != rule.Shadow && h.Limit.HasSlots()
}

// isReady waits until a request that is about to take a place can be handled; false if the request
// is over.
func (p *Pass) isReady(d *weir.Decision) bool {
	o, r := &p.gate.o, p.attrs.r
	if p.asked || r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody || o.Overload == nil && !takesSlot(d) {
		return true
	}
	if l := o.Overload; l != nil && !l.WouldAdmit(overload.PriorityOf(d)) && p.place.Refuses(l, d) {
		return false // there is no place for it anyway
	}
	p.place.Permit.Return() // a place has just become free: it is taken in its turn
	p.asked = true
	p.unready = !o.Ready(p.w, r)
	return !p.unready
}

// takesSlot reports whether d meets a limit on concurrency that is enforced.
func takesSlot(d *weir.Decision) bool {
	for i := range d.Matches.Hits {
		if slotted(&d.Matches.Hits[i]) {
			return true
		}
	}
	return false
}
