package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/observe/otel"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// proxySettings are of the reverse proxy.
var proxySettings = []setting{
	{Path: "proxy.upstream",
		Help: "URL of the API behind the proxy",
		Set: settings.Text(func(c *Config, s string) error {
			u, err := url.Parse(s)
			if err != nil {
				return errors.New("is no URL; write for example http://127.0.0.1:3000")
			}
			if c.proxy.Upstream = u; s == "" {
				c.proxy.Upstream = nil
			}
			return nil
		})},
	{Path: "proxy.path", Value: "normal",
		Help: "path that the upstream gets: normal (as it was matched) or as_is",
		Set: settings.Text(func(c *Config, s string) error {
			if s != "normal" && s != "as_is" {
				return fmt.Errorf("%q must be normal or as_is", s)
			}
			c.proxy.PathAsIs = s == "as_is"
			return nil
		})},
	{Path: "proxy.upstream_host", Value: "false",
		Help: "send the upstream's own name in the Host header",
		Set:  settings.Bool(func(c *Config) *bool { return &c.proxy.UpstreamHost })},
	{Path: "proxy.timeout", Value: "60s",
		Help: "longest wait for the upstream's response header",
		Set:  settings.Duration(time.Millisecond, func(c *Config) *time.Duration { return &c.proxy.Timeout })},
	{Path: "proxy.upstream_idle",
		Help: "how long a connection to the upstream is kept that no request uses, less than the upstream keeps it; 0s for not at all; if empty, 1.5s to http, 50s to https and h2c",
		Set: settings.Text(func(c *Config, s string) error {
			if c.proxy.UpstreamIdle = 0; s == "" {
				return nil
			}
			d, err := time.ParseDuration(s)
			if err != nil || d < 0 {
				return fmt.Errorf("%q must be a duration, such as 4s, or 0s for none", s)
			}
			if c.proxy.UpstreamIdle = d; d == 0 {
				c.proxy.UpstreamIdle = -1 // 0 is the default there
			}
			return nil
		})},
	{Path: "proxy.body_timeout", Value: "60s",
		Help: "longest pause of a client in the middle of a request body, over HTTP/2 until the answer begins; 0s for any",
		Set: func(c *Config, items []string) error {
			err := settings.Duration(0, func(c *Config) *time.Duration { return &c.proxy.BodyTimeout })(c, items)
			if c.proxy.BodyTimeout == 0 {
				c.proxy.BodyTimeout = -1 // none; 0 is the default there
			}
			return err
		}},
	{Path: "proxy.body_rate", Value: "1KiB",
		Help: "bytes of a request body that must come in a second until the answer begins, on average after the first 10 s; 0 for any",
		Set: settings.Text(func(c *Config, s string) (err error) {
			if c.proxy.BodyRate = -1; s != "0" {
				c.proxy.BodyRate, err = settings.ParseBytes(s)
			}
			return err
		})},
	{Path: "proxy.concurrency",
		Help: "bound on the requests that the upstream works on at a time: adaptive finds it, a number fixes it; none if empty",
		Set: settings.Text(func(c *Config, s string) error {
			if n, err := strconv.Atoi(s); s != "" && s != "adaptive" && (err != nil || n < 1 || n > 1_000_000) {
				return fmt.Errorf("%q must be adaptive, or a number from 1 to 1000000", s)
			}
			c.concurrency = s
			return nil
		})},
	{Path: "proxy.abandoned", Value: "keep",
		Help: "requests whose clients hang up, where proxy.concurrency or a limit on concurrency holds: keep (their place, until the upstream has answered) or cut (at once)",
		Set: settings.Text(func(c *Config, s string) error {
			if s != "keep" && s != "cut" {
				return fmt.Errorf("%q must be keep or cut", s)
			}
			c.proxy.CutAbandoned = s == "cut"
			return nil
		})},
	{Path: "proxy.capacity", Value: "0",
		Help: "requests in flight that are 100 % of the signal in_flight; 0: what proxy.concurrency admits",
		Set:  settings.Int(0, 1_000_000, func(c *Config) *int { return &c.capacity })},
}

// proxyConfig is the configuration of the reverse proxy.
type proxyConfig struct {
	proxy       proxy.Options
	concurrency string // of the proxy: "", "adaptive", or a number
	capacity    int    // requests in flight that are 100 %; 0 for as many as concurrency admits
}

// addProxy makes the door of the reverse proxy.
func (p *program) addProxy() error {
	c := p.c
	if c.proxy.Upstream == nil {
		return errors.New("proxy.upstream: is missing; write for example http://127.0.0.1:3000")
	}
	if set, _ := p.limiter.Rules(); c.domain == "" && set != nil && len(set.Domains()) > 1 {
		return fmt.Errorf("default_domain: is missing, and the rules hold several domains (%s)",
			strings.Join(set.Domains(), ", "))
	}
	o := c.proxy
	o.Domain, o.EncodedSlash = c.domain, c.fields.encodedSlash
	o.Headers, o.CORS, o.ClientIP, o.Identity, o.Fields = c.headers, c.cors, c.clientIP, p.identity, p.fields
	o.Defer, o.Overload, o.Load = p.deferral(), p.overload, p.signals
	o.MaxUpstream = p.connections()
	o.Stopwatch, o.Logf, o.Line = p.metrics, p.logf(slog.LevelWarn), p.lineOf("proxy")
	if p.tracer() != nil {
		o.Trace = otel.TraceOf
	}
	h, err := proxy.New(p.limiter, o)
	if err != nil {
		return err
	}
	p.proxy = h
	served := http.Handler(h)
	if p.tracer() != nil {
		served = p.otel.Tracer().Serve(h)
	}
	s, memory := proxy.NewServer(proxy.Bound(served, c.limits.body, c.limits.stall),
		h2.HTTPOptions{MaxMemory: c.limits.mostMemory(), Logger: p.log, Client: func(peer net.Addr) netip.Addr {
			return listen.Client(peer, c.clientIP.Trusted) // a proxy brings the requests of many
		}})
	p.addLoop("proxy", c.listen.proxy, s, h.Drain)
	p.doors[len(p.doors)-1].memory = memory
	return nil
}
