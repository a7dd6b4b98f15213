package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/page"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/forwardauth"
	"github.com/weir-rl/weir/internal/door/httpapi"
	"github.com/weir-rl/weir/internal/door/rls"
	"github.com/weir-rl/weir/internal/door/spoe"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/rulesource/xds"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/wire/h1"
	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/rule"
)

// answerSettings shape the answers of all doors.
var answerSettings = []setting{
	{Path: "headers", Kind: settings.List, Value: "x-delta,draft11",
		Help: "families of rate-limit headers: x-delta, x-epoch or envoy03; draft03, draft11 or next; or off",
		Set: func(c *Config, items []string) (err error) {
			if c.headers, err = httplimit.ParseHeaders(items); err != nil {
				// the key is named anyway
				return errors.New(strings.TrimPrefix(err.Error(), "headers: "))
			}
			return nil
		}},
	{Path: "cors.origins", Kind: settings.List,
		Help: "origins of the web pages that may read the rate-limit headers and refusals, or * for all; none if empty",
		Set: func(c *Config, items []string) (err error) {
			if c.cors, err = httplimit.ParseOrigins(items); err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "cors.origins: "))
			}
			return nil
		}},
	{Path: "rls.response_headers", Value: "false",
		Help: "RLS answers carry rate-limit headers",
		Set:  settings.Bool(func(c *Config) *bool { return &c.rls.ResponseHeaders })},
	{Path: "rls.dynamic_metadata", Value: "false",
		Help: "RLS answers carry dynamic metadata",
		Set:  settings.Bool(func(c *Config) *bool { return &c.rls.DynamicMetadata })},
}

// doorSettings are the addresses of the doors, and what single doors do.
var doorSettings = []setting{
	{Path: "listen.http", Value: "127.0.0.1:8080",
		Help: "address of the HTTP decision API, host:port or unix:/path as for all doors; off closes it",
		Set:  settings.Address(func(c *Config) *string { return &c.listen.http })},
	{Path: "listen.grpc", Value: "127.0.0.1:8081",
		Help: "address of Envoy's rate limit service over gRPC; off closes it",
		Set:  settings.Address(func(c *Config) *string { return &c.listen.grpc })},
	{Path: "listen.resp", Value: "127.0.0.1:6380",
		Help: "address of the Redis protocol: CL.THROTTLE, THROTTLE and WEIR.LIMIT; off closes it",
		Set:  settings.Address(func(c *Config) *string { return &c.listen.resp })},
	{Path: "listen.admin", Value: "127.0.0.1:6070",
		Help: "address of the admin API and metrics; off closes it",
		Set:  settings.Address(func(c *Config) *string { return &c.listen.admin })},
	{Path: "listen.metrics",
		Help: "address of /metrics alone, in plain text and for everybody who reaches it, such as :19001; off closes it",
		Set:  settings.Address(func(c *Config) *string { return &c.listen.metrics })},
	{Path: "listen.proxy",
		Help: "address of the reverse proxy; needs proxy.upstream",
		Set:  settings.Address(func(c *Config) *string { return &c.listen.proxy })},
	{Path: "listen.spoe",
		Help: "address of the SPOE agent for HAProxy, such as 127.0.0.1:9907; off closes it",
		Set:  settings.Address(func(c *Config) *string { return &c.listen.spoe })},
	{Path: "default_domain",
		Help: "domain of requests that name none, as those through the proxy; if empty, the only one that the rules hold",
		Set:  settings.String(func(c *Config) *string { return &c.domain })},
	{Path: "forward_auth.dedupe", Value: "false",
		Help: "count repeated checks of one nginx request, known by X-Request-Id, once; only where nginx sets that header itself",
		Set:  settings.Bool(func(c *Config) *bool { return &c.forwardAuth.Dedupe })},
}

// doorConfig is the configuration of the doors, and of their answers.
type doorConfig struct {
	listen      struct{ http, grpc, resp, admin, metrics, proxy, spoe string } // addresses; "" is closed
	domain      string                                                         // of requests that name none
	rls         rls.Options
	forwardAuth forwardauth.Options
	headers     httplimit.Headers
	cors        httplimit.CORS
}

// checkAddresses reports two doors at one address.
func (c *Config) checkAddresses() error {
	l := &c.listen
	doors := []struct{ name, address string }{{"http", l.http}, {"grpc", l.grpc}, {"resp", l.resp}, {"spoe", l.spoe},
		{"proxy", l.proxy}, {"metrics", l.metrics}, {"admin", l.admin}}
	for i, d := range doors {
		for _, other := range doors[:i] {
			if listen.Clash(d.address, other.address) {
				return fmt.Errorf("listen.%s: %s is taken by listen.%s (%s); each door needs its own port or socket",
					d.name, d.address, other.name, other.address)
			}
		}
	}
	return nil
}

// door is one address with a protocol.
type door struct {
	name     string
	address  string // as configured
	listener *listen.Listener
	serve    func(net.Listener) error
	drain    func() // announces that the door is going away, before any door closes; may be nil
	shutdown func(context.Context) error
	memory   func() h2.MemoryStats // of HTTP/2; nil where nobody counts
}

// ready returns the reason why this server should get no requests at the moment; nil if it should.
func (p *program) ready() error {
	if p.draining.Load() {
		return errors.New("the server is going away")
	}
	if why := p.awaitsRules(); why != "" && p.c.xds.Require == xds.RequireReady {
		return errors.New(why)
	}
	if fault := p.storage.lasting(); fault != nil {
		return errors.New(fault.Advice + "; until then " + sharing(p.storage.fallback.Share()))
	}
	return nil
}

// addDoors makes a door for each address that is configured; the admin door comes last, so that it
// outlives the others.
func (p *program) addDoors(context.Context) error {
	listens := &p.c.listen
	options := p.c.rls
	options.Logger, options.Stopwatch, options.Tracer = p.log, p.metrics, p.tracer()
	if p.rateLimit != nil {
		options.Stopwatch = p.rateLimit
	}
	envoy := rls.New(p.limiter, options)
	trust := p.c.trust
	trust.Tokens = p.tokens
	if listens.http != "" {
		p.addHTTPAPI(envoy, trust)
	}
	if listens.grpc != "" {
		p.addGRPC(envoy)
	}
	if listens.proxy != "" {
		if err := p.addProxy(); err != nil {
			return err
		}
	}
	if listens.spoe != "" {
		p.addSPOE(trust)
	}
	if listens.resp != "" {
		p.addRESP(trust)
	}
	if listens.metrics != "" {
		p.addMetricsDoor()
	}
	if p.admin != nil {
		p.addAdmin()
	}
	if len(p.doors) == 0 {
		return errors.New(
			"no door is open; set one of listen.http, listen.grpc, listen.resp, listen.proxy and listen.admin")
	}
	return nil
}

// addHTTPAPI makes the door of the HTTP decision API, which also serves /json of envoy and forward
// auth.
func (p *program) addHTTPAPI(envoy *rls.Service, trust auth.Trust) {
	o := httpapi.Options{Domain: p.c.domain, Headers: p.c.headers, Trust: trust, Stopwatch: p.metrics,
		Tracer: p.tracer()}
	o.Line = p.lineOf("http")
	o.JSON, o.ForwardAuth = rls.NewJSON(envoy, trust.Trusted), p.forwardAuth()
	o.Ready = func() bool { return p.ready() == nil }
	p.pages = &auth.Pages{Hosts: p.c.admin.Hosts, Proxies: p.c.clientIP, Tokens: p.tokens, Logger: p.log}
	o.Pages = p.pages
	h := p.tokensFirst(httpapi.New(p.limiter, o))
	p.addLoop("http", p.c.listen.http, listen.NewHTTPServer(h, listen.HTTPOptions{Logger: p.log}), nil)
	d := p.doors[len(p.doors)-1]
	serve := d.serve
	d.serve = func(l net.Listener) error {
		// No certificate fits somebody else's name, and no browser sends a PROXY header.
		if p.tlsOf(d) == nil && !slices.Contains(p.c.proxyDoors, d.name) {
			p.pages.Listens(l.Addr())
		}
		return serve(l)
	}
}

// addLoop adds a door whose requests of HTTP/1.1 package h1 serves, and s all else. drain may be
// nil.
func (p *program) addLoop(name, address string, s *http.Server, drain func()) {
	p.bound(s)
	loop := h1.New(s)
	p.doors = append(p.doors, &door{name: name, address: address, serve: loop.Serve, shutdown: loop.Shutdown,
		drain: drain})
}

// addGRPC makes the door of Envoy's rate limit service, which also serves Envoy's quota service.
func (p *program) addGRPC(envoy *rls.Service) {
	p.quota = p.newQuota()
	o := rls.ServerOptions{
		Ready: func() bool { return p.ready() == nil }, MaxConnections: p.c.maxConnections,
		Authorize: p.authorizer("grpc"), Line: p.lineOf("rls"), Logger: p.log, Beside: p.quota.Register,
		MaxMemory: p.c.limits.mostMemory(), HandshakeTimeout: p.c.limits.headerTimeout,
	}
	g := rls.NewServer(envoy, o)
	p.doors = append(p.doors, &door{
		name: "grpc", address: p.c.listen.grpc, serve: g.Serve, shutdown: g.Shutdown, memory: g.Memory,
		drain: func() { g.Drain(); p.quota.Drain() },
	})
}

// addAdmin makes what the door of operators shows once all doors are open.
func (p *program) addAdmin() {
	o := p.c.admin
	o.Metrics, o.Source, o.Files, o.Signals = p.metrics.Handler(), p.rulesSource, p.ruleFiles, signalStates{p.signals}
	o.Deferred, o.Decisions = p.deferred, p.recent
	o.StoreNow = p.storeNow
	o.Ready, o.Remark, o.Tokens, o.Audit = p.ready, p.remarks, p.tokens, p.audit
	o.ClientIP = p.c.clientIP
	if p.insight != nil {
		o.Insight = p.fleet
	}
	o.Nodes, o.Regions = p.fleet, p.adminRegions()
	if p.c.Database != nil {
		o.Versions = &ruleVersions{address: p.c.Database, lint: p.c.LintOptions()}
	}
	o.Rollout = p.rollout
	if p.preview != nil {
		o.Preview = p.preview
	}
	var h *admin.Handler
	if p.c.page {
		o.Page = page.Handler(page.Options{Version: p.version, Regions: o.Regions != nil,
			First: func(r *http.Request) (page.Session, func() page.Snapshot, bool) {
				s, first, ok := h.First(r)
				return page.Session(s), func() page.Snapshot {
					outages := p.lastOutages(r.Context()) // asked for beside the figures
					snapshot := p.snapshot(first())
					if list := <-outages; len(list) > 0 {
						snapshot.Outages = list
					}
					return snapshot
				}, ok
			}})
		o.PagePaths = page.Paths()
	}
	h = admin.New(p.limiter, o)
	p.admin.started = h
	// This door closes last. If another one took all the time, streams would be cut off there.
	p.admin.drain = h.Close
	p.doors = append(p.doors, p.admin.door)
}

// snapshot is the data that the page gets with its HTML.
func (p *program) snapshot(overview *insight.Overview, rules *admin.RuleReports) (s page.Snapshot) {
	if set, _ := p.limiter.Rules(); set != nil {
		s.Domains = set.Domains()
	}
	if overview != nil { // a nil pointer would be JSON's null
		s.Insight = overview
	}
	if rules != nil {
		s.Rules = rules
	}
	return s
}

// rulesSource describes the origin of the rules, and the errors in them.
func (p *program) rulesSource() admin.RulesSource {
	s := p.rules.Status()
	out := admin.RulesSource{Path: s.Path, Version: s.Version, Files: s.Files, Loaded: s.Loaded, Loads: s.Loads,
		Failures: s.Failures}
	if s.Waiting {
		out.Path = "built-in starter rules"
	}
	if problems, ok := errors.AsType[rule.Problems](s.Err); ok {
		for _, problem := range problems {
			problem.Quote = "" // of a file, which not everybody may see who sees this
			out.Errors = append(out.Errors, problem.Error())
		}
	} else if s.Err != nil {
		out.Errors = append(out.Errors, s.Err.Error())
	}
	return out
}

// ruleFiles returns the files of the rules in force.
func (p *program) ruleFiles() admin.RuleFiles {
	sources := p.rules.Sources()
	out := admin.RuleFiles{
		Path: p.rulesSource().Path, Version: p.rules.Status().Version, Digest: fmt.Sprintf("sha256:%x", rulesource.Digest(sources)),
		IPv6Prefix: p.c.ipv6Prefix, Files: map[string]string{},
	}
	for _, s := range sources {
		out.Files[s.Name] = string(s.Data)
	}
	return out
}

// newHTTPDoor makes a door that s serves alone.
func (p *program) newHTTPDoor(name, address string, s *http.Server) *door {
	p.bound(s)
	return &door{
		name: name, address: address,
		serve: func(l net.Listener) error {
			err := s.Serve(l)
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		},
		shutdown: func(ctx context.Context) error {
			err := s.Shutdown(ctx)
			if err != nil {
				_ = s.Close() // cuts off the remaining connections
			}
			return err
		},
	}
}

// open opens all doors or none. That of operators is open already.
func (p *program) open(ctx context.Context) error {
	for _, d := range p.doors {
		if d.listener != nil {
			continue
		}
		if err := p.openDoor(ctx, d); err != nil {
			for _, other := range p.doors {
				if other.listener != nil {
					_ = other.listener.Close()
				}
			}
			return err
		}
	}
	p.opened.Store(true)
	return nil
}

// openDoor makes d listen.
func (p *program) openDoor(ctx context.Context, d *door) error {
	l, err := listen.Open(ctx, d.address)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = passing{fmt.Errorf(
			"%s is in use by another program; stop that one, or choose another address with --listen-%s (port 0 takes a free one)", d.address, d.name)}
	}
	if err != nil {
		return fmt.Errorf("listen.%s: %w", d.name, err)
	}
	d.listener = listen.New(l, p.listenerOptions(d))
	return nil
}

// serveDoors serves all doors. If one breaks, its error goes to broken; ended is done when all have
// been shut down.
func (p *program) serveDoors() (broken <-chan error, ended *sync.WaitGroup) {
	if p.admin != nil { // before the log says that it is open: connections to the others wait for a moment
		p.admin.show(p.admin.started)
	}
	failed := make(chan error, len(p.doors))
	ended = new(sync.WaitGroup)
	for _, d := range p.doors {
		ended.Go(func() {
			if err := d.serve(d.listener); err != nil {
				failed <- fmt.Errorf("door %s: %w", d.name, err)
			}
		})
		p.log.Info("door open", p.doorAttributes(d)...)
		p.warnIfOpen(d)
	}
	return failed, ended
}

// warnIfOpen logs a warning about an admin door that needs no credentials.
func (p *program) warnIfOpen(d *door) {
	addr, ok := d.listener.Addr().(*net.TCPAddr)
	if d.name == "admin" && p.tokens == nil && !p.demandsCertificate(d) && ok && !addr.IP.IsLoopback() {
		p.log.Warn("the admin door is open to the network, without auth.tokens_file", "addr", addr.String())
	}
}

// drain closes the doors: they take no new requests, and requests under way may finish within the
// configured time. The admin door closes last, so that its readiness shows the progress.
func (p *program) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, p.c.drain.finish)
	defer cancel()
	for _, d := range p.doors {
		if d.drain != nil {
			d.drain()
		}
	}
	shut := func(d *door) {
		if err := d.shutdown(ctx); err != nil {
			p.log.Warn("requests were cut off", "door", d.name, "error", err)
		}
	}
	var closing sync.WaitGroup
	for _, d := range p.doors {
		if d.name != "admin" {
			closing.Go(func() { shut(d) })
		}
	}
	closing.Wait()
	if err := p.storage.returnLeases(ctx); err != nil {
		p.log.Warn("not all that Redis has lent was given back; it counts as used", "error", err)
	}
	for _, d := range p.doors {
		if d.name == "admin" {
			shut(d)
		}
	}
}

// spoeParallel is how many of HAProxy's requests are decided at a time that have to wait, for rules
// that take long to look at or for a store over a network: enough for group commit to have
// something to group.
const spoeParallel = 256

// addSPOE makes the door for HAProxy.
func (p *program) addSPOE(trust auth.Trust) {
	o := spoe.Options{
		Domain: p.c.domain, Trusted: trust.TrustedPeer, Stopwatch: p.metrics, Logger: p.log,
		Fields: p.fields, EncodedSlash: p.c.fields.encodedSlash,
	}
	o.Tracer, o.Line = p.tracer(), p.lineOf("spoe")
	o.Parallel = spoeParallel
	a := spoe.New(p.limiter, o)
	p.doors = append(p.doors, &door{name: "spoe", address: p.c.listen.spoe, serve: a.Serve, shutdown: a.Shutdown})
}

// forwardAuth makes the part of the HTTP door that answers nginx, Caddy and Traefik.
func (p *program) forwardAuth() http.Handler {
	c := p.c
	o := c.forwardAuth
	o.Domain, o.EncodedSlash = c.domain, c.fields.encodedSlash
	o.Headers, o.CORS, o.ClientIP = c.headers, c.cors, c.clientIP
	o.Stopwatch, o.Tracer, o.Logger = p.metrics, p.tracer(), p.log
	o.Line = p.lineOf("forward-auth")
	o.Identity, o.Fields = p.identity, p.fields
	return forwardauth.New(p.limiter, o)
}
