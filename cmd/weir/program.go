package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/admin/fleet"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/door/rlqs"
	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/internal/lab/preview"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/decisionlog"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/otel"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/internal/wire/shed"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

func newServeCommand(env []string) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the doors that the configuration turns on",
		Long: `Runs the doors that the configuration turns on: the HTTP decision API, Envoy's rate limit service over gRPC,
the Redis protocol, the reverse proxy, and the admin API. Servers with the same Redis as their store enforce one limit together.

Without any configuration all of them but the proxy open on loopback, with the rules of ./rules. Until that folder
is there, built-in starter rules are in force.

Each setting is a key of weir.yaml (listen.http), a flag (--listen-http) and an environment variable
(WEIR_LISTEN_HTTP); a flag goes before the variable, and that before the file. An address of port 0 takes a free
port. SIGHUP reloads the rules; SIGTERM and SIGINT let requests under way finish, write the snapshot, and end the program.`,
		Example: `  weir serve
  weir serve --rules rules/
  weir serve --rules rules/ --store redis://127.0.0.1:6379 --listen-http :8080
  weir serve --config /etc/weir/weir.yaml --check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd.Flags(), env)
			if err != nil {
				return usageError(err)
			}
			return serve(cmd.Context(), c, check, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "check the configuration, the rules, and whether the store can be used, and exit")
	addSettingFlags(cmd.Flags())
	return cmd
}

// serve runs the program until ctx ends. All that is wrong before the doors open is a usage error.
func serve(ctx context.Context, c *config, check bool, stdout, stderr io.Writer) error {
	// first of all, since building the parts would run the collector several times
	defer pace(os.LookupEnv, debug.SetMemoryLimit(-1))()
	p := &program{c: c, log: newLogger(c, stderr), stdout: stdout, started: time.Now()}
	if err := p.build(ctx, check); err != nil {
		return usageError(errors.Join(err, p.close()))
	}
	if check {
		if err := p.lookAtStore(ctx); err != nil {
			return usageError(errors.Join(err, p.close()))
		}
		set, _ := p.limiter.Rules()
		for _, remark := range c.unfed(set) {
			p.log.Warn(remark)
		}
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

// program is a running weir: build makes its parts, run serves until it is to end, and close closes
// everything that build has opened. The parts are listed in the order in which build makes them;
// each may use those above it. They do not change after build.
type program struct {
	c      *config
	log    *slog.Logger
	stdout io.Writer

	otel         *otel.Telemetry // nil without otel.endpoint
	rules        ruleSource
	tokens       *auth.Tokens         // nil without auth.tokens_file
	pages        *auth.Pages          // nil without listen.http
	audit        *audit.Log           // nil of a check
	certificates *listen.Certificates // of the doors; nil without tls.cert
	storage      *storage
	firewall     *firewall
	tally        *observe.Tally // for observers of decisions, which are the next fields
	metrics      *metrics.Metrics
	costly       sparselog.Line // of requests on which expressions take too long
	recent       *recent.Buffer
	decisions    *decisionlog.Log  // nil without decisions.log
	insight      *gather.Collector // nil with insight.memory: 0
	recorder     *preview.Recorder // nil with insight.record: 0
	preview      *preview.Preview  // nil with insight.record: 0
	nodes        *nodes.Nodes      // nil without Redis
	fleet        *fleet.Fleet
	started      time.Time
	overload     *overload.Limiter // nil without proxy.concurrency
	line         *shed.Line        // of the requests of all doors
	signals      *load.Registry
	deferred     deferred.Queue // nil without one
	worker       latch          // opens when the deferred requests need a worker
	limiter      *weir.Limiter
	fields       *httplimit.FieldGuard
	identity     *httplimit.Identity // nil without identity
	proxy        *proxy.Proxy        // nil without listen.proxy
	quota        *rlqs.Service       // nil without listen.grpc
	doors        []*door             // the admin door is the last

	built    atomic.Bool // every part is made
	opened   atomic.Bool // the doors have listeners
	draining atomic.Bool
}

// build makes every part and opens no door. With check it only checks the configuration, and opens
// nothing that another program could be using. After an error, close closes the parts made so far.
func (p *program) build(ctx context.Context, check bool) error {
	if !check {
		if err := p.startOTel(); err != nil {
			return err
		}
	}
	for _, remark := range p.c.strays {
		p.log.Warn("the environment: " + remark)
	}
	if remark := p.c.clientIP.Remark(); remark != "" {
		p.log.Warn("client_ip.trusted_proxies: " + remark)
	}
	if err := p.tellInherited(); err != nil {
		return err
	}
	set, err := p.openRules(ctx)
	if err != nil {
		return err
	}
	p.warnOfIdentity(set)
	p.warnOfLeases(set)
	p.warnOfQuotas(set)
	p.warnOfRegions(set)
	if err := p.openTokens(); err != nil {
		return err
	}
	if err := p.checkTransport(); err != nil {
		return err
	}
	if !check {
		if err := p.openAudit(); err != nil {
			return err
		}
	}
	if err := p.openStore(check); err != nil {
		return err
	}
	p.audit.Begin(p.nodeName())
	p.firewall = p.newFirewall()
	p.tally = observe.NewTally()
	p.metrics = p.newMetrics()
	p.warnOfLacking(set)
	if p.recent, err = recent.New(p.recentOptions()); err != nil {
		return err
	}
	if err := p.makeLoad(); err != nil {
		return err
	}
	if err := p.makeInsight(check); err != nil {
		return err
	}
	if err := p.makePreview(); err != nil {
		return err
	}
	if err := p.makeFleet(); err != nil {
		return err
	}
	if !check {
		if err := p.openDecisions(p.stdout); err != nil {
			return err
		}
		if err := p.firewall.open(set); err != nil {
			return err
		}
		if err := p.openDeferred(set); err != nil {
			return err
		}
	}
	p.worker = newLatch()
	if p.limiter, err = p.newLimiter(set); err != nil {
		return err
	}
	p.signals.SetUsed(signalsOf(set))
	if err := p.makeClients(); err != nil {
		return err
	}
	if err := p.addDoors(); err != nil {
		return err
	}
	p.collect()
	p.built.Store(true)
	return nil
}

// close closes everything that build has opened.
func (p *program) close() error {
	var failures []error
	if p.deferred != nil {
		failures = append(failures, p.deferred.Close())
	}
	if p.firewall != nil {
		failures = append(failures, p.firewall.close())
	}
	if p.insight != nil {
		failures = append(failures, p.insight.Close())
	}
	if p.storage != nil {
		failures = append(failures, p.storage.Close())
	}
	if p.line != nil {
		_ = p.line.Close() // which Run may have done
	}
	failures = append(failures, p.audit.Close())
	if p.otel != nil {
		p.stopOTel()
	}
	return errors.Join(failures...)
}

// ruleSource is where the rules in force come from. Safe for concurrent use.
type ruleSource interface {
	Status() rulesource.Status
	// Sources returns the files in force.
	Sources() []file.Source
	// Reload makes Run look for changes at once.
	Reload()
	// Run puts changes in force until ctx ends.
	Run(ctx context.Context)
}

// openRules loads the rules. If nobody says where they lie, the starter rules are in force until
// ./rules exists.
func (p *program) openRules(ctx context.Context) (*rule.Set, error) {
	if p.c.database != nil {
		return p.openDatabase(ctx)
	}
	options := rulesource.Options{
		Path: p.c.rules, Rules: file.Options{IPv6Prefix: p.c.ipv6Prefix, Lend: p.c.rlqsDomains}, Logger: p.log, Changed: p.rulesChanged, Looked: p.auditRules,
	}
	if !p.c.rulesSet {
		if _, err := os.Stat(p.c.rules); errors.Is(err, fs.ErrNotExist) {
			options.Until = []file.Source{file.Starter()}
		}
	}
	folder, set, err := rulesource.Open(options)
	if err != nil {
		return nil, err
	}
	p.rules = folder
	if options.Until != nil {
		p.log.Info("there is no folder " + p.c.rules + ": the built-in starter rules are in force until it is there")
	}
	return set, nil
}

// rulesChanged puts s in force.
func (p *program) rulesChanged(s *rule.Set) {
	if err := p.firewall.open(s); err != nil {
		p.log.Error("banned addresses are refused, but the kernel does not drop their packets", "error", err)
	}
	p.limiter.SetRules(s)
	p.warnOfLacking(s)
	p.warnOfLeases(s)
	p.warnOfQuotas(s)
	p.warnOfRegions(s)
	p.signals.SetUsed(signalsOf(s))
	p.startDeferring(s)
}

// openTokens loads the tokens, if there is a file of them.
func (p *program) openTokens() error {
	if p.c.tokensFile == "" {
		return nil
	}
	p.tokens = &auth.Tokens{ClientIP: p.c.clientIP, Logger: p.log}
	if err := p.tokens.Load(p.c.tokensFile); err != nil {
		return fmt.Errorf("auth.tokens_file: %w", err)
	}
	return nil
}

// recentOptions bound the memory of recent decisions.
func (p *program) recentOptions() recent.Options {
	o := p.c.recent
	o.Bytes = max(16<<20, int64(o.Entries)*1678)
	o.Hide = secretIdentities(p.c.identity)
	o.Tally = p.tally
	return o
}

// newLimiter makes the limiter on all that works behind it.
func (p *program) newLimiter(set *rule.Set) (*weir.Limiter, error) {
	bans := p.c.bans
	bans.Changed = p.banChanged
	watchers := []observe.Watcher{p.metrics, p.recent}
	if p.insight != nil {
		watchers = append(watchers, p.insight)
	}
	if p.recorder != nil {
		watchers = append(watchers, p.recorder)
	}
	hooks := []weir.Hooks{p.tally.Join(watchers...)}
	if p.c.listen.proxy != "" {
		hooks = append(hooks, weir.Hooks{Decided: p.refunded})
	}
	if p.decisions != nil {
		hooks = append(hooks, p.decisions.Hooks())
	}
	if p.tracer() != nil { // the last one: it adds the id that another one may give
		hooks = append(hooks, p.otel.Tracer().Hooks())
	}
	return weir.New(p.metrics.Store(p.tracedStore(p.storage.Store)),
		weir.WithRules(set),
		weir.WithSignals(p.signals),
		weir.WithBans(bans),
		weir.WithHooks(weir.JoinHooks(hooks...)))
}

// refunded lets requests that the proxy holds ask when something was given back at another door.
func (p *program) refunded(r *weir.Request, d *weir.Decision) {
	if r.Cost() < 0 && p.proxy != nil {
		p.proxy.Refunded(r, d)
	}
}

func (p *program) logf(level slog.Level) func(format string, args ...any) {
	return func(format string, args ...any) {
		p.log.Log(context.Background(), level, fmt.Sprintf(format, args...))
	}
}
