package proxy

import (
	"context"
	"net/http"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// placeWait is how long a request waits for a place among those that are under way to the upstream.
const placeWait = 2 * time.Second

// takesConnection reports whether r takes a connection to the upstream for itself.
func (p *Proxy) takesConnection(r *http.Request) bool {
	return !p.multiplexed.Load() || r.Header.Get("Upgrade") != ""
}

// holdsPlace reports whether r holds a place that others may lack: a connection to the upstream,
// room under Options.Overload, or a slot of a limit on concurrency.
func (p *Proxy) holdsPlace(r *http.Request, pass *httplimit.Pass) bool {
	return p.takesConnection(r) || pass.HoldsPlace()
}

// keptWhile is for httplimit.Options.
func keptWhile(r *http.Request) context.Context { return h2.KeptWhile(r.Context()) }

func nothing() {}

// enter takes a place for r, which leave gives back.
func (p *Proxy) enter(r *http.Request, pass *httplimit.Pass) (leave func(), err error) {
	if p.places == nil || !p.takesConnection(r) {
		return nothing, nil
	}
	var connection any
	if r.ProtoMajor == 2 && !p.o.ClientIP.TrustedPeer(r) { // that is one of many clients' requests
		connection = h2.ConnectionOf(r.Context())
	}
	waited, err := p.places.Enter(r.Context(), connection, p.placeWait)
	if waited > 0 {
		pass.Waited(waited)
	}
	if err != nil {
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

// Upstream counts the requests that are under way to the upstream; zero without
// Options.MaxUpstream.
func (p *Proxy) Upstream() upstream.PlaceStats { return p.places.Stats() }
