package main

import (
	"cmp"
	"net/http"

	"github.com/weir-rl/weir/internal/door/forwardauth"
)

// forwardAuth makes the part of the HTTP door that answers nginx, Caddy and Traefik.
func (p *program) forwardAuth() http.Handler {
	c := p.c
	o := c.forwardAuth
	o.Domain = cmp.Or(o.Domain, c.http.Domain)
	o.Headers, o.CORS, o.ClientIP = c.headers, c.cors, c.clientIP
	o.Stopwatch, o.Tracer, o.Logger = p.metrics, p.tracer(), p.log
	o.Line = p.lineOf("forward-auth")
	o.Identity, o.Fields = p.identity, p.fields
	return forwardauth.New(p.limiter, o)
}
