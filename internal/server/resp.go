package server

import (
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/resp"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// respConcurrent is how many commands of one pipeline are decided at a time that have to wait,
// for a store over a network or for rules that take long to look at.
const respConcurrent = 64

// leastRESPMemory has room for the connections that max_connections allows, of 16 KiB each, however
// little memory the machine has.
const leastRESPMemory = 256 << 20

// addRESP makes the door that speaks the Redis protocol.
func (p *program) addRESP(trust auth.Trust) {
	c := p.c
	o := resp.Options{
		Domain: c.domain, Trusted: trust.TrustedPeer, Required: p.needsToken("resp"),
		MaxMemory: max(c.limits.mostMemory(), leastRESPMemory), Stall: c.limits.stall, Version: p.version,
	}
	o.Stopwatch, o.StoreError, o.Logger = p.metrics, p.metrics.Hooks().StoreError, p.log
	if p.insight != nil {
		o.Throttled = p.throttled
	}
	if p.tokens != nil {
		o.Auth, o.Watch = p.tokens.Check, p.tokens.Watch
	}
	o.Concurrent = respConcurrent
	o.Tracer, o.Line = p.tracer(), p.lineOf("resp")
	s := resp.New(p.limiter, p.metrics.Store(p.tracedStore(p.storage.Store)), o)
	p.metrics.Registry().MustRegister(metrics.NewRESP(s.Stats))
	p.doors = append(p.doors, &door{name: "resp", address: c.listen.resp, serve: s.Serve, shutdown: s.Shutdown})
}

// throttled passes a command that brought its limit along to insight.
func (p *program) throttled(command string, key []byte, quantity, now int64, r *algo.Result) {
	kind := insight.CLThrottle
	if command == "throttle" {
		kind = insight.Throttle
	}
	p.insight.Command(kind, key, quantity, now, r)
}
