package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/forwardauth"
	"github.com/weir-rl/weir/internal/door/httpapi"
	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/door/resp"
	"github.com/weir-rl/weir/internal/door/rlqs"
	"github.com/weir-rl/weir/internal/door/rls"
	"github.com/weir-rl/weir/internal/door/spoe"
	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/internal/host/nftables"
	"github.com/weir-rl/weir/internal/lab/preview"
	"github.com/weir-rl/weir/internal/observe/decisionlog"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/otel"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/internal/wire/shed"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// config holds the settings of weir.yaml, the environment and the flags. A setting that only one
// package needs is in that package's Options, which are completed when the part is made.
type config struct {
	rules     string
	rulesSet  bool            // somebody named the rules
	database  *ruledb.Address // of rules; nil for a folder or a file
	ruleCache string          // file for the rules of the database; "" for none
	ruleEvery time.Duration   // between two looks into it
	store     string          // storeMemory, or the URL of a store that nodes share

	memory memory.Options
	shared struct { // of any store that nodes share
		timeout, rememberRefusals, heartbeat time.Duration
	}
	redis    redis.Options    // with a Redis only: what no other store has
	fallback fallback.Options // with a shared store only
	leases   struct{ maxKeys int }

	region        string            // "" if there is one alone
	regionWeights map[string]int    // of all regions
	regionStores  map[string]string // URLs of the others

	listen      struct{ http, grpc, resp, admin, proxy, spoe string } // addresses; "" is closed
	http        httpapi.Options
	rls         rls.Options
	rlqs        rlqs.Options
	rlqsDomains []string // domains whose limits lend where they say nothing of leases
	resp        resp.Options
	spoe        spoe.Options
	forwardAuth forwardauth.Options
	admin       admin.Options

	proxy       proxy.Options
	concurrency string // of the proxy: "", "adaptive", or a number
	capacity    int    // requests in flight that are 100 %; 0 for as many as concurrency admits
	deferral    proxy.Deferral
	deferBounds deferred.Bounds
	deferPath   string

	shed struct { // of requests that wait too long
		line, proxyLine time.Duration
		answer          shed.Answer
	}
	prometheus load.Query        // all but the query
	signals    map[string]string // PromQL by name
	bans       weir.BanOptions
	nftables   nftables.Options
	recent     recent.Options
	insight    gather.Options
	record     preview.Options

	insightPath string // of the history file; "" for none

	identity map[string]string // source by attribute
	jwks     string
	fields   struct { // that servers read in different ways
		repeated   httplimit.RepeatedFields
		lookalikes httplimit.LookalikeFields
	}
	clientIP     httplimit.ClientIP
	ipv6Prefix   int
	trust        auth.Trust // all but the tokens
	tokensFile   string
	authDoors    []string // doors that need a token
	certificates listen.CertificateFiles
	tlsDoors     []string // doors that speak TLS
	clientDoors  []string // doors that demand a client's certificate
	proxyDoors   []string // doors that take PROXY protocol headers
	proxyPeers   listen.ProxyPeers

	headers  httplimit.Headers
	cors     httplimit.CORS
	detailed bool // metrics with clients' values
	log      struct {
		level  slog.Level
		format string
	}
	otel           otel.Options
	otelHeaders    string
	decisions      decisionlog.Options
	page           bool   // the operator's page is on
	auditPath      string // "" for none
	drain          time.Duration
	maxConnections int
	limits         limits

	named     map[string]bool // settings that the file, the environment or a flag sets, by path
	strays    []string        // of variables that look like settings and are none
	inherited inherited
}

// limits bound connections and requests at several doors.
type limits struct {
	perAddress, streams        int
	header, body, memory       int64
	headerTimeout, idle, stall time.Duration
}

// addSettingFlags gives a command a flag for each setting, and --config.
func addSettingFlags(flags *pflag.FlagSet) {
	flags.SortFlags = false
	addConfigFlag(flags)
	for i := range settings {
		s := &settings[i]
		if s.value == "true" || s.value == "false" {
			flags.Bool(s.flag(), s.value == "true", s.help+" ("+s.variable()+")")
			continue
		}
		flags.String(s.flag(), s.value, s.help+" ("+s.variable()+")")
	}
}

// name notes that somebody has set a setting.
func (c *config) name(s *setting) {
	if c.named == nil {
		c.named = map[string]bool{}
	}
	c.named[s.path] = true
}

// loadConfig puts the defaults, variables of envoyproxy/ratelimit, the file, the environment and
// the flags together, later ones before earlier ones. It reports all that is wrong.
func loadConfig(flags *pflag.FlagSet, env []string) (*config, error) {
	c := new(config)
	for i := range settings {
		if s := &settings[i]; s.value != "" {
			if err := s.set(c, s.items(s.value)); err != nil {
				return nil, fmt.Errorf("default of %s: %w", s.path, err)
			}
		}
	}
	c.rulesSet = false
	variables := map[string]string{}
	for _, v := range env {
		if name, value, ok := strings.Cut(v, "="); ok {
			variables[name] = value
		}
	}
	var problems []error
	foreign := readRateLimitEnv(c, variables)
	path := variables["WEIR_CONFIG"]
	if f := flags.Lookup("config"); f.Changed {
		path = f.Value.String()
	}
	if path != "" {
		problems = append(problems, c.readFile(path)...)
	} else if _, err := os.Stat(defaultConfigFile); err == nil {
		problems = append(problems, c.readFile(defaultConfigFile)...)
	}
	for i := range settings {
		s := &settings[i]
		if value, ok := variables[s.variable()]; ok {
			c.name(s)
			if err := s.set(c, s.items(value)); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", s.variable(), err))
			}
		}
	}
	for i := range settings {
		s := &settings[i]
		if f := flags.Lookup(s.flag()); f != nil && f.Changed {
			c.name(s)
			if err := s.set(c, s.items(f.Value.String())); err != nil {
				problems = append(problems, fmt.Errorf("--%s: %w", s.flag(), err))
			}
		}
	}
	c.strays = strayVariables(env)
	if err := c.readOTelEnv(variables); err != nil {
		problems = append(problems, err)
	}
	if foreign != nil {
		c.inherited = foreign.finish(c.named)
	}
	return c, errors.Join(problems...)
}

// redactURL hides the password of a URL in a message.
func redactURL(s string) string {
	if u, err := url.Parse(s); err == nil {
		return u.Redacted()
	}
	scheme, _, _ := strings.Cut(s, ":")
	return scheme + ":…"
}
