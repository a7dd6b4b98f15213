package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	ossignal "os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/deferred"
	"github.com/weir-rl/weir/internal/listen"
	"github.com/weir-rl/weir/internal/proxy"
	"github.com/weir-rl/weir/internal/recent"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/signal"
	"github.com/weir-rl/weir/internal/source"
	"github.com/weir-rl/weir/internal/telemetry"
	"github.com/weir-rl/weir/rule"
)

func newServeCommand(env []string) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the doors that the configuration turns on",
		Long: `Runs the doors that the configuration turns on: the HTTP decision API, Envoy's rate limit service over gRPC,
the Redis protocol, the reverse proxy, and the admin API. Servers with the same Redis as their store enforce one limit together.

Without any configuration all of them but the proxy open on loopback, with the rules of ./rules, or built-in
starter rules if that folder is not there.

Each setting is a key of weir.yaml (listen.http), a flag (--listen-http) and an environment variable
(WEIR_LISTEN_HTTP); a flag goes before the variable, and that before the file. An address of port 0 takes a free
port. SIGHUP reloads the rules; SIGTERM and SIGINT let requests under way finish, write the snapshot, and end the program.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd.Flags(), env)
			if err != nil {
				return usageError(err)
			}
			return serve(cmd.Context(), c, check, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "check the configuration and the rules, and exit")
	addSettingFlags(cmd.Flags())
	return cmd
}

// serve runs the program until ctx ends. All that is wrong before the doors open is a usage error.
func serve(ctx context.Context, c *config, check bool, stdout, stderr io.Writer) error {
	p := &program{c: c, log: newLogger(c, stderr), work: make(chan struct{})}
	if err := p.prepare(check); err != nil {
		return usageError(err)
	}
	if check {
		fmt.Fprintln(stdout, "the configuration and the rules are good")
		return p.close()
	}
	err := p.run(ctx, stdout)
	if closing := p.close(); closing != nil {
		p.log.Error("the store did not close well", "error", closing)
		err = errors.Join(err, closing)
	}
	if err == nil {
		p.log.Info("stopped")
	}
	return err
}

func newLogger(c *config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.log.level}
	if c.log.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// program is a running weir.
type program struct {
	c        *config
	log      *slog.Logger
	folder   *source.Folder // nil with the starter rules
	storage  *storage
	limiter  *weir.Limiter
	metrics  *telemetry.Metrics
	tokens   *server.Tokens // nil without auth.tokens_file
	recent   *recent.Buffer
	signals  *signal.Registry
	adaptive *httplimit.Adaptive // nil without proxy.concurrency
	firewall *firewall
	// certificates are those of the doors; nil without tls.cert
	certificates *listen.Certificates
	deferred     deferred.Queue // nil without one
	proxy        *proxy.Proxy   // nil without one
	holding      atomic.Pointer[proxy.Proxy]
	work         chan struct{} // closed when there may be something to work off
	needed       sync.Once
	doors        []*door
	opened       atomic.Bool // the doors
	draining     atomic.Bool
}

// door is one address with a protocol.
type door struct {
	name     string
	address  string // as configured
	listener *listen.Listener
	serve    func(net.Listener) error
	drain    func() // makes health checks tell that it is going away; nil if it has none
	shutdown func(context.Context) error
}

// prepare builds everything but opens nothing.
func (p *program) prepare(check bool) error {
	c := p.c
	options := rule.Options{IPv6Prefix: c.clientIP.ipv6Prefix}
	set, err := p.loadRules(options)
	if err != nil {
		return err
	}
	if c.tokensFile != "" {
		p.tokens = &server.Tokens{ClientIP: c.clientIPOf(), Logger: p.log}
		if err := p.tokens.Load(c.tokensFile); err != nil {
			return fmt.Errorf("auth.tokens_file: %w", err)
		}
	}
	if err := p.checkTransport(); err != nil {
		return err
	}
	if err := p.openStore(check); err != nil {
		return err
	}
	o := telemetry.Options{
		Loading:  p.loading(),
		Detailed: c.detailed,
		Hide:     secretIdentities(c.identity),
		UnknownDomain: func(domain string) {
			p.log.Warn("requests come in for a domain that no rule file declares; they are allowed", "domain", domain)
		},
	}
	p.storage.readings(&o)
	p.firewall = newFirewall(c.clientIP.trusted, c.clientIP.ipv6Prefix, p.log)
	p.firewall.options.Table = c.ban.table
	o.Bans, o.NFTables = func() weir.BanStats { return p.limiter.BanStats() }, p.firewall.stats
	p.metrics = telemetry.New(o)
	if err := p.prepareLimiter(set, check); err != nil {
		return errors.Join(err, p.close())
	}
	return nil
}

// prepareLimiter makes the limiter with all that works on it.
func (p *program) prepareLimiter(set *rule.Set, check bool) error {
	c := p.c
	var err error
	if p.recent, err = recent.New(recent.Options{Entries: c.recent, Bytes: max(16<<20, int64(c.recent)*1678), Hide: secretIdentities(c.identity)}); err != nil {
		return err
	}
	if err := p.prepareLoad(); err != nil {
		return err
	}
	if !check {
		if err := p.firewall.open(set); err != nil {
			return err
		}
		if err := p.openDeferred(set); err != nil {
			return err
		}
	}
	hooks := weir.JoinHooks(p.metrics.Hooks(), p.recent.Hooks())
	p.limiter, err = weir.New(p.metrics.Store(p.storage.Store), weir.WithRules(set), weir.WithSignals(p.signals),
		weir.WithBans(weir.BanOptions{Max: c.ban.max, Changed: p.firewall.changed}),
		weir.WithHooks(weir.JoinHooks(hooks, weir.Hooks{Decided: p.refunded})))
	if err != nil {
		return err
	}
	p.signals.SetUsed(signalsOf(set))
	p.collectLoad()
	if err := p.addDoors(); err != nil {
		return err
	}
	p.collectQueues()
	p.collectDoors()
	return nil
}

// refunded lets requests that the proxy holds ask when something was given back at another door.
func (p *program) refunded(r *weir.Request, d *weir.Decision) {
	if r.Hits < 0 {
		if h := p.holding.Load(); h != nil {
			h.Refunded(r, d)
		}
	}
}

// rulesChanged puts s in force.
func (p *program) rulesChanged(s *rule.Set) {
	if err := p.firewall.open(s); err != nil {
		p.log.Error("banned addresses are refused, but the kernel does not drop their packets", "error", err)
	}
	p.limiter.SetRules(s)
	p.signals.SetUsed(signalsOf(s))
	p.startDeferring(s)
}

// close closes what prepare has opened.
func (p *program) close() error {
	var failures []error
	if p.deferred != nil {
		failures = append(failures, p.deferred.Close())
	}
	if p.firewall != nil {
		failures = append(failures, p.firewall.close())
	}
	return errors.Join(append(failures, p.storage.Close())...)
}

// loadRules loads the folder, or the starter rules if nobody named one and ./rules is not there.
func (p *program) loadRules(o rule.Options) (*rule.Set, error) {
	if !p.c.rulesSet {
		if _, err := os.Stat(p.c.rules); errors.Is(err, fs.ErrNotExist) {
			p.log.Info("there is no folder " + p.c.rules + ": the built-in starter rules are in force")
			set, _, err := rule.Load([]rule.Source{rule.Starter()}, o)
			return set, err
		}
	}
	folder, set, err := source.Open(source.Options{
		Path: p.c.rules, Rules: o, Logger: p.log,
		Changed: p.rulesChanged,
	})
	p.folder = folder
	return set, err
}

func (p *program) loading() func() telemetry.Loading {
	if p.folder == nil {
		now := time.Now()
		return func() telemetry.Loading { return telemetry.Loading{Loaded: now, Loads: 1} }
	}
	return func() telemetry.Loading {
		s := p.folder.Status()
		return telemetry.Loading{Loaded: s.Loaded, Loads: s.Loads, Failures: s.Failures}
	}
}

func (p *program) rulesSource() server.RulesSource {
	if p.folder == nil {
		return server.RulesSource{Path: "built-in starter rules", Loads: 1}
	}
	s := p.folder.Status()
	out := server.RulesSource{Path: s.Path, Files: s.Files, Loaded: s.Loaded, Loads: s.Loads, Failures: s.Failures}
	if problems, ok := errors.AsType[rule.Problems](s.Err); ok {
		for _, problem := range problems {
			out.Errors = append(out.Errors, problem.Error())
		}
	} else if s.Err != nil {
		out.Errors = append(out.Errors, s.Err.Error())
	}
	return out
}

func (p *program) logf(level slog.Level) func(format string, args ...any) {
	return func(format string, args ...any) {
		p.log.Log(context.Background(), level, fmt.Sprintf(format, args...))
	}
}

// ready tells why this server should get no requests now.
func (p *program) ready() error {
	if p.draining.Load() {
		return errors.New("the server is going away")
	}
	return nil
}

// addDoors makes a door for each address that is configured; the admin door comes last, so that it outlives the others.
func (p *program) addDoors() error {
	c := p.c
	ready := func() bool { return p.ready() == nil }
	rls := server.NewRLS(p.limiter, server.RLSOptions{
		ResponseHeaders: c.rls.responseHeaders, DynamicMetadata: c.rls.dynamicMetadata, Logf: p.logf(slog.LevelError), Stopwatch: p.metrics,
	})
	trust := server.Trust{Peers: c.trustedPeers, Unix: c.trustedUnix, Tokens: p.tokens}
	if c.listen.http != "" {
		forwardAuth, err := p.forwardAuth()
		if err != nil {
			return err
		}
		p.addHTTP("http", c.listen.http, server.NewServer(p.tokensFirst(server.NewHTTP(p.limiter, server.HTTPOptions{
			Domain: c.http.domain, Headers: c.headers, Trust: trust,
			JSON: server.NewRLSJSON(rls, trust.Trusted), ForwardAuth: forwardAuth, Ready: ready, Stopwatch: p.metrics,
		})), server.ServerOptions{Logger: p.log}))
	}
	if c.listen.grpc != "" {
		g := server.NewGRPCServer(rls, server.GRPCOptions{
			Ready: ready, MaxConnections: c.maxConnections, Authorize: p.authorizer("grpc"), Inline: c.store == storeMemory, Logf: p.logf(slog.LevelError),
		})
		p.doors = append(p.doors, &door{name: "grpc", address: c.listen.grpc, serve: g.Serve, drain: g.Drain, shutdown: g.Shutdown})
	}
	if c.listen.proxy != "" {
		if err := p.addProxy(); err != nil {
			return err
		}
	}
	if c.listen.spoe != "" {
		p.addSPOE(trust)
	}
	if c.listen.resp != "" {
		p.addRESP(trust)
	}
	if c.listen.admin != "" {
		p.addHTTP("admin", c.listen.admin, server.NewServer(proxy.Bound(server.NewAdmin(p.limiter, server.AdminOptions{
			Metrics: p.metrics.Handler(), Source: p.rulesSource, Keys: p.storage.keys, Signals: signalStates{p.signals}, Audit: p.log,
			Deferred: p.deferred, Decisions: p.recent, Candidates: candidatesFor(p.metrics), Ready: p.ready, Remark: p.remarks, Tokens: p.tokens, Hosts: c.adminHosts,
		}), 0, c.limits.stall), server.ServerOptions{Logger: p.log, WriteTimeout: -1})) // profiles run as long as one asks for
	}
	if len(p.doors) == 0 {
		return errors.New("no door is open; set one of listen.http, listen.grpc, listen.resp, listen.proxy and listen.admin")
	}
	return nil
}

func (p *program) addProxy() error {
	c := p.c
	if c.proxy.upstream == nil {
		return errors.New("proxy.upstream: is missing; write for example http://127.0.0.1:3000")
	}
	if set, _ := p.limiter.Rules(); c.proxy.domain == "" && set != nil && len(set.Domains()) > 1 {
		return fmt.Errorf("proxy.domain: is missing, and the rules hold several domains (%s)", strings.Join(set.Domains(), ", "))
	}
	var identity *httplimit.Identity
	if len(c.identity) > 0 {
		var err error
		if identity, err = httplimit.ParseIdentity(c.identity, c.jwks); err != nil {
			return fmt.Errorf("identity: %w", err)
		}
	}
	h, err := proxy.New(p.limiter, proxy.Options{
		Upstream: c.proxy.upstream, Domain: c.proxy.domain, Headers: c.headers, CORS: c.cors, ClientIP: c.clientIPOf(),
		Identity: identity, PathAsIs: c.proxy.asIs, UpstreamHost: c.proxy.upstreamHost, Timeout: c.proxy.timeout, Logf: p.logf(slog.LevelWarn),
		Defer: p.deferral(), MaxHeld: c.proxy.maxHeld, Adaptive: p.adaptive, Load: p.signals,
	})
	if err != nil {
		return err
	}
	p.proxy = h
	p.holding.Store(h)
	p.addHTTP("proxy", c.listen.proxy, proxy.NewServer(proxy.Bound(h, c.limits.body, c.limits.stall)))
	p.doors[len(p.doors)-1].drain = h.Drain
	return nil
}

func (p *program) addHTTP(name, address string, s *http.Server) {
	p.bound(s)
	p.doors = append(p.doors, &door{
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
				_ = s.Close() // cuts off what is left
			}
			return err
		},
	})
}

// open opens all doors or none.
func (p *program) open(ctx context.Context) error {
	for _, d := range p.doors {
		l, err := listen.Open(ctx, d.address)
		if err != nil {
			for _, other := range p.doors {
				if other.listener != nil {
					_ = other.listener.Close()
				}
			}
			if errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%s is in use by another program; stop that one, or choose another address with --listen-%s (port 0 takes a free one)", d.address, d.name)
			}
			return fmt.Errorf("listen.%s: %w", d.name, err)
		}
		d.listener = listen.New(l, p.listenerOptions(d))
	}
	p.opened.Store(true)
	return nil
}

// run opens the doors and serves until ctx ends or a door breaks.
func (p *program) run(ctx context.Context, stdout io.Writer) error {
	// A reader of our output that went away must not end the server.
	ossignal.Ignore(syscall.SIGPIPE)
	defer runtime.KeepAlive(ballast(os.LookupEnv, debug.SetMemoryLimit(-1)))
	// From before the doors open: a SIGHUP that nobody waits for would end the program.
	hangups := make(chan os.Signal, 1)
	ossignal.Notify(hangups, syscall.SIGHUP)
	defer ossignal.Stop(hangups)
	if err := p.open(ctx); err != nil {
		return usageError(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var background, serving sync.WaitGroup
	background.Go(func() { p.followRules(ctx, hangups) })
	p.runBackground(ctx, &background)
	broken := make(chan error, len(p.doors))
	for _, d := range p.doors {
		serving.Go(func() {
			if err := d.serve(d.listener); err != nil {
				broken <- fmt.Errorf("door %s: %w", d.name, err)
			}
		})
		p.log.Info("door open", p.doorAttributes(d)...)
		p.warnIfOpen(d)
	}
	p.warnOfFiles()
	p.printExamples(stdout)
	p.notify(stateReady)
	var err error
	select {
	case <-ctx.Done():
		p.log.Info("stopping", "drain", p.c.drain.String())
	case err = <-broken:
		p.log.Error("stopping, since a door broke", "error", err)
	}
	p.notify(stateStopping)
	p.drain(context.WithoutCancel(ctx))
	cancel()
	serving.Wait()
	background.Wait()
	return err
}

// runBackground runs what works beside the doors until ctx ends.
func (p *program) runBackground(ctx context.Context, background *sync.WaitGroup) {
	background.Go(func() { p.signals.Run(ctx) })
	background.Go(func() { p.firewall.run(ctx, p.limiter) })
	background.Go(func() {
		if err := p.limiter.Follow(ctx); err != nil {
			p.log.Error("bans and grants are not shared", "error", err)
		}
	})
	background.Go(func() { p.sweep(ctx) })
	if p.certificates != nil {
		background.Go(func() { p.certificates.Run(ctx) })
	}
	if p.proxy != nil {
		set, _ := p.limiter.Rules()
		p.startDeferring(set)
		background.Go(func() { p.workOff(ctx) })
	}
}

// sweep gives back what nodes had reserved that died.
func (p *program) sweep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_, _ = p.limiter.Sweep(ctx) // what fails is tried again, and StoreError has been told
		}
	}
}

// ballastSize is how much the heap may grow, beside what it holds for long, before the garbage collector runs.
const ballastSize = 64 << 20

// ballast is memory that nobody touches, and so takes no room; but the collector, which runs when the heap has doubled, counts
// it. A server that holds a few MB would run it dozens of times a second, at a fifth of its processor time. It is nil if
// GOGC says how the collector is to work, or if it would be much of limit, the memory (GOMEMLIMIT) that the collector keeps to.
func ballast(lookup func(string) (string, bool), limit int64) []byte {
	if _, set := lookup("GOGC"); set || limit < 8*ballastSize {
		return nil
	}
	return make([]byte, ballastSize)
}

// warnIfOpen tells of an admin door that everybody may use.
func (p *program) warnIfOpen(d *door) {
	addr, ok := d.listener.Addr().(*net.TCPAddr)
	if d.name == "admin" && p.tokens == nil && !p.demandsCertificate(d) && ok && !addr.IP.IsLoopback() {
		p.log.Warn("the admin door is open to the network, without auth.tokens_file", "addr", addr.String())
	}
}

// followRules follows the rules folder and SIGHUP until ctx ends.
func (p *program) followRules(ctx context.Context, hangups <-chan os.Signal) {
	var following sync.WaitGroup
	defer following.Wait()
	if p.folder != nil {
		following.Go(func() { p.folder.Run(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		p.log.Info("reloading")
		p.notify(stateReloading())
		if p.folder != nil {
			p.folder.Reload()
		}
		if p.tokens != nil {
			if err := p.tokens.Load(p.c.tokensFile); err != nil {
				p.log.Error("auth.tokens_file not loaded, the tokens from before stay good", "error", err)
			}
		}
		if p.certificates != nil {
			_ = p.certificates.Reload() // logs what is wrong
		}
		p.notify(stateReady)
	}
}

// drain closes the doors: no new requests, and those under way may finish within the time that is configured. The
// admin door closes last, so that its readiness tells what happens.
func (p *program) drain(ctx context.Context) {
	p.draining.Store(true)
	ctx, cancel := context.WithTimeout(ctx, p.c.drain)
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
	for _, d := range p.doors {
		if d.name == "admin" {
			shut(d)
		}
	}
}
