package main

import (
	"cmp"
	"fmt"
	"log/slog"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/server"
)

// forwardAuth makes the part of the HTTP door that answers nginx, Caddy and Traefik.
func (p *program) forwardAuth() (*server.ForwardAuth, error) {
	c := p.c
	o := server.ForwardAuthOptions{
		Domain: cmp.Or(c.forwardAuth.domain, c.http.domain), Headers: c.headers, CORS: c.cors, ClientIP: c.clientIPOf(),
		Dedupe: c.forwardAuth.dedupe, Stopwatch: p.metrics, Logf: p.logf(slog.LevelWarn),
	}
	if len(c.identity) > 0 {
		identity, err := httplimit.ParseIdentity(c.identity, c.jwks)
		if err != nil {
			return nil, fmt.Errorf("identity: %w", err)
		}
		o.Identity = identity
	}
	return server.NewForwardAuth(p.limiter, o), nil
}
