package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/host/nftables"
	"github.com/weir-rl/weir/internal/lab/preview"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/redis"
)

// setting is one key of the configuration. Its path names it in weir.yaml; with dashes the flag, in
// capitals with underscores the environment variable.
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
	scalar kind = iota // one value: items holds it
	list               // any number: a sequence in YAML, comma-separated elsewhere
	// name → value: a mapping in YAML, name=value comma-separated elsewhere; items hold
	// name=value
	mapping
)

func (s *setting) flag() string { return flagOf(s.path) }

func (s *setting) variable() string {
	return "WEIR_" + strings.ToUpper(strings.ReplaceAll(s.path, ".", "_"))
}

func flagOf(path string) string { return strings.NewReplacer(".", "-", "_", "-").Replace(path) }

// settingGroup is a table of settings in docs/interfaces.md.
type settingGroup struct {
	title    string
	page     string // a page of docs with more about it; "" for none
	settings []setting
}

// settings are all keys, in the order in which --help lists them.
var settings = func() []setting {
	var all []setting
	for _, g := range settingGroups {
		all = append(all, g.settings...)
	}
	return all
}()

const slashHelp = `what becomes of requests whose path holds %2F, %5C or \, which servers read in different ways: refuse (400), or keep as data`

var settingGroups = []settingGroup{
	{title: "Rules", page: "rules.md", settings: rulesSettings},
	{title: "Store", page: "distributed.md", settings: storeSettings},
	{title: "Doors", settings: doorSettings},
	{title: "Envoy's quotas", page: "rlqs.md", settings: quotaSettings},
	{title: "Regions", page: "regions.md", settings: regionSettings},
	{title: "Proxy", settings: proxySettings},
	{title: "Load", page: "overload.md", settings: loadSettings},
	{title: "Bans and recent decisions", page: "bans.md", settings: banSettings},
	{title: "Insight", settings: insightSettings},
	{title: "Deferred requests", page: "deferring.md", settings: deferSettings},
	{title: "Clients", page: "keys.md", settings: clientSettings},
	{title: "Fields", page: "security.md", settings: fieldSettings},
	{title: "Trust and transport", page: "security.md", settings: trustSettings},
	{title: "Answers", page: "headers.md", settings: answerSettings},
	{title: "Metrics and logs", settings: logSettings},
	{title: "OpenTelemetry", settings: otelSettings},
	{title: "Decision log", settings: decisionSettings},
	{title: "Bounds", page: "security.md", settings: boundSettings},
}

var rulesSettings = []setting{
	{path: "rules", value: "./rules",
		help: "folder of rule files, or one file; or a PostgreSQL that holds rules, as postgres://USER@HOST/DATABASE?space=NAME; until ./rules is there: built-in starter rules",
		set: text(func(c *config, s string) (err error) {
			if s == "" {
				return errors.New("must name a folder or a file")
			}
			c.rules, c.rulesSet, c.database = s, true, nil
			if ruledb.IsURL(s) {
				c.database, err = ruledb.Parse(s)
			}
			return err
		})},
	{path: "rules_db.cache", value: "./weir-rules.cache",
		help: "file that keeps the rules in force, with which a node starts while their database is away; none if empty",
		set:  toString(func(c *config) *string { return &c.ruleCache })},
	{path: "rules_db.every", value: "5s",
		help: "how often a node looks into the database of rules where no message comes",
		set:  toDuration(100*time.Millisecond, func(c *config) *time.Duration { return &c.ruleEvery })},
}

var storeSettings = []setting{
	{path: "store", value: storeMemory,
		help: "where counters live: memory, or what all nodes share: a Redis, as redis://HOST:PORT, rediss://, redis+sentinel:// or redis+cluster://, postgres://HOST:PORT/DATABASE, or cassandra://HOST:PORT/KEYSPACE",
		set:  text(func(c *config, s string) error { c.store = s; return checkStore(s) })},
	{path: "store.timeout", value: redis.DefaultTimeout.String(),
		help: "how long a shared store that hangs is waited for before it is asked again",
		set:  toDuration(time.Millisecond, func(c *config) *time.Duration { return &c.shared.timeout })},
	{path: "store.deadline", value: fallback.DefaultDeadline.String(),
		help: "how long a decision waits at least for a shared store that is silent before it is made without it",
		set:  toDuration(time.Millisecond, func(c *config) *time.Duration { return &c.fallback.Deadline })},
	{path: "store.max_deadline", value: "1s",
		help: "how long it waits at most, where the store is known to be slow",
		set:  toDuration(time.Millisecond, func(c *config) *time.Duration { return &c.fallback.MaxDeadline })},
	{path: "store.remember_refusals", value: "1s",
		help: "how long at most a refusal is repeated without asking the store; 0s for never",
		set:  toDuration(0, func(c *config) *time.Duration { return &c.shared.rememberRefusals })},
	{path: "store.heartbeat", value: "1s",
		help: "how often this node tells that it lives, so that all know how many there are; 0s for never",
		set:  toDuration(0, func(c *config) *time.Duration { return &c.shared.heartbeat })},
	{path: "redis.prefix", value: redis.DefaultPrefix,
		help: "beginning of all keys in Redis",
		set: text(func(c *config, s string) error {
			if s == "" || strings.ContainsAny(s, "{}") {
				return fmt.Errorf("%q must not be empty, nor hold { or }, which choose a slot of a Cluster", s)
			}
			c.redis.Prefix = s
			return nil
		})},
	{path: "redis.partitions", value: strconv.Itoa(redis.DefaultPartitions),
		help: "parts into which the keys of a Cluster fall; the same on all nodes",
		set:  toInt(1, 16384, func(c *config) *int { return &c.redis.Partitions })},
	{path: "redis.connections", value: "1",
		help: "connections to each Redis server, a power of 2",
		set: text(func(c *config, s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < 1 || n > 64 || n&(n-1) != 0 {
				return fmt.Errorf("%q must be a power of 2, from 1 to 64", s)
			}
			c.redis.Connections = n
			return nil
		})},
	{path: "redis.leases.max_keys", value: strconv.Itoa(lease.DefaultMaxKeys),
		help: "keys of which this node may hold units that Redis has lent it, where rules ask for that (consistency); 0 for none: then all is decided exactly",
		set:  toInt(0, maxLeaseKeys, func(c *config) *int { return &c.leases.maxKeys })},
	{path: "nodes", value: "0",
		help: "number of nodes to share limits among while the store is away, at least; it may have told of more; 0 if unknown",
		set:  toInt(0, 1<<20, func(c *config) *int { return &c.fallback.FixedNodes })},
	{path: "snapshot.path",
		help: "file that keeps the counters over a restart; none if empty",
		set:  toString(func(c *config) *string { return &c.memory.Snapshot })},
	{path: "snapshot.every", value: "10s",
		help: "time between two snapshots",
		set:  toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.memory.SnapshotEvery })},
	{path: "memory.max_keys", value: "10000000",
		help: "bound on the keys in memory",
		set:  toInt(1, 1<<40, func(c *config) *int { return &c.memory.MaxKeys })},
	{path: "memory.max_bytes", value: "1GiB",
		help: "bound on the bytes of all keys in memory",
		set:  toBytes(func(c *config) *int64 { return &c.memory.MaxBytes })},
}

var doorSettings = []setting{
	{path: "listen.http", value: "127.0.0.1:8080",
		help: "address of the HTTP decision API, host:port or unix:/path as for all doors; off closes it",
		set:  toAddress(func(c *config) *string { return &c.listen.http })},
	{path: "listen.grpc", value: "127.0.0.1:8081",
		help: "address of Envoy's rate limit service over gRPC; off closes it",
		set:  toAddress(func(c *config) *string { return &c.listen.grpc })},
	{path: "listen.resp", value: "127.0.0.1:6380",
		help: "address of the Redis protocol: CL.THROTTLE, THROTTLE and WEIR.LIMIT; off closes it",
		set:  toAddress(func(c *config) *string { return &c.listen.resp })},
	{path: "listen.admin", value: "127.0.0.1:6070",
		help: "address of the admin API and metrics; off closes it",
		set:  toAddress(func(c *config) *string { return &c.listen.admin })},
	{path: "listen.proxy",
		help: "address of the reverse proxy; needs proxy.upstream",
		set:  toAddress(func(c *config) *string { return &c.listen.proxy })},
	{path: "listen.spoe",
		help: "address of the SPOE agent for HAProxy, such as 127.0.0.1:9907; off closes it",
		set:  toAddress(func(c *config) *string { return &c.listen.spoe })},
	{path: "http.domain",
		help: "domain of decision requests that name none",
		set:  toString(func(c *config) *string { return &c.http.Domain })},
	{path: "resp.domain",
		help: "domain of WEIR.LIMIT with an empty one",
		set:  toString(func(c *config) *string { return &c.resp.Domain })},
	{path: "resp.max_memory", value: "256MiB",
		help: "bound on the memory that all connections over the Redis protocol take",
		set:  toBytes(func(c *config) *int64 { return &c.resp.MaxMemory })},
	{path: "resp.idle", value: "10m",
		help: "how long such a connection may be silent",
		set:  toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.resp.Idle })},
	{path: "spoe.domain",
		help: "domain of HAProxy's requests that name none",
		set:  toString(func(c *config) *string { return &c.spoe.Domain })},
	{path: "spoe.encoded_slash", value: "refuse",
		help: slashHelp,
		set:  toSlash(func(c *config) *httplimit.EncodedSlash { return &c.spoe.EncodedSlash })},
	{path: "forward_auth.domain",
		help: "domain of the checks of nginx, Caddy and Traefik whose path names none; http.domain if empty",
		set:  toString(func(c *config) *string { return &c.forwardAuth.Domain })},
	{path: "forward_auth.dedupe", value: "false",
		help: "count repeated checks of one nginx request, known by X-Request-Id, once; only where nginx sets that header itself",
		set:  toBool(func(c *config) *bool { return &c.forwardAuth.Dedupe })},
	{path: "forward_auth.encoded_slash", value: "refuse",
		help: slashHelp,
		set:  toSlash(func(c *config) *httplimit.EncodedSlash { return &c.forwardAuth.EncodedSlash })},
}

var banSettings = []setting{
	{path: "ban.max", value: "100000",
		help: "bound on the bans in force",
		set:  toInt(1, 10_000_000, func(c *config) *int { return &c.bans.Max })},
	{path: "ban.nftables_table", value: nftables.DefaultTable,
		help: "table of nftables for bans with at: nftables; one that is there already is taken for our own",
		set: text(func(c *config, s string) error {
			if s == "" || len(s) > 64 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
				return fmt.Errorf("%q must be letters, digits and _", s)
			}
			c.nftables.Table = s
			return nil
		})},
	{path: "recent.entries", value: "10000",
		help: "recent decisions to keep for weir explain --id",
		set:  toInt(4, 10_000_000, func(c *config) *int { return &c.recent.Entries })},
}

var insightSettings = []setting{
	{path: "insight.memory", value: "64MiB",
		help: "bound on the memory of what is gathered of rules and keys, 4MiB at least; 0 gathers nothing",
		set: text(func(c *config, s string) (err error) {
			if c.insight.Memory = 0; s == "0" {
				return nil
			}
			if c.insight.Memory, err = parseBytes(s); err == nil && c.insight.Memory < gather.LeastMemory {
				err = fmt.Errorf("%q is below 4MiB", s)
			}
			return err
		})},
	{path: "insight.path",
		help: "file that keeps what was counted over time over a restart; none if empty",
		set:  toString(func(c *config) *string { return &c.insightPath })},
	{path: "insight.record", value: "16MiB",
		help: "bound on the memory of recorded requests, on which other rules can be tried, 1MiB at least; 0 records nothing",
		set: text(func(c *config, s string) (err error) {
			if c.record.Bytes = 0; s == "0" {
				return nil
			}
			if c.record.Bytes, err = parseBytes(s); err == nil && c.record.Bytes < preview.MinBytes {
				err = fmt.Errorf("%q is below 1MiB", s)
			}
			return err
		})},
	{path: "insight.known", kind: list,
		help: "attributes of which one makes a client known, for telling good clients; those of identity if empty, else user",
		set:  func(c *config, items []string) error { c.insight.Known = items; return nil }},
	{path: "insight.good_refused", value: "0.1%",
		help: "share of the good clients that a rule may refuse before it is called too strict",
		set: text(func(c *config, s string) error {
			number, ok := strings.CutSuffix(s, "%")
			share, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if !ok || err != nil || !(share > 0 && share <= 100) {
				return fmt.Errorf("%q is no share above 0%%, such as 0.1%%", s)
			}
			c.insight.GoodRefused = share / 100
			return nil
		})},
}

var deferSettings = []setting{
	{path: "defer.path",
		help: "file of the requests that rules defer, with the embedded store; with Redis or PostgreSQL they lie there",
		set:  toString(func(c *config) *string { return &c.deferPath })},
	{path: "defer.max_jobs", value: "100000",
		help: "bound on the deferred requests that wait",
		set:  toInt(1, 1<<30, func(c *config) *int { return &c.deferBounds.Jobs })},
	{path: "defer.max_bytes", value: "1GiB",
		help: "bound on their bytes",
		set:  toBytes(func(c *config) *int64 { return &c.deferBounds.Bytes })},
	{path: "defer.max_body", value: "1MiB",
		help: "largest body of a request that is deferred; larger ones are refused",
		set:  toBytes(func(c *config) *int64 { return &c.deferral.MaxBody })},
	{path: "defer.max_dead", value: "10000",
		help: "bound on the dead letters",
		set:  toInt(1, 1<<30, func(c *config) *int { return &c.deferBounds.Dead })},
	{path: "defer.max_age", value: "24h",
		help: "how old a deferred request may become before it is given up",
		set:  toDuration(time.Second, func(c *config) *time.Duration { return &c.deferral.Worker.MaxAge })},
	{path: "defer.keep", value: "24h",
		help: "how long the ticket of a request that has ended is kept",
		set:  toDuration(time.Second, func(c *config) *time.Duration { return &c.deferBounds.Keep })},
	{path: "defer.attempts", value: "8",
		help: "how often a deferred request is sent before it is given up",
		set:  toInt(1, 100, func(c *config) *int { return &c.deferral.Worker.Attempts })},
	{path: "defer.parallel", value: "64",
		help: "how many deferred requests are sent at a time",
		set:  toInt(1, 10_000, func(c *config) *int { return &c.deferral.Worker.Parallel })},
	{path: "defer.tickets", value: proxy.DefaultTicketPath,
		help: "path of the proxy below which clients ask what became of a deferred request",
		set: text(func(c *config, s string) error {
			if len(s) < 2 || s[0] != '/' || s[len(s)-1] != '/' || strings.ContainsAny(s, "?#% ") {
				return fmt.Errorf("%q must be a path that begins and ends with a slash, such as %s", s, proxy.DefaultTicketPath)
			}
			c.deferral.TicketPath = s
			return nil
		})},
}

var clientSettings = []setting{
	{path: "identity", kind: mapping,
		help: "attribute=source pairs: header:NAME, cookie:NAME, hash:header:NAME, hash:cookie:NAME, apikey, basic, bearer, tls, jwt:CLAIM",
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
	{path: "jwt.jwks",
		help: "file of the keys that verify tokens for jwt: sources",
		set:  toString(func(c *config) *string { return &c.jwks })},
	{path: "client_ip.trusted_proxies", kind: list,
		help: "proxies whose word for the client is believed: addresses, networks, private, loopback; unix: peers of unix sockets",
		set:  toPeers(func(c *config) (*[]netip.Prefix, *bool) { return &c.clientIP.Trusted, &c.clientIP.TrustUnix })},
	{path: "client_ip.header", value: "X-Forwarded-For",
		help: "the field in which they name it: X-Forwarded-For, Forwarded, or one that holds a single address, such as CF-Connecting-IP",
		set: text(func(c *config, s string) error {
			c.clientIP.Header = s
			c.clientIP.Header = c.clientIP.Field()
			return nil
		})},
	{path: "client_ip.hops", value: "0",
		help: "how many proxies there are in front: the client is so many from the right of the list; 0 goes by trusted_proxies",
		set:  toInt(0, 100, func(c *config) *int { return &c.clientIP.Hops })},
	{path: "client_ip.ipv6_prefix", value: "64",
		help: "how many bits of an IPv6 address make a key",
		set:  toInt(1, 128, func(c *config) *int { return &c.ipv6Prefix })},
}

var trustSettings = []setting{
	{path: "trusted_peers", kind: list, value: "127.0.0.0/8,::1",
		help: "who may refund, release and ask for more than 1,000 hits without a token: addresses, networks, private, loopback; unix: peers of unix sockets",
		set:  toPeers(func(c *config) (*[]netip.Prefix, *bool) { return &c.trust.Peers, &c.trust.Unix })},
	{path: "auth.tokens_file",
		help: "file of bearer tokens, one on a line: needed for the admin API then, and trusted as trusted_peers are",
		set:  toString(func(c *config) *string { return &c.tokensFile })},
	{path: "auth.doors", kind: list,
		help: "decision doors that need a token of auth.tokens_file as well: http, grpc, resp, forward_auth",
		set:  toDoors(tokenDoors, func(c *config) *[]string { return &c.authDoors })},
	{path: "tls.cert", kind: list,
		help: "files of this server's certificates with their intermediates, in PEM; they turn on TLS, and are followed as they change",
		set:  func(c *config, items []string) error { c.certificates.Cert = items; return nil }},
	{path: "tls.key", kind: list,
		help: "files of their private keys, in the same order",
		set:  func(c *config, items []string) error { c.certificates.Key = items; return nil }},
	{path: "tls.doors", kind: list, value: strings.Join(allDoors, ","),
		help: "doors that speak TLS",
		set:  toDoors(allDoors, func(c *config) *[]string { return &c.tlsDoors })},
	{path: "tls.client_ca",
		help: "file of the authorities of clients' certificates, in PEM; it turns on mutual TLS",
		set:  toString(func(c *config) *string { return &c.certificates.ClientCA })},
	{path: "tls.client_doors", kind: list, value: strings.Join(allDoors, ","),
		help: "doors that demand such a certificate, of those that speak TLS",
		set:  toDoors(allDoors, func(c *config) *[]string { return &c.clientDoors })},
	{path: "tls.min_version", value: "1.2",
		help: "oldest version of TLS: 1.2 or 1.3",
		set: text(func(c *config, s string) error {
			versions := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}
			if c.certificates.MinVersion = versions[s]; c.certificates.MinVersion == 0 {
				return fmt.Errorf("%q must be 1.2 or 1.3", s)
			}
			return nil
		})},
	{path: "proxy_protocol.doors", kind: list,
		help: "doors whose connections begin with a PROXY protocol header; needs proxy_protocol.peers",
		set:  toDoors(allDoors, func(c *config) *[]string { return &c.proxyDoors })},
	{path: "proxy_protocol.peers", kind: list,
		help: "the proxies that send it: addresses, networks, private, loopback; connections from elsewhere are closed; unix: peers of unix sockets",
		set:  toPeers(func(c *config) (*[]netip.Prefix, *bool) { return &c.proxyPeers.Peers, &c.proxyPeers.Unix })},
	{path: "admin.hosts", kind: list,
		help: "names that the admin port, and the HTTP door on loopback, may be called by, beside addresses and localhost",
		set:  func(c *config, items []string) error { c.admin.Hosts = items; return nil }},
	{path: "admin.page", value: "on",
		help: "the operator's page at the admin port: on or off",
		set: text(func(c *config, s string) error {
			if c.page = s == "on"; !c.page && s != "off" {
				return fmt.Errorf("%q must be on or off", s)
			}
			return nil
		})},
	{path: "admin.streams", value: "32",
		help: "bound on the event streams that are open at the admin port at a time",
		set:  toInt(1, 10_000, func(c *config) *int { return &c.admin.Streams })},
	{path: "audit.path",
		help: "file of the audit log, a record for each change by hand, chained by hashes; none if empty: the log only",
		set:  toString(func(c *config) *string { return &c.auditPath })},
}

var answerSettings = []setting{
	{path: "headers", kind: list, value: "x-delta,draft11",
		help: "families of rate-limit headers: x-delta, x-epoch or envoy03; draft03, draft11 or next; or off",
		set: func(c *config, items []string) (err error) {
			if c.headers, err = httplimit.ParseHeaders(items); err != nil {
				// the key is named anyway
				return errors.New(strings.TrimPrefix(err.Error(), "headers: "))
			}
			return nil
		}},
	{path: "cors.origins", kind: list,
		help: "origins of the web pages that may read the rate-limit headers and refusals, or * for all; none if empty",
		set: func(c *config, items []string) (err error) {
			if c.cors, err = httplimit.ParseOrigins(items); err != nil {
				return errors.New(strings.TrimPrefix(err.Error(), "cors.origins: "))
			}
			return nil
		}},
	{path: "rls.response_headers", value: "false",
		help: "RLS answers carry rate-limit headers",
		set:  toBool(func(c *config) *bool { return &c.rls.ResponseHeaders })},
	{path: "rls.dynamic_metadata", value: "false",
		help: "RLS answers carry dynamic metadata",
		set:  toBool(func(c *config) *bool { return &c.rls.DynamicMetadata })},
}

var logSettings = []setting{
	{path: "metrics.detailed", value: "false",
		help: "metrics with clients' values for rules with detailed_metric or value_to_metric, up to 10,000 series",
		set:  toBool(func(c *config) *bool { return &c.detailed })},
	{path: "log.level", value: "info",
		help: "debug, info, warn or error",
		set: text(func(c *config, s string) error {
			if c.log.level.UnmarshalText([]byte(s)) != nil || strings.ContainsAny(s, "+-") {
				return fmt.Errorf("%q must be debug, info, warn or error", s)
			}
			return nil
		})},
	{path: "log.format", value: "text",
		help: "text or json",
		set: text(func(c *config, s string) error {
			if s != "text" && s != "json" {
				return fmt.Errorf("%q must be text or json", s)
			}
			c.log.format = s
			return nil
		})},
}

var boundSettings = []setting{
	{path: "drain", value: "10s",
		help: "how long requests under way may take to finish when the program ends",
		set:  toDuration(0, func(c *config) *time.Duration { return &c.drain })},
	{path: "max_connections", value: "10000",
		help: "bound on the connections of each door; further ones are closed",
		set:  toInt(1, 1<<30, func(c *config) *int { return &c.maxConnections })},
	{path: "limits.connections_per_address", value: "0",
		help: "bound on those from one address (IPv6: /64) that is none of client_ip.trusted_proxies; 0 for none",
		set:  toInt(0, 1<<30, func(c *config) *int { return &c.limits.perAddress })},
	{path: "limits.header_bytes", value: "64KiB",
		help: "bound on the header of a request over HTTP",
		set:  toBytes(func(c *config) *int64 { return &c.limits.header })},
	{path: "limits.header_timeout", value: "10s",
		help: "how long a connection may take to be set up, and the header of a request to arrive",
		set:  toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.limits.headerTimeout })},
	{path: "limits.body_bytes", value: "0",
		help: "bound on the body of a request through the proxy; 0 for none",
		set: text(func(c *config, s string) (err error) {
			if c.limits.body = 0; s != "0" {
				c.limits.body, err = parseBytes(s)
			}
			return err
		})},
	{path: "limits.streams", value: "250",
		help: "bound on the requests under way on one HTTP/2 connection; 1,024 at the gRPC door if nobody sets it",
		set:  toInt(1, 1<<20, func(c *config) *int { return &c.limits.streams })},
	{path: "limits.memory", value: "auto",
		help: "memory that all HTTP/2 connections of a door may make this process keep, at the proxy and at the gRPC door each: headers, bodies, answers; auto: an eighth of the memory of this process, from 64MiB to 1GiB",
		set: text(func(c *config, s string) (err error) {
			if c.limits.memory = 0; s == "auto" {
				return nil
			}
			if c.limits.memory, err = parseBytes(s); err == nil && c.limits.memory < 8<<20 {
				err = fmt.Errorf("%q is below 8MiB", s)
			}
			return err
		})},
	{path: "limits.idle", value: "2m",
		help: "how long a connection over HTTP may be without a request",
		set:  toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.limits.idle })},
	{path: "limits.stall", value: "1m",
		help: "how long a client may take nothing of an answer that is being sent",
		set:  toDuration(10*time.Millisecond, func(c *config) *time.Duration { return &c.limits.stall })},
}

// findSetting finds a setting by its path; nil if there is none.
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
