package main

import (
	"cmp"
	"fmt"
	"net/http"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/forwardauth"
)

// forwardAuth makes the part of the HTTP door that answers nginx, Caddy and Traefik.
func (p *program) forwardAuth() (http.Handler, error) {
	c := p.c
	o := c.forwardAuth
	o.Domain = cmp.Or(o.Domain, c.http.Domain)
	o.Headers, o.CORS, o.ClientIP = c.headers, c.cors, c.clientIP
	o.Stopwatch, o.Tracer, o.Logger = p.metrics, p.tracer(), p.log
	o.Line = p.lineOf("forward-auth")
	if len(c.identity) > 0 {
		identity, err := httplimit.ParseIdentity(c.identity, c.jwks)
		if err != nil {
			return nil, fmt.Errorf("identity: %w", err)
		}
		o.Identity = identity
	}
	return forwardauth.New(p.limiter, o), nil
}
