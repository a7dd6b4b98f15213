// Package server is the program behind weir serve and weir proxy: its settings, its parts and their
// order, start and stop. It computes nothing. It is the only package that knows all others.
//
// Begin with program.go, which lists the parts of a server. run.go starts and ends it, doors.go
// opens its doors. config.go puts the settings together, which stand beside their parts; package
// settings reads them.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/admin/fleet"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/admin/outages"
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
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/internal/rulesource/xds"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/internal/wire/shed"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
)

// logSettings are about the log and the metrics.
var logSettings = []setting{
	{Path: "metrics.detailed", Value: "false",
		Help: "metrics with clients' values for rules with detailed_metric or value_to_metric, up to 10,000 series",
		Set:  settings.Bool(func(c *Config) *bool { return &c.detailed })},
	{Path: "log.level", Value: "info",
		Help: "debug, info, warn or error",
		Set: settings.Text(func(c *Config, s string) error {
			if c.log.level.UnmarshalText([]byte(s)) != nil || strings.ContainsAny(s, "+-") {
				return fmt.Errorf("%q must be debug, info, warn or error", s)
			}
			return nil
		})},
	{Path: "log.format", Value: "text",
		Help: "text or json",
		Set: settings.Text(func(c *Config, s string) error {
			if s != "text" && s != "json" {
				return fmt.Errorf("%q must be text or json", s)
			}
			c.log.format = s
			return nil
		})},
}

// logConfig is the configuration of the log and the metrics.
type logConfig struct {
	nodeName string // "" for the name of the host
	detailed bool   // metrics with clients' values
	log      struct {
		level  slog.Level
		format string
	}
}

// Serve runs the program until ctx ends. All that is wrong before the doors open is a SetupError,
// unless ctx ends first. With check it opens no doors, and only tells whether it could.
func Serve(ctx context.Context, c *Config, check bool, version string, stdout, stderr io.Writer) error {
	// first of all, since building the parts would run the collector several times
	defer pace(os.LookupEnv, debug.SetMemoryLimit(-1))()
	p := &program{c: c, check: check, version: version, node: nodeNameOf(c), log: newLogger(c, stderr), stdout: stdout,
		started: time.Now()}
	if err := p.build(ctx); err != nil {
		err = errors.Join(err, p.close())
		if ctx.Err() != nil {
			p.log.Info("stopped before the doors were open", "error", oneLine(err))
			return nil
		}
		return &SetupError{err}
	}
	if check {
		if err := p.lookAtStore(ctx); err != nil {
			return &SetupError{errors.Join(err, p.close())}
		}
		if set, _ := p.limiter.Rules(); set != nil {
			for _, remark := range c.unfed(set) {
				p.log.Warn(remark)
			}
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

func newLogger(c *Config, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.log.level}
	if c.log.format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// program is a running weir: build makes its parts, run serves until it is to end, and close closes
// everything that build has opened. Its fields do not change after build.
type program struct {
	c       *Config
	version string // of the program
	node    human.NodeName
	log     *slog.Logger
	stdout  io.Writer
	check   bool   // only to check the configuration
	parts   []part // that were opened

	otel         *otel.Telemetry // nil without otel.endpoint
	rules        ruleSource
	xds          *xds.Follower        // which is rules; nil without a control plane
	awaited      bool                 // there were no rules when the limiter was made, and it waits for some
	atStart      *rule.Set            // while build runs: the first rules
	changed      lastChanges          // of the rules
	tokens       *auth.Tokens         // nil without auth.tokens_file
	pages        *auth.Pages          // nil without listen.http
	audit        *audit.Log           // nil of a check
	certificates *listen.Certificates // of the doors; nil without tls.cert
	storage      *storage
	firewall     *firewall
	tally        *observe.Tally // for observers of decisions, which are the next fields
	metrics      *metrics.Metrics
	rateLimit    *metrics.RateLimit // nil unless this is in the place of envoyproxy/ratelimit
	costly       sparselog.Line     // of requests on which expressions take too long
	recent       *recent.Buffer
	decisions    *decisionlog.Log  // nil without decisions.log
	insight      *gather.Collector // nil with insight.memory: 0
	recorder     *record.Recorder  // nil with insight.record: 0
	preview      *preview.Preview  // nil with insight.record: 0
	nodes        *nodes.Nodes      // nil without Redis
	outages      *outages.Log      // nil with store: memory, where nothing can be away
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
	admin        *adminPort          // nil without listen.admin
	doors        []*door             // the admin door is the last

	built    atomic.Bool // every part is made
	opened   atomic.Bool // the doors have listeners
	draining atomic.Bool
}

// part is a part of a running server. Any function but open may be nil.
type part struct {
	name    string
	checked bool // it opens where the configuration is only checked, too: it takes nothing that others use
	// open makes the part. It may use the parts above it in the list. What it opened before an
	// error close closes.
	open    func(ctx context.Context) error
	run     []func(ctx context.Context)   // goroutines beside the doors, until ctx ends
	reload  func()                        // reads its files anew
	collect func() []prometheus.Collector // its metrics; called when all parts are open
	close   func() error
}

// allParts are the parts of a server, in the order in which they open. They close in reverse.
func (p *program) allParts() []part {
	type runs = []func(context.Context)
	return []part{
		{name: "otel", open: p.startOTel, close: p.stopOTel},
		{name: "tokens", checked: true, open: p.openTokens, reload: p.reloadTokens},
		{name: "certificates", checked: true, open: p.openCertificates, run: runs{p.followCertificates}, reload: p.reloadCertificates},
		{name: "admin port", checked: true, open: p.openAdminPort, close: p.closeAdminPort},
		{name: "rules", checked: true, open: p.openRules, run: runs{p.runRules}, reload: func() { p.rules.Reload() }, collect: p.xdsMetrics},
		{name: "audit", open: p.openAudit, reload: p.reopenAudit, close: p.closeAudit},
		{name: "store", checked: true, open: p.openStore, close: p.closeStore},
		{name: "firewall", checked: true, open: p.openFirewall, run: runs{p.runFirewall}, close: p.closeFirewall},
		{name: "metrics", checked: true, open: p.openMetrics},
		{name: "recent", checked: true, open: p.openRecent},
		{name: "load", checked: true, open: p.openLoad, run: runs{p.runSignals, p.measureLine, p.watchSignals}, collect: p.loadMetrics, close: p.closeLine},
		{name: "insight", checked: true, open: p.openInsight, run: runs{p.gather}, collect: p.insightMetrics, close: p.closeInsight},
		{name: "preview", checked: true, open: p.openPreview, run: runs{p.record}},
		{name: "outages", open: p.openOutages, run: runs{p.followOutages}},
		{name: "fleet", checked: true, open: p.openFleet, run: runs{p.answerNodes, p.runFleet}, collect: p.nodeMetrics},
		{name: "decisions", open: p.openDecisions, run: runs{p.writeDecisions}, reload: p.reopenDecisions, collect: p.exportMetrics},
		{name: "kernel", open: p.openKernel},
		{name: "deferred", open: p.openDeferred, run: runs{p.workOff}, close: p.closeDeferred},
		{name: "limiter", checked: true, open: p.openLimiter, run: runs{p.sweep}, collect: p.queueMetrics},
		{name: "clients", checked: true, open: p.openClients, collect: p.fieldMetrics},
		{name: "doors", checked: true, open: p.addDoors, collect: p.doorMetrics},
	}
}

// build makes every part and opens no door. A check opens nothing that another program could be
// using. After an error, close closes the parts made so far.
func (p *program) build(ctx context.Context) error {
	for _, remark := range p.c.strays {
		p.log.Warn("the environment: " + remark)
	}
	if remark := p.c.clientIP.Remark(); remark != "" {
		p.log.Warn("client_ip.trusted_proxies: " + remark)
	}
	if err := errors.Join(p.tellInherited(), p.c.checkAddresses()); err != nil {
		return err
	}
	for _, part := range p.allParts() {
		if p.check && !part.checked {
			continue
		}
		p.parts = append(p.parts, part)
		if err := part.open(ctx); err != nil {
			return err
		}
		p.log.Debug("part open", "part", part.name)
	}
	for _, part := range p.parts {
		if part.collect != nil {
			p.metrics.Registry().MustRegister(part.collect()...)
		}
	}
	p.atStart = nil // later ones take its place
	p.built.Store(true)
	return nil
}

// close closes everything that build has opened.
func (p *program) close() error {
	var failures []error
	for _, part := range slices.Backward(p.parts) {
		if part.close != nil {
			failures = append(failures, part.close())
		}
	}
	return errors.Join(failures...)
}

func (p *program) logf(level slog.Level) func(format string, args ...any) {
	return func(format string, args ...any) {
		p.log.Log(context.Background(), level, fmt.Sprintf(format, args...))
	}
}
