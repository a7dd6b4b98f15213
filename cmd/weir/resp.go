package main

import (
	"log/slog"
	"net"
	"slices"

	"github.com/weir-rl/weir/internal/resp"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/telemetry"
	"github.com/weir-rl/weir/rule"
)

// respConcurrent is how many commands of one pipeline are decided at a time where the store is over a network.
const respConcurrent = 64

// addRESP makes the door that speaks the Redis protocol.
func (p *program) addRESP(trust server.Trust) {
	c := p.c
	o := resp.Options{
		Domain: c.resp.domain, Trusted: trust.TrustedPeer, Required: slices.Contains(c.authDoors, "resp"),
		MaxMemory: c.resp.maxMemory, Idle: c.resp.idle, Stall: c.limits.stall, Version: versionText(),
		Stopwatch: p.metrics, StoreError: p.metrics.Hooks().StoreError, Logf: p.logf(slog.LevelError),
	}
	if p.tokens != nil {
		o.Auth = func(peer, password string) resp.Verdict {
			switch p.tokens.Check(peer, password) {
			case server.Right:
				return resp.Right
			case server.TooMany:
				return resp.TooMany
			}
			return resp.Wrong
		}
	}
	if c.store != storeMemory {
		o.Concurrent = respConcurrent
	}
	s := resp.New(p.limiter, p.metrics.Store(p.storage.Store), o)
	p.metrics.Registry().MustRegister(telemetry.NewRESP(func() telemetry.RESP { return respReading(s.Stats()) }))
	p.doors = append(p.doors, &door{name: "resp", address: c.listen.resp, serve: s.Serve, shutdown: s.Shutdown})
}

func respReading(s resp.Stats) telemetry.RESP {
	r := telemetry.RESP{Memory: s.Memory, Other: s.Other}
	for _, d := range s.Decisions {
		r.Decisions = append(r.Decisions, telemetry.RESPCount{Command: d.Name, Outcome: d.Outcome, N: d.N})
	}
	for _, d := range s.Dropped {
		r.Dropped = append(r.Dropped, telemetry.RESPCount{Outcome: d.Name, N: d.N})
	}
	return r
}

// redisCLI are commands to paste that ask the door.
func (p *program) redisCLI(d *door, domain string, attributes []rule.Pair) string {
	cli := "redis-cli"
	if a, ok := d.listener.Addr().(*net.TCPAddr); ok {
		host, port, _ := net.SplitHostPort(connectAddress(a)) // which is an address
		cli += " -h " + host + " -p " + port
	} else {
		cli += " -s " + shellQuote(d.listener.Addr().String())
	}
	if p.tlsOf(d) != nil {
		cli += " --tls --cacert CA.pem"
		if p.demandsCertificate(d) {
			cli += " --cert CLIENT.pem --key CLIENT.key"
		}
	}
	if p.needsToken("resp") {
		cli += ` -a "$TOKEN" --no-auth-warning`
	}
	limit := cli + " WEIR.LIMIT " + shellQuote(domain) + " 1"
	for _, a := range attributes {
		limit += " " + shellQuote(a.Name) + " " + shellQuote(a.Value)
	}
	return limit + "\n" + cli + " CL.THROTTLE ada 15 30 60"
}
