package main

import (
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/spoe"
)

// spoeParallel is how many of HAProxy's requests are decided at a time that have to wait, for rules
// that take long to look at or for a store over a network: enough for group commit to have
// something to group.
const spoeParallel = 256

// addSPOE makes the door for HAProxy.
func (p *program) addSPOE(trust auth.Trust) {
	o := p.c.spoe
	o.Trusted, o.Stopwatch, o.Logger = trust.TrustedPeer, p.metrics, p.log
	o.Fields = p.fields
	o.Tracer, o.Line = p.tracer(), p.lineOf("spoe")
	o.Parallel = spoeParallel
	a := spoe.New(p.limiter, o)
	p.doors = append(p.doors, &door{name: "spoe", address: p.c.listen.spoe, serve: a.Serve, shutdown: a.Shutdown})
}
