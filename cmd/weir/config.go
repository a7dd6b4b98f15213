package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/ban"
	"github.com/weir-rl/weir/internal/listen"
	"github.com/weir-rl/weir/internal/proxy"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/redis"
)

// config is all that weir.yaml, the environment and the flags can say.
type config struct {
	rules    string
	rulesSet bool // somebody named the rules
	store    string
	snapshot struct {
		path  string
		every time.Duration
	}
	memory struct {
		maxKeys  int
		maxBytes int64
	}
	redis struct {
		prefix                                         string
		partitions, connections                        int
		timeout, deadline, rememberRefusals, heartbeat time.Duration
	}
	nodes  int // to share limits among while Redis cannot tell; 0 if unknown
	listen struct{ http, grpc, resp, admin, proxy, spoe string }
	http   struct{ domain string }
	resp   struct {
		domain    string
		maxMemory int64
		idle      time.Duration
	}
	spoe        struct{ domain string }
	forwardAuth struct {
		domain string
		dedupe bool
	}
	proxy struct {
		upstream     *url.URL
		domain       string
		asIs         bool
		upstreamHost bool
		timeout      time.Duration
		concurrency  string // "", "adaptive", or a number
		capacity     int
		maxHeld      int
	}
	prometheus struct {
		url   string
		every time.Duration
	}
	signals map[string]string // PromQL by name
	ban     struct {
		max   int
		table string
	}
	recent   int
	deferral struct {
		path               string
		jobs, dead         int
		bytes, body        int64
		keep, age          time.Duration
		attempts, parallel int
		tickets            string
	}
	identity map[string]string
	jwks     string
	clientIP struct {
		trusted    []netip.Prefix
		unix       bool // peers of unix sockets are trusted, too
		ipv6Prefix int
	}
	trustedPeers  []netip.Prefix
	trustedUnix   bool
	tokensFile    string
	authDoors     []string
	tls           tlsConfig
	proxyProtocol struct {
		doors []string
		peers []netip.Prefix
		unix  bool
	}
	limits     limitsConfig
	adminHosts []string
	headers    httplimit.Headers
	cors       httplimit.CORS
	rls        struct{ responseHeaders, dynamicMetadata bool }
	detailed   bool
	log        struct {
		level  slog.Level
		format string
	}
	drain          time.Duration
	maxConnections int
}

// setting is one key of the configuration. Its path names it in weir.yaml; with dashes the flag, in capitals with
// underscores the environment variable.
type setting struct {
	path  string
	help  string
	value string // the default, as text
	kind  kind
	set   func(c *config, items []string) error
}

// kind is the form in which a setting is written.
type kind uint8

const (
	scalar  kind = iota // one value: items holds it
	list                // any number: a sequence in YAML, comma-separated elsewhere
	mapping             // name → value: a mapping in YAML, name=value comma-separated elsewhere; items hold name=value
)

func (s *setting) flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(s.path) }

func (s *setting) variable() string {
	return "WEIR_" + strings.ToUpper(strings.ReplaceAll(s.path, ".", "_"))
}

// text makes a setter of one that takes a single text.
func text(set func(c *config, s string) error) func(*config, []string) error {
	return func(c *config, items []string) error {
		if len(items) != 1 {
			return errors.New("must be a single value")
		}
		return set(c, items[0])
	}
}

func toString(field func(*config) *string) func(*config, []string) error {
	return text(func(c *config, s string) error { *field(c) = s; return nil })
}

func toBool(field func(*config) *bool) func(*config, []string) error {
	return text(func(c *config, s string) error {
		switch s {
		case "true":
			*field(c) = true
		case "false":
			*field(c) = false
		default:
			return fmt.Errorf("%q must be true or false", s)
		}
		return nil
	})
}

func toDuration(least time.Duration, field func(*config) *time.Duration) func(*config, []string) error {
	return text(func(c *config, s string) error {
		d, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("%q is no duration; write a number with a unit, such as 10s or 500ms", s)
		}
		if d < least {
			return fmt.Errorf("%q is below %v", s, least)
		}
		*field(c) = d
		return nil
	})
}

func toInt(least, most int64, field func(*config, int64)) func(*config, []string) error {
	return text(func(c *config, s string) error {
		n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q must be a whole number from %d to %d", s, least, most)
		}
		field(c, n)
		return nil
	})
}

// toAddress takes an address of a door; "" and "off" close the door.
func toAddress(field func(*config) *string) func(*config, []string) error {
	return text(func(c *config, s string) error {
		if s == "" || s == "off" {
			*field(c) = ""
			return nil
		}
		*field(c) = s
		return listen.CheckAddress(s)
	})
}

// bytesUnits are the units of sizes, largest first.
var bytesUnits = []struct {
	name string
	size int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}, {"kB", 1e3}, {"B", 1}}

func parseBytes(s string) (int64, error) {
	number, unit := s, int64(1)
	for _, u := range bytesUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			number, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > (1<<62)/unit {
		return 0, fmt.Errorf("%q is no size; write a whole number with a unit, such as 512MiB or 1GiB", s)
	}
	return n * unit, nil
}

// settings are all keys, in the order in which --help lists them.
var settings = []setting{
	{path: "rules", value: "./rules", help: "folder of rule files, or one file; if ./rules is not there: built-in starter rules",
		set: text(func(c *config, s string) error {
			if s == "" {
				return errors.New("must name a folder or a file")
			}
			if strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://") {
				return fmt.Errorf("%s is not supported yet; name a folder", redactURL(s))
			}
			c.rules, c.rulesSet = s, true
			return nil
		})},
	{path: "store", value: storeMemory, help: "where counters live: memory, or a Redis that all nodes share, as redis://HOST:PORT, rediss://, redis+sentinel:// or redis+cluster://",
		set: text(func(c *config, s string) error { c.store = s; return checkStore(s) })},
	{path: "redis.prefix", value: redis.DefaultPrefix, help: "beginning of all keys in Redis",
		set: text(func(c *config, s string) error {
			if s == "" || strings.ContainsAny(s, "{}") {
				return fmt.Errorf("%q must not be empty, nor hold { or }, which choose a slot of a Cluster", s)
			}
			c.redis.prefix = s
			return nil
		})},
	{path: "redis.partitions", value: strconv.Itoa(redis.DefaultPartitions), help: "parts into which the keys of a Cluster fall; the same on all nodes",
		set: toInt(1, 16384, func(c *config, n int64) { c.redis.partitions = int(n) })},
	{path: "redis.connections", value: "1", help: "connections to each Redis server, a power of 2",
		set: text(func(c *config, s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > 64 || n&(n-1) != 0 {
				return fmt.Errorf("%q must be a power of 2, from 1 to 64", s)
			}
			c.redis.connections = n
			return nil
		})},
	{path: "redis.timeout", value: redis.DefaultTimeout.String(), help: "how long a Redis that hangs is waited for before it is asked again",
		set: toDuration(time.Millisecond, func(c *config) *time.Duration { return &c.redis.timeout })},
	{path: "redis.deadline", value: fallback.DefaultDeadline.String(), help: "how long a decision waits for Redis before it is made without it",
		set: toDuration(time.Millisecond, func(c *config) *time.Duration { return &c.redis.deadline })},
	{path: "redis.remember_refusals", value: "1s", help: "how long at most a refusal is repeated without asking Redis; 0s for never",
		set: toDuration(0, func(c *config) *time.Duration { return &c.redis.rememberRefusals })},
	{path: "redis.heartbeat", value: "1s", help: "how often this node tells that it lives, so that all know how many there are; 0s for never",
		set: toDuration(0, func(c *config) *time.Duration { return &c.redis.heartbeat })},
	{path: "nodes", value: "0", help: "number of nodes to share limits among while Redis is away, at least; Redis may have told of more; 0 if unknown",
		set: toInt(0, 1<<20, func(c *config, n int64) { c.nodes = int(n) })},
	{path: "snapshot.path", help: "file that keeps the counters over a restart; none if empty", set: toString(func(c *config) *string { return &c.snapshot.path })},
	{path: "snapshot.every", value: "10s", help: "time between two snapshots", set: toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.snapshot.every })},
	{path: "memory.max_keys", value: "10000000", help: "bound on the keys in memory",
		set: toInt(1, 1<<40, func(c *config, n int64) { c.memory.maxKeys = int(n) })},
	{path: "memory.max_bytes", value: "1GiB", help: "bound on the bytes of all keys in memory",
		set: text(func(c *config, s string) (err error) { c.memory.maxBytes, err = parseBytes(s); return err })},
	{path: "listen.http", value: "127.0.0.1:8080", help: "address of the HTTP decision API, host:port or unix:/path as for all doors; off closes it", set: toAddress(func(c *config) *string { return &c.listen.http })},
	{path: "listen.grpc", value: "127.0.0.1:8081", help: "address of Envoy's rate limit service over gRPC; off closes it", set: toAddress(func(c *config) *string { return &c.listen.grpc })},
	{path: "listen.resp", value: "127.0.0.1:6380", help: "address of the Redis protocol: CL.THROTTLE, THROTTLE and WEIR.LIMIT; off closes it", set: toAddress(func(c *config) *string { return &c.listen.resp })},
	{path: "listen.admin", value: "127.0.0.1:9090", help: "address of the admin API and metrics; off closes it", set: toAddress(func(c *config) *string { return &c.listen.admin })},
	{path: "listen.proxy", help: "address of the reverse proxy; needs proxy.upstream", set: toAddress(func(c *config) *string { return &c.listen.proxy })},
	{path: "listen.spoe", help: "address of the SPOE agent for HAProxy, such as 127.0.0.1:9907; off closes it", set: toAddress(func(c *config) *string { return &c.listen.spoe })},
	{path: "http.domain", help: "domain of decision requests that name none", set: toString(func(c *config) *string { return &c.http.domain })},
	{path: "resp.domain", help: "domain of WEIR.LIMIT with an empty one", set: toString(func(c *config) *string { return &c.resp.domain })},
	{path: "resp.max_memory", value: "256MiB", help: "bound on the memory that all connections over the Redis protocol take",
		set: text(func(c *config, s string) (err error) { c.resp.maxMemory, err = parseBytes(s); return err })},
	{path: "resp.idle", value: "10m", help: "how long such a connection may be silent",
		set: toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.resp.idle })},
	{path: "spoe.domain", help: "domain of HAProxy's requests that name none", set: toString(func(c *config) *string { return &c.spoe.domain })},
	{path: "forward_auth.domain", help: "domain of the checks of nginx, Caddy and Traefik whose path names none; http.domain if empty", set: toString(func(c *config) *string { return &c.forwardAuth.domain })},
	{path: "forward_auth.dedupe", value: "false", help: "count repeated checks of one nginx request, known by X-Request-Id, once; only where nginx sets that header itself",
		set: toBool(func(c *config) *bool { return &c.forwardAuth.dedupe })},
	{path: "proxy.upstream", help: "URL of the API behind the proxy",
		set: text(func(c *config, s string) error {
			u, err := url.Parse(s)
			if err != nil {
				return errors.New("is no URL; write for example http://127.0.0.1:3000")
			}
			if c.proxy.upstream = u; s == "" {
				c.proxy.upstream = nil
			}
			return nil
		})},
	{path: "proxy.domain", help: "domain of the requests through the proxy", set: toString(func(c *config) *string { return &c.proxy.domain })},
	{path: "proxy.path", value: "normal", help: "path that the upstream gets: normal (as it was matched) or as_is",
		set: text(func(c *config, s string) error {
			if s != "normal" && s != "as_is" {
				return fmt.Errorf("%q must be normal or as_is", s)
			}
			c.proxy.asIs = s == "as_is"
			return nil
		})},
	{path: "proxy.upstream_host", value: "false", help: "send the upstream's own name in the Host header", set: toBool(func(c *config) *bool { return &c.proxy.upstreamHost })},
	{path: "proxy.timeout", value: "60s", help: "longest wait for the upstream's response header", set: toDuration(time.Millisecond, func(c *config) *time.Duration { return &c.proxy.timeout })},
	{path: "proxy.concurrency", help: "bound on the requests that the upstream works on at a time: adaptive finds it, a number fixes it; none if empty",
		set: text(func(c *config, s string) error {
			if n, err := strconv.Atoi(s); s != "" && s != "adaptive" && (err != nil || n < 1 || n > 1_000_000) {
				return fmt.Errorf("%q must be adaptive, or a number from 1 to 1000000", s)
			}
			c.proxy.concurrency = s
			return nil
		})},
	{path: "proxy.capacity", value: "0", help: "requests in flight that are 100 % of the signal in_flight; 0: what proxy.concurrency admits",
		set: toInt(0, 1_000_000, func(c *config, n int64) { c.proxy.capacity = int(n) })},
	{path: "proxy.max_held", value: "10000", help: "bound on the requests that wait for their turn (on_limit: {wait: …})",
		set: toInt(1, 1_000_000, func(c *config, n int64) { c.proxy.maxHeld = int(n) })},
	{path: "prometheus.url", help: "URL of the Prometheus that signals are asked of", set: toString(func(c *config) *string { return &c.prometheus.url })},
	{path: "prometheus.every", value: "5s", help: "how often it is asked", set: toDuration(100*time.Millisecond, func(c *config) *time.Duration { return &c.prometheus.every })},
	{path: "signals", kind: mapping, help: "name=query pairs: signals for elastic limits that a Prometheus answers, in percent (PromQL; one with a comma only in the file)",
		set: func(c *config, items []string) error {
			c.signals = map[string]string{}
			for _, item := range items {
				name, query, ok := strings.Cut(item, "=")
				if !ok || name == "" || strings.TrimSpace(query) == "" {
					return fmt.Errorf("%q is no name=query, such as orders=max(orders_queue_used_percent)", item)
				}
				c.signals[name] = query
			}
			return nil
		}},
	{path: "ban.max", value: "100000", help: "bound on the bans in force", set: toInt(1, 10_000_000, func(c *config, n int64) { c.ban.max = int(n) })},
	{path: "ban.nftables_table", value: ban.DefaultTable, help: "table of nftables for bans with at: nftables; one that is there already is taken for our own",
		set: text(func(c *config, s string) error {
			if s == "" || len(s) > 64 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
				return fmt.Errorf("%q must be letters, digits and _", s)
			}
			c.ban.table = s
			return nil
		})},
	{path: "recent.entries", value: "10000", help: "recent decisions to keep for weir explain --id", set: toInt(4, 10_000_000, func(c *config, n int64) { c.recent = int(n) })},
	{path: "defer.path", help: "file of the requests that rules defer, with the embedded store; with Redis they lie there",
		set: toString(func(c *config) *string { return &c.deferral.path })},
	{path: "defer.max_jobs", value: "100000", help: "bound on the deferred requests that wait", set: toInt(1, 1<<30, func(c *config, n int64) { c.deferral.jobs = int(n) })},
	{path: "defer.max_bytes", value: "1GiB", help: "bound on their bytes",
		set: text(func(c *config, s string) (err error) { c.deferral.bytes, err = parseBytes(s); return err })},
	{path: "defer.max_body", value: "1MiB", help: "largest body of a request that is deferred; larger ones are refused",
		set: text(func(c *config, s string) (err error) { c.deferral.body, err = parseBytes(s); return err })},
	{path: "defer.max_dead", value: "10000", help: "bound on the dead letters", set: toInt(1, 1<<30, func(c *config, n int64) { c.deferral.dead = int(n) })},
	{path: "defer.max_age", value: "24h", help: "how old a deferred request may become before it is given up", set: toDuration(time.Second, func(c *config) *time.Duration { return &c.deferral.age })},
	{path: "defer.keep", value: "24h", help: "how long the ticket of a request that has ended is kept", set: toDuration(time.Second, func(c *config) *time.Duration { return &c.deferral.keep })},
	{path: "defer.attempts", value: "8", help: "how often a deferred request is sent before it is given up", set: toInt(1, 100, func(c *config, n int64) { c.deferral.attempts = int(n) })},
	{path: "defer.parallel", value: "64", help: "how many deferred requests are sent at a time", set: toInt(1, 10_000, func(c *config, n int64) { c.deferral.parallel = int(n) })},
	{path: "defer.tickets", value: proxy.DefaultTicketPath, help: "path of the proxy below which clients ask what became of a deferred request",
		set: text(func(c *config, s string) error {
			if len(s) < 2 || s[0] != '/' || s[len(s)-1] != '/' || strings.ContainsAny(s, "?#% ") {
				return fmt.Errorf("%q must be a path that begins and ends with a slash, such as %s", s, proxy.DefaultTicketPath)
			}
			c.deferral.tickets = s
			return nil
		})},
	{path: "identity", kind: mapping, help: "attribute=source pairs: header:NAME, cookie:NAME, basic, tls, jwt:CLAIM",
		set: func(c *config, items []string) error {
			c.identity = map[string]string{}
			for _, item := range items {
				name, source, ok := strings.Cut(item, "=")
				if !ok || name == "" || source == "" {
					return fmt.Errorf("%q is no attribute=source, such as user=header:X-User-Id", item)
				}
				if _, twice := c.identity[name]; twice {
					return fmt.Errorf("%q is given twice", name)
				}
				c.identity[name] = source
			}
			return nil
		}},
	{path: "jwt.jwks", help: "file of the keys that verify tokens for jwt: sources", set: toString(func(c *config) *string { return &c.jwks })},
	{path: "client_ip.trusted_proxies", kind: list, help: "addresses whose X-Forwarded-For is believed; unix: peers of unix sockets", set: toPeers(func(c *config) (*[]netip.Prefix, *bool) { return &c.clientIP.trusted, &c.clientIP.unix })},
	{path: "client_ip.ipv6_prefix", value: "64", help: "how many bits of an IPv6 address make a key",
		set: toInt(1, 128, func(c *config, n int64) { c.clientIP.ipv6Prefix = int(n) })},
	{path: "trusted_peers", kind: list, value: "127.0.0.0/8,::1", help: "who may refund, release and ask for more than 1,000 hits without a token; unix: peers of unix sockets", set: toPeers(func(c *config) (*[]netip.Prefix, *bool) { return &c.trustedPeers, &c.trustedUnix })},
	{path: "auth.tokens_file", help: "file of bearer tokens, one on a line: needed for the admin API then, and trusted as trusted_peers are", set: toString(func(c *config) *string { return &c.tokensFile })},
	{path: "auth.doors", kind: list, help: "decision doors that need a token of auth.tokens_file as well: http, grpc, resp, forward_auth", set: toDoors(tokenDoors, func(c *config) *[]string { return &c.authDoors })},
	{path: "tls.cert", kind: list, help: "files of this server's certificates with their intermediates, in PEM; they turn on TLS, and are followed as they change",
		set: func(c *config, items []string) error { c.tls.cert = items; return nil }},
	{path: "tls.key", kind: list, help: "files of their private keys, in the same order", set: func(c *config, items []string) error { c.tls.key = items; return nil }},
	{path: "tls.doors", kind: list, value: strings.Join(allDoors, ","), help: "doors that speak TLS", set: toDoors(allDoors, func(c *config) *[]string { return &c.tls.doors })},
	{path: "tls.client_ca", help: "file of the authorities of clients' certificates, in PEM; it turns on mutual TLS", set: toString(func(c *config) *string { return &c.tls.clientCA })},
	{path: "tls.client_doors", kind: list, value: strings.Join(allDoors, ","), help: "doors that demand such a certificate, of those that speak TLS", set: toDoors(allDoors, func(c *config) *[]string { return &c.tls.clientDoors })},
	{path: "tls.min_version", value: "1.2", help: "oldest version of TLS: 1.2 or 1.3",
		set: text(func(c *config, s string) error {
			versions := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
			if c.tls.minVersion = versions[s]; c.tls.minVersion == 0 {
				return fmt.Errorf("%q must be 1.2 or 1.3", s)
			}
			return nil
		})},
	{path: "proxy_protocol.doors", kind: list, help: "doors whose connections begin with a PROXY protocol header; needs proxy_protocol.peers", set: toDoors(allDoors, func(c *config) *[]string { return &c.proxyProtocol.doors })},
	{path: "proxy_protocol.peers", kind: list, help: "addresses of the proxies that send it; connections from elsewhere are closed; unix: peers of unix sockets", set: toPeers(func(c *config) (*[]netip.Prefix, *bool) { return &c.proxyProtocol.peers, &c.proxyProtocol.unix })},
	{path: "admin.hosts", kind: list, help: "names that the admin port may be called by, beside addresses and localhost",
		set: func(c *config, items []string) error { c.adminHosts = items; return nil }},
	{path: "headers", kind: list, value: "x-delta,draft11", help: "families of rate-limit headers: x-delta, x-epoch or envoy03; draft03, draft11 or next; or off",
		set: func(c *config, items []string) (err error) {
			if c.headers, err = httplimit.ParseHeaders(items); err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "headers: ")) // the key is named anyway
			}
			return nil
		}},
	{path: "cors.origins", kind: list, help: "origins of the web pages that may read the rate-limit headers and refusals, or * for all; none if empty",
		set: func(c *config, items []string) (err error) {
			if c.cors, err = httplimit.ParseOrigins(items); err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "cors.origins: "))
			}
			return nil
		}},
	{path: "rls.response_headers", value: "false", help: "RLS answers carry rate-limit headers", set: toBool(func(c *config) *bool { return &c.rls.responseHeaders })},
	{path: "rls.dynamic_metadata", value: "false", help: "RLS answers carry dynamic metadata", set: toBool(func(c *config) *bool { return &c.rls.dynamicMetadata })},
	{path: "metrics.detailed", value: "false", help: "metrics with clients' values for rules with detailed_metric or value_to_metric, up to 10,000 series", set: toBool(func(c *config) *bool { return &c.detailed })},
	{path: "log.level", value: "info", help: "debug, info, warn or error",
		set: text(func(c *config, s string) error {
			if c.log.level.UnmarshalText([]byte(s)) != nil || strings.ContainsAny(s, "+-") {
				return fmt.Errorf("%q must be debug, info, warn or error", s)
			}
			return nil
		})},
	{path: "log.format", value: "text", help: "text or json",
		set: text(func(c *config, s string) error {
			if s != "text" && s != "json" {
				return fmt.Errorf("%q must be text or json", s)
			}
			c.log.format = s
			return nil
		})},
	{path: "drain", value: "10s", help: "how long requests under way may take to finish when the program ends", set: toDuration(0, func(c *config) *time.Duration { return &c.drain })},
	{path: "max_connections", value: "10000", help: "bound on the connections of each door; further ones are closed",
		set: toInt(1, 1<<30, func(c *config, n int64) { c.maxConnections = int(n) })},
	{path: "limits.connections_per_address", value: "0", help: "bound on those from one address (IPv6: /64) that is none of client_ip.trusted_proxies; 0 for none",
		set: toInt(0, 1<<30, func(c *config, n int64) { c.limits.perAddress = int(n) })},
	{path: "limits.header_bytes", value: "64KiB", help: "bound on the header of a request over HTTP",
		set: text(func(c *config, s string) (err error) { c.limits.header, err = parseBytes(s); return err })},
	{path: "limits.header_timeout", value: "10s", help: "how long a connection may take to be set up, and the header of a request to arrive",
		set: toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.limits.headerTimeout })},
	{path: "limits.body_bytes", value: "0", help: "bound on the body of a request through the proxy; 0 for none",
		set: text(func(c *config, s string) (err error) {
			if c.limits.body = 0; s != "0" {
				c.limits.body, err = parseBytes(s)
			}
			return err
		})},
	{path: "limits.streams", value: "250", help: "bound on the requests under way on one HTTP/2 connection", set: toInt(1, 1<<20, func(c *config, n int64) { c.limits.streams = int(n) })},
	{path: "limits.idle", value: "2m", help: "how long a connection over HTTP may be without a request", set: toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.limits.idle })},
	{path: "limits.stall", value: "1m", help: "how long a client may take nothing of an answer that is being sent", set: toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.limits.stall })},
}

// notYet are keys of the specification whose work comes later.
var notYet = []string{"rls.quota"}

func findSetting(path string) *setting {
	for i := range settings {
		if settings[i].path == path {
			return &settings[i]
		}
	}
	return nil
}

// items splits the text of a flag or variable.
func (s *setting) items(value string) []string {
	if s.kind == scalar {
		return []string{value}
	}
	var items []string
	for item := range strings.SplitSeq(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
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

// loadConfig puts the defaults, the file, the environment and the flags together, later ones before earlier ones. It
// reports all that is wrong.
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
			if err := s.set(c, s.items(value)); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", s.variable(), err))
			}
		}
	}
	for i := range settings {
		s := &settings[i]
		if f := flags.Lookup(s.flag()); f != nil && f.Changed {
			if err := s.set(c, s.items(f.Value.String())); err != nil {
				problems = append(problems, fmt.Errorf("--%s: %w", s.flag(), err))
			}
		}
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
