package server

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/rule/file"
)

// configOf loads a configuration as serve does, in a folder of its own that holds weir.yaml if file
// is not empty.
func configOf(t *testing.T, file string, env, args []string) (*Config, error) {
	t.Helper()
	t.Chdir(t.TempDir())
	if file != "" {
		if err := os.WriteFile("weir.yaml", []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return Load(flags, env)
}

func mustConfig(t *testing.T, file string, env, args []string) *Config {
	t.Helper()
	c, err := configOf(t, file, env, args)
	if err != nil {
		t.Fatal(err)
	}
	if !c.named["overload.line"] {
		c.shed.line = 0 // see withoutLine
	}
	return c
}

// The sample of the documentation loads, and says what it seems to say.
func TestConfigSample(t *testing.T) {
	c := mustConfig(t, `
rules: ./rules
store: { url: memory, deadline: 20ms }   # the embedded store; the others matter with a shared one, these are the defaults
redis: { prefix: "weir:" }
nodes: 0                           # how many nodes there are, while Redis is away and has not told; default: unknown
snapshot: { path: ./weir.snapshot, every: 10s }   # embedded store only; default: none
listen: { http: ":8080", grpc: ":8081", admin: "127.0.0.1:6070", proxy: ":8000" }
proxy: { upstream: "http://127.0.0.1:3000" }
default_domain: shop
identity: { user: "header:X-User-Id", plan: "jwt:plan" }   # attribute: source; also cookie:NAME, basic, tls (client certificate)
jwt: { jwks: ./jwks.json }                  # a jwt source needs a key; an unverified token counts as absent
client_ip: { trusted_proxies: [10.0.0.0/8], ipv6_prefix: 64 }   # default: none, 64
trusted_peers: [127.0.0.0/8, "::1"]         # the default; who may refund, release, ask for more than 1,000 hits without a token
auth: { tokens_file: ./tokens }             # bearer tokens, one a line: for the admin API, and for refunds and releases from elsewhere
headers: [x-delta, draft11]                 # or off
`, nil, nil)
	got := strings.TrimSpace(fmt.Sprintln(c.rules, c.rulesSet, c.store, c.redis.Prefix, c.fallback.Deadline,
		c.fallback.FixedNodes, c.memory.Snapshot, c.memory.SnapshotEvery, c.listen, c.proxy.Upstream, c.domain,
		c.identity, c.jwks,
		c.clientIP.Trusted, c.ipv6Prefix, c.trust.Peers, c.tokensFile))
	want := "./rules true memory weir: 20ms 0 ./weir.snapshot 10s {:8080 :8081 127.0.0.1:6380 127.0.0.1:6070  :8000 } http://127.0.0.1:3000 shop " +
		"map[plan:jwt:plan user:header:X-User-Id] ./jwks.json [10.0.0.0/8] 64 [127.0.0.0/8 ::1/128] ./tokens"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestConfigWays: each setting can be given in the file, as a variable and as a flag, to the same
// effect, and none is forgotten here.
func TestConfigWays(t *testing.T) {
	values := map[string]string{
		"rules": "elsewhere", "rules_db.cache": "x/rules.cache", "rules_db.every": "700ms", "unknown_domain": "deny", "store": "rediss+cluster://ada:s3cret@a:1,b:2", "redis.prefix": "shop:", "redis.partitions": "16", "store.timeout": "2s",
		"store.deadline": "5ms", "store.max_deadline": "700ms", "redis.leases.max_keys": "7", "nodes": "3", "snapshot.path": "a/b", "snapshot.every": "1m30s", "memory.max_bytes": "3MiB",
		"listen.http": "127.0.0.1:1", "listen.grpc": "off", "listen.resp": "127.0.0.1:2", "listen.admin": ":0", "listen.metrics": ":19001", "listen.proxy": "[::1]:3", "listen.spoe": "127.0.0.1:9907", "default_domain": "shop", "forward_auth.dedupe": "true",
		"region": "eu", "regions.weights": "eu=2,us=1", "regions.stores": "us=redis://peer@us.example:6380",
		"rlqs.domains": "edge,shop", "rlqs.first": "9",
		"fields.encoded_slash": "keep",
		"proxy.upstream":       "https://example.com/base", "proxy.path": "as_is", "proxy.upstream_host": "true", "proxy.timeout": "5s", "proxy.upstream_idle": "4s", "proxy.body_timeout": "0s", "proxy.body_rate": "0", "proxy.abandoned": "cut",
		"identity": "user=header:X-User,plan=cookie:p", "jwt.jwks": "keys.json", "fields.repeated": "keep", "fields.lookalikes": "drop", "client_ip.trusted_proxies": "10.0.0.0/8,192.0.2.1", "client_ip.ipv6_prefix": "56", "client_ip.header": "CF-Connecting-IP", "client_ip.hops": "2",
		"trusted_peers": "192.0.2.0/24", "auth.tokens_file": "tokens", "admin.hosts": "weir.internal,weir", "admin.page": "off", "audit.path": "audit.jsonl", "headers": "draft11", "cors.origins": "https://shop.example,http://localhost:3000",
		"rls.response_headers": "true", "rls.dynamic_metadata": "true", "metrics.detailed": "true", "node.name": "web-1", "log.level": "debug", "log.format": "json", "drain": "3s", "max_connections": "77",
		"proxy.concurrency": "adaptive", "proxy.capacity": "40", "overload.line": "20ms", "overload.answer": "deny", "prometheus.url": "http://127.0.0.1:9999",
		"signals":    "orders=max(orders_used),jobs=sum(jobs)",
		"defer.path": "later.db", "defer.max_bytes": "2MiB", "defer.max_body": "3KiB", "defer.max_age": "1h", "defer.keep": "2h",
		"auth.doors": "http,forward_auth", "tls.cert": "a.pem,b.pem", "tls.key": "a.key,b.key", "tls.doors": "admin,grpc", "tls.client_ca": "ca.pem", "tls.client_doors": "grpc", "tls.min_version": "1.3",
		"proxy_protocol.doors": "proxy", "proxy_protocol.peers": "10.0.0.7,unix", "limits.connections_per_address": "12", "limits.header_timeout": "3s",
		"limits.body_bytes": "10MiB", "limits.memory": "64MiB", "limits.idle": "30s", "limits.stall": "20s",
		"insight.memory": "32MiB", "insight.path": "history", "insight.known": "user,plan",
		"otel.endpoint": "https://collector:4317", "otel.traces": "1%",
		"decisions.log": "decisions.jsonl", "decisions.outcomes": "denied,soft", "decisions.per_second": "7", "decisions.allowed": "0.5%",
		"defer.attempts": "3",
		"insight.record": "2MiB",
	}
	for i := range allSettings {
		s := &allSettings[i]
		t.Run(s.Path, func(t *testing.T) {
			value, ok := values[s.Path]
			if !ok {
				t.Fatalf("no value to try")
			}
			byDefault := mustConfig(t, "", nil, nil)
			byFlag := mustConfig(t, "", nil, []string{"--" + s.Flag() + "=" + value})
			byVariable := mustConfig(t, "", []string{s.Variable() + "=" + value}, nil)
			parts := strings.Split(s.Path, ".")
			yaml := value
			switch s.Kind {
			case settings.List:
				yaml = "[" + value + "]"
			case settings.Mapping:
				yaml = "{" + strings.NewReplacer("=", ": ", ",", ", ").Replace(value) + "}"
			case settings.Scalar:
				if strings.ContainsAny(value, ":[") {
					yaml = fmt.Sprintf("%q", value)
				}
			}
			for i, part := range slices.Backward(parts) {
				if yaml = part + ": " + yaml; i > 0 {
					yaml = "\n" + strings.Repeat("  ", i) + yaml
				}
			}
			byFile := mustConfig(t, yaml+"\n", nil, nil)
			if !reflect.DeepEqual(byFlag, byVariable) || !reflect.DeepEqual(byFlag, byFile) {
				t.Errorf("flag     %+v\nvariable %+v\nfile     %+v", byFlag, byVariable, byFile)
			}
			if reflect.DeepEqual(byFlag, byDefault) {
				t.Errorf("it has no effect: %+v", byFlag)
			}
		})
	}
}

func TestConfigOrder(t *testing.T) {
	const file = "listen: { http: ':1', grpc: ':1', admin: ':1' }\n"
	c := mustConfig(t, file, []string{"WEIR_LISTEN_GRPC=:2", "WEIR_LISTEN_ADMIN=:2", "WEIR_DATA=x",
		"WEIR_PORT=tcp://10.0.0.1:80"}, []string{"--listen-admin", ":3"})
	if got := c.listen.http + c.listen.grpc + c.listen.admin; got != ":1:2:3" {
		t.Errorf("file, variable, flag: got %s", got)
	}
	c = mustConfig(t, file, []string{"WEIR_LISTEN_HTTP=", "WEIR_HEADERS=off"}, []string{"--listen-admin=off"})
	if c.listen.http != "" || c.listen.admin != "" {
		t.Errorf("closed doors: %+v", c.listen)
	}
	c = mustConfig(t, "", nil, nil)
	if c.listen.http != "127.0.0.1:8080" || c.listen.grpc != "127.0.0.1:8081" || c.listen.admin != "127.0.0.1:6070" ||
		c.listen.proxy != "" || c.drain != (drainTimes{finish: 10 * time.Second}) {
		t.Errorf("defaults: %+v", c)
	}

	path := filepath.Join(t.TempDir(), "other.yaml")
	if err := os.WriteFile(path, []byte("# nothing but\nlog: { level: warn }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Config{
		"flag":     mustConfig(t, "log: { level: debug }", nil, []string{"--config", path}),
		"variable": mustConfig(t, "log: { level: debug }", []string{"WEIR_CONFIG=" + path}, nil),
	} {
		if c.log.level.String() != "WARN" {
			t.Errorf("file named by %s: level %v", name, c.log.level)
		}
	}
	for _, empty := range []string{"# only a comment\n", "---\n", "{}\n", "\n"} {
		if c := mustConfig(t, empty, nil, nil); c.listen.http != "127.0.0.1:8080" {
			t.Errorf("%q: %+v", empty, c)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct {
		file string
		env  []string
		args []string
		want []string
	}{
		"unknown keys":         {"lisen: {}\nlisten:\n  htp: ':1'\nheaders: [x-delta]\nupstream: x\n", nil, nil, []string{`weir.yaml:1:1: unknown key "lisen"; did you mean "listen"?`, `weir.yaml:3:3: unknown key "listen.htp"; did you mean "listen.http"?`, `weir.yaml:5:1: unknown key "upstream"; did you mean "proxy.upstream"?`}},
		"nothing like it":      {"zebra: 1\n", nil, nil, []string{`weir.yaml:1:1: unknown key "zebra"`}},
		"of no door alone":     {"http: { domain: shop }\nproxy: { domain: shop, encoded_slash: keep }\nzebra: {}\n", nil, nil, []string{`weir.yaml:1:9: unknown key "http.domain"; did you mean "default_domain"?`, `weir.yaml:2:10: unknown key "proxy.domain"; did you mean "default_domain"?`, `unknown key "proxy.encoded_slash"; did you mean "fields.encoded_slash"?`, `unknown key "zebra"`}},
		"a store":              {"store: mysql://ada:secret@db:3306\n", nil, nil, []string{`weir.yaml:1:8: store: write memory, or the URL of a store, such as redis://HOST:PORT: the scheme "mysql" is not known`}},
		"a store, no URL":      {"", nil, []string{"--store=secret@db"}, []string{"--store: write memory, or the URL of a store, such as redis://HOST:PORT: there is no scheme"}},
		"a store, empty":       {"", []string{"WEIR_STORE="}, nil, []string{"WEIR_STORE: write memory, or the URL of a store"}},
		"a raw password":       {"", []string{"WEIR_STORE=redis://:se/secret@db:6379"}, nil, []string{"percent-encode"}},
		"another raw one":      {"", []string{"WEIR_STORE=redis://ada:sec?secret@db:6379"}, nil, []string{"percent-encode"}},
		"a third one":          {"", []string{"WEIR_STORE=redis://ada:secret%@db:6379"}, nil, []string{"percent-encode"}},
		"a database":           {"", []string{"WEIR_STORE=redis://:secret@db:6379/users"}, nil, []string{`the database "users" is no number`}},
		"a cluster database":   {"", []string{"WEIR_STORE=redis+cluster://:secret@db:6379/1"}, nil, []string{"a Cluster has the database 0 only"}},
		"a PostgreSQL":         {"", []string{"WEIR_STORE=postgres://ada:secret@db/weir?weir_tables=no"}, nil, []string{`postgres URL: weir_tables is "no"; it may be unlogged, logged or synced`}},
		"a keyspace":           {"", []string{"WEIR_STORE=cassandra://ada:secret@db"}, nil, []string{"cassandra URL: \"\" is no name of a keyspace"}},
		"no master":            {"", []string{"WEIR_STORE=redis+sentinel://:secret@db"}, nil, []string{"the name of the master is missing"}},
		"several hosts":        {"", []string{"WEIR_STORE=redis://:secret@a,b"}, nil, []string{"several hosts; write redis+cluster:// or redis+sentinel://"}},
		"a parameter":          {"", []string{"WEIR_STORE=rediss://:secret@a/?cb=x"}, nil, []string{`the parameter "cb" is not known`}},
		"a CA for plain text":  {"", []string{"WEIR_STORE=redis://:secret@a/?ca=x"}, nil, []string{`"ca" is for TLS`}},
		"an absent CA":         {"", []string{"WEIR_STORE=rediss://:secret@a/?ca=absent.pem"}, nil, []string{"absent.pem"}},
		"a prefix with braces": {"redis: { prefix: 'a{b}:' }\n", nil, nil, []string{`weir.yaml:1:18: redis.prefix: "a{b}:" must not`}},
		"no partitions":        {"redis: { partitions: 0 }\n", nil, nil, []string{`weir.yaml:1:22: redis.partitions: "0" must be a whole number from 1 to 16384`}},
		"partitions":           {"redis: { partitions: 0 }\n", nil, nil, []string{"must be a whole number from 1 to 16384"}},
		"a deadline of 0":      {"store: { deadline: 0s }\n", nil, nil, []string{`weir.yaml:1:20: store.deadline: "0s" is below 1ms`}},
		"a store's settings":   {"store: { ulr: memory, url: mysql://db, dedline: 1s }\n", nil, nil, []string{`weir.yaml:1:10: unknown key "store.ulr"; did you mean "store.url"?`, `weir.yaml:1:28: store: write memory, or the URL`, `unknown key "store.dedline"; did you mean "store.deadline"?`}},
		"a store as a list":    {"store: [memory]\n", nil, nil, []string{"weir.yaml:1:8: store: must be a single value"}},
		"no other URL":         {"snapshot: { url: x }\n", nil, nil, []string{`unknown key "snapshot.url"`}},
		"a rule database":      {"rules: postgres://ada:secret@db/weir?sslmode=never\n", nil, nil, []string{"weir.yaml:1:8: rules: ", "sslmode is invalid"}},
		"a space":              {"rules: postgres://ada:secret@db/weir?space=a%20b\n", nil, nil, []string{"space=a b must be 1 to 63 letters"}},
		"no mapping":           {"listen: 3\n", nil, nil, []string{"weir.yaml:1:9: ", "listen must be a mapping"}},
		"a list at the root":   {"- a\n", nil, nil, []string{"must be a mapping"}},
		"a list for a value":   {"rules: [a, b]\n", nil, nil, []string{"weir.yaml:1:8: rules: must be a single value"}},
		"twice":                {"rules: a\nrules: b\n", nil, nil, []string{"weir.yaml", "rules"}},
		"no YAML":              {"rules: [a\n", nil, nil, []string{"weir.yaml"}},
		"two documents":        {"rules: a\n---\nrules: b\n", nil, nil, []string{"second document"}},
		"address":              {"", []string{"WEIR_LISTEN_HTTP=8080"}, nil, []string{`WEIR_LISTEN_HTTP: "8080" is no address; write host:port`}},
		"port":                 {"", []string{"WEIR_LISTEN_HTTP=:99999"}, nil, []string{"port must be a number from 0 to 65535"}},
		"a socket":             {"", []string{"WEIR_LISTEN_HTTP=unix:"}, nil, []string{"the path of the socket is missing"}},
		"an abstract socket":   {"", []string{"WEIR_LISTEN_HTTP=unix:@weir"}, nil, []string{"an abstract socket has no permissions"}},
		"a long path":          {"", []string{"WEIR_LISTEN_HTTP=unix:/" + strings.Repeat("a", 200)}, nil, []string{"at most"}},
		"a door":               {"tls: { doors: [http, htp] }\n", nil, nil, []string{`weir.yaml:1:15: tls.doors: "htp" is no door; write any of http, grpc`}},
		"a token door":         {"auth: { doors: admin }\n", nil, nil, []string{`"admin" is no door; write any of http, grpc, resp, forward_auth`}},
		"a version of TLS":     {"tls: { min_version: 1.1 }\n", nil, nil, []string{`"1.1" must be 1.2 or 1.3`}},
		"duration":             {"", nil, []string{"--drain=10"}, []string{`--drain: "10" is no duration`}},
		"size":                 {"memory: { max_bytes: lots }\n", nil, nil, []string{`weir.yaml:1:22: memory.max_bytes: "lots" is no size`}},
		"size overflow":        {"memory: { max_bytes: 99999999TiB }\n", nil, nil, []string{"is no size"}},
		"number":               {"client_ip: { ipv6_prefix: 129 }\n", nil, nil, []string{"must be a whole number from 1 to 128"}},
		"bool":                 {"metrics: { detailed: yes }\n", nil, nil, []string{`"yes" must be true or false`}},
		"header family":        {"headers: [x-delta, nonsense]\n", nil, nil, []string{"weir.yaml:1:10: headers: ", "nonsense"}},
		"prefix":               {"trusted_peers: [localhost]\n", nil, nil, []string{`weir.yaml:1:16: trusted_peers: "localhost"`}},
		"identity":             {"", []string{"WEIR_IDENTITY=user"}, nil, []string{`WEIR_IDENTITY: "user" is no attribute=source`}},
		"level":                {"log: { level: loud }\n", nil, nil, []string{`"loud" must be debug, info, warn or error`}},
		"all of them at once":  {"log: { level: loud }\nx: 1\n", []string{"WEIR_DRAIN=x"}, []string{"--log-format=xml"}, []string{"log.level", `unknown key "x"`, "WEIR_DRAIN", "--log-format"}},
		"no file":              {"", nil, []string{"--config", "absent.yaml"}, []string{"absent.yaml"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := configOf(t, c.file, c.env, c.args)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("%q tells a password", err)
			}
		})
	}
}

// A configuration that lies among the rules is one error, with any of its keys first.
func TestConfigurationAmongRules(t *testing.T) {
	for _, s := range allSettings {
		first, rest, _ := strings.Cut(s.Path, ".")
		text := first + ": value\n"
		if rest != "" {
			text = first + ": { " + rest + ": value }\n"
		}
		if first == "limits" { // which rules have, too
			text += "listen: { http: off }\n"
		}
		_, _, err := file.Load([]file.Source{{Name: "weir.yaml", Data: []byte(text)}}, file.Options{})
		if err == nil || !strings.Contains(err.Error(), "this is the configuration of a server, not a file of rules") ||
			strings.Count(err.Error(), "weir.yaml:") != 1 {
			t.Errorf("%s: got %v", s.Path, err)
		}
	}
}

// FuzzConfigFile: no file makes the program panic.
func FuzzConfigFile(f *testing.F) {
	for _, s := range []string{"rules: a\n", "listen: { http: ':1' }\n", "identity: { a: b }\n", "headers: [a, [b]]\n",
		"a: &x [*x]\n", "? {a: b}\n: c\n", "!!binary x", "rules: |\n  a\n", "<<: {rules: a}\n", "-", ":"} {
		f.Add([]byte(s))
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(flags)
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "weir.yaml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, problems := allSettings.Load(new(Config), flags, map[string]string{"WEIR_CONFIG": path})
		for _, err := range problems {
			if err.Error() == "" {
				t.Error("an error that says nothing")
			}
		}
	})
}
