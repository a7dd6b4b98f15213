package proxy

import (
	"net/http"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/h2"
	"github.com/weir-rl/weir/internal/upstream"
)

// placeWait is how long a request waits for a place among those that are under way to the upstream.
const placeWait = 2 * time.Second

// needsPlace reports whether r takes a connection to the upstream for itself.
func (p *Proxy) needsPlace(r *http.Request) bool {
	return p.places != nil && (!p.multiplexed.Load() || r.Header.Get("Upgrade") != "")
}

// holdsPlace reports whether r, or the decision about it, holds a place that others may lack: a
// connection to the upstream, room under Options.Overload, or a slot of a limit on concurrency.
func (p *Proxy) holdsPlace(r *http.Request, pass *httplimit.Pass) bool {
	return p.needsPlace(r) || p.o.Overload != nil || p.o.CutAbandoned || pass.Keeps()
}

func nothing() {}

// enter takes a place for r, which leave gives back.
func (p *Proxy) enter(r *http.Request) (leave func(), err error) {
	if !p.needsPlace(r) {
		return nothing, nil
	}
	var connection any
	if r.ProtoMajor == 2 {
		connection = h2.ConnectionOf(r.Context())
	}
	if err := p.places.Enter(r.Context(), connection, p.placeWait); err != nil {
		return nil, err
	}
	return func() { p.places.Leave(connection) }, nil
}

// dropIdle closes a connection to the upstream that is idle, if there is one.
func (p *Proxy) dropIdle() {
	if p.direct != nil && p.direct.DropIdle() {
		return
	}
	for _, t := range p.transports {
		t.CloseIdleConnections()
	}
}

// Upstream tells of the requests that are under way to the upstream; zero without
// Options.MaxUpstream.
func (p *Proxy) Upstream() upstream.PlaceStats { return p.places.Stats() }
