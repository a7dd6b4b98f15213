// Package ratelimitenv takes over the environment variables of envoyproxy/ratelimit, so that a
// server of ours starts in an environment made for that service. Each variable that means the same
// here gives its value to a setting. Finish says which of these are in force, which variables have
// no effect, and which a server must not start with. Begin with Read.
package ratelimitenv

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/store/redis"
)

// Inherited is the result of reading the variables.
type Inherited struct {
	Read     []string // "rules=/data/ratelimit/config (RUNTIME_ROOT)", in the order of reading
	Warnings []string // variables that are set without effect, and how to mend that
	Problems []error  // a server must not start with these; the other commands may
}

// telltales are variables that only envoyproxy/ratelimit has. Without one of them none is read,
// since other programs use names like PORT too.
var telltales = []string{
	"RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY", "RUNTIME_WATCH_ROOT", "RUNTIME_IGNOREDOTFILES",
	"USE_STATSD", "USE_DOG_STATSD", "REDIS_SOCKET_TYPE", "REDIS_PERSECOND", "EXPIRATION_JITTER_MAX_SECONDS",
	"NEAR_LIMIT_RATIO", "LIMIT_RESPONSE_HEADERS_ENABLED", "MERGE_DOMAIN_CONFIG", "FORCE_START_WITHOUT_INITIAL_CONFIG",
	"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "LOCAL_CACHE_SIZE_IN_BYTES",
}

// Env is what Read has found.
type Env struct {
	set     func(path, value string) error
	v       map[string]string
	inPlace bool
	taken   []takenSetting
	failed  []settingError
	idle    []string // warnings of variables that have no effect with the address of Redis in use
}

// takenSetting is a setting that variables of envoyproxy/ratelimit have given a value.
type takenSetting struct{ path, value, from string }

// settingError is an error that does not matter once path is set elsewhere; "" is for one that
// always matters.
type settingError struct {
	path string
	err  error
}

// Read gives settings the values that the variables v have for envoyproxy/ratelimit, as far as they
// mean the same here; set sets the setting path. It comes before everything else that sets a
// setting; Finish then knows which of them are in force. It returns nil if v is not for
// envoyproxy/ratelimit. With inPlace, for a program that was started in its place, v always is, and
// its defaults hold: what is not set is as there.
func Read(v map[string]string, inPlace bool, set func(path, value string) error) *Env {
	r := &Env{set: set, v: v, inPlace: inPlace}
	switch {
	case inPlace:
		r.defaults()
	case !slices.ContainsFunc(telltales, r.has):
		return nil
	}
	switch {
	case v["CONFIG_TYPE"] == "GRPC_XDS_SOTW":
		r.xds()
	case r.has("RUNTIME_ROOT") || r.has("RUNTIME_SUBDIRECTORY") || inPlace:
		folder := filepath.Join(cmp.Or(v["RUNTIME_ROOT"], "/srv/runtime_data/current"), v["RUNTIME_SUBDIRECTORY"],
			cmp.Or(v["RUNTIME_APPDIRECTORY"], "config"))
		r.take("rules", folder, "RUNTIME_ROOT")
	}
	if uds := v["GRPC_UDS"]; uds != "" {
		r.take("listen.grpc", "unix:"+uds, "GRPC_UDS")
	} else {
		r.address("listen.grpc", "GRPC_HOST", "GRPC_PORT", "8081")
	}
	r.address("listen.http", "HOST", "PORT", "8080")
	if inPlace && r.on("USE_PROMETHEUS") {
		r.take("listen.metrics", cmp.Or(v["PROMETHEUS_ADDR"], ":9090"), "USE_PROMETHEUS")
	}
	if inPlace {
		r.tracing()
	}
	r.store()
	if prefix := v["CACHE_KEY_PREFIX"]; prefix != "" {
		r.take("redis.prefix", prefix, "CACHE_KEY_PREFIX")
	}
	if timeout := v["REDIS_TIMEOUT"]; timeout != "" {
		r.take("store.timeout", timeout, "REDIS_TIMEOUT")
	}
	r.tls()
	if r.on("LIMIT_RESPONSE_HEADERS_ENABLED") {
		r.take("rls.response_headers", "true", "LIMIT_RESPONSE_HEADERS_ENABLED")
	}
	if r.on("RESPONSE_DYNAMIC_METADATA") {
		r.take("rls.dynamic_metadata", "true", "RESPONSE_DYNAMIC_METADATA")
	}
	if level := strings.ToLower(v["LOG_LEVEL"]); level != "" {
		names := map[string]string{"trace": "debug", "warning": "warn", "fatal": "error", "panic": "error"}
		r.take("log.level", cmp.Or(names[level], level), "LOG_LEVEL")
	}
	if format := strings.ToLower(v["LOG_FORMAT"]); format != "" {
		r.take("log.format", format, "LOG_FORMAT")
	}
	// Both change every decision. A server that ignored them would refuse requests that
	// envoyproxy/ratelimit lets through.
	for _, name := range []string{"SHADOW_MODE", "QUOTA_MODE"} {
		if r.on(name) {
			r.fail("", "%s=%s: write %s: true into the descriptors, and unset the variable", name, v[name],
				strings.ToLower(name))
		}
	}
	return r
}

func (r *Env) has(name string) bool { return r.v[name] != "" }

// defaults opens the doors that envoyproxy/ratelimit opens, and no others. Its port for debugging
// is open to all; here it is for operators, and on loopback, where port forwarding reaches it.
func (r *Env) defaults() {
	for path, value := range map[string]string{"listen.http": "0.0.0.0:8080", "listen.grpc": "0.0.0.0:8081",
		"listen.admin": "127.0.0.1:6070", "listen.resp": "off", "listen.spoe": "off", "listen.proxy": "off"} {
		if err := r.set(path, value); err != nil {
			r.fail(path, "%s: %w", path, err)
		}
	}
}

// on reports whether a variable says yes, in any of the ways that envoyproxy/ratelimit takes.
func (r *Env) on(name string) bool {
	yes, err := strconv.ParseBool(r.v[name])
	return err == nil && yes
}

func (r *Env) fail(path, format string, args ...any) {
	r.failed = append(r.failed, settingError{path, fmt.Errorf(format, args...)})
}

// take sets the setting path, unless its value is wrong.
func (r *Env) take(path, value, from string) {
	if err := r.set(path, value); err != nil {
		r.fail(path, "%s: %w", from, err)
		return
	}
	r.taken = append(r.taken, takenSetting{path, value, from})
}

// address takes a host and a port, either of which may be left out.
func (r *Env) address(path, host, port, standard string) {
	switch {
	case r.has(port):
		r.take(path, net.JoinHostPort(cmp.Or(r.v[host], "0.0.0.0"), r.v[port]), port)
	case r.has(host):
		r.take(path, net.JoinHostPort(r.v[host], standard), host)
	}
}

// store takes the address of Redis.
func (r *Env) store() {
	if backend := r.v["BACKEND_TYPE"]; backend != "" && backend != "redis" {
		r.fail("store", "BACKEND_TYPE=%s: counters live in this process or in a Redis; set WEIR_STORE", backend)
		return
	}
	address := r.v["REDIS_URL"]
	if address == "" {
		return
	}
	value, err := r.redisURL(address)
	if err == nil {
		err = redis.CheckURL(value) // and of no other store
	}
	if err != nil {
		r.fail("store", "REDIS_URL: %w; set WEIR_STORE", err)
		return
	}
	r.take("store", value, "REDIS_URL")
}

// redisURL writes an address, with or without a scheme, in the form of the setting store, and adds
// the settings that other variables make for Redis. A contradiction is an error, since choosing
// silently could drop TLS or a password. Errors hold no credentials.
func (r *Env) redisURL(address string) (string, error) {
	if r.v["REDIS_SOCKET_TYPE"] == "unix" || strings.HasPrefix(address, "/") {
		return "", errors.New("a unix socket of Redis is not supported")
	}
	scheme, rest, isURL := strings.Cut(address, "://")
	if !isURL {
		scheme, rest = "redis", address
	}
	base, form, _ := strings.Cut(scheme, "+")
	if base != "redis" && base != "rediss" || form != "" && form != "cluster" && form != "sentinel" {
		return address, nil // the setting itself reports the error
	}
	if r.has("REDIS_TLS") {
		on, err := strconv.ParseBool(r.v["REDIS_TLS"])
		switch {
		case err != nil:
			return "", fmt.Errorf("REDIS_TLS=%s is neither true nor false", r.v["REDIS_TLS"])
		case on:
			base = "rediss"
		case base == "rediss":
			return "", fmt.Errorf("%s:// contradicts REDIS_TLS=%s", scheme, r.v["REDIS_TLS"])
		}
	}
	kind, master := strings.ToUpper(r.v["REDIS_TYPE"]), ""
	switch forms := map[string]string{"SINGLE": "", "CLUSTER": "cluster", "SENTINEL": "sentinel"}; {
	case kind == "":
	case kind != "SINGLE" && forms[kind] == "":
		return "", fmt.Errorf("REDIS_TYPE=%s is not known", kind)
	case form != "" && form != forms[kind]:
		return "", fmt.Errorf("%s:// contradicts REDIS_TYPE=%s", scheme, kind)
	case kind == "SENTINEL" && form == "":
		var ok bool
		if master, rest, ok = strings.Cut(rest, ","); !ok || isURL {
			return "", errors.New("for REDIS_TYPE=SENTINEL: expected MASTER,HOST:PORT,HOST:PORT")
		}
		form = "sentinel"
	default:
		form = forms[kind]
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, err := r.withRedisAuth(rest[:end])
	if err != nil {
		return "", err
	}
	tail := rest[end:]
	if master != "" {
		tail = "/" + url.PathEscape(master) + tail
	}
	if tail, err = r.withRedisParameters(tail, base == "rediss", form == "sentinel"); err != nil {
		return "", err
	}
	if form != "" {
		base += "+" + form
	}
	return base + "://" + authority + tail, nil
}

// withRedisAuth returns the authority of a URL of Redis with the user and the password of
// REDIS_AUTH.
func (r *Env) withRedisAuth(authority string) (string, error) {
	auth := r.v["REDIS_AUTH"]
	if auth == "" {
		return authority, nil
	}
	name, password, ok := strings.Cut(auth, ":")
	if !ok {
		name, password = "", auth
	}
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		hosts = authority[at+1:]
		u, err := url.Parse("redis://" + authority[:at] + "@h")
		if err != nil {
			return "", errors.New(
				"the user and password cannot be read; percent-encode what is not a letter or a digit")
		}
		own, given := u.User.Password()
		if given && own != password || name != "" && name != u.User.Username() {
			return "", errors.New("it has another user or password than REDIS_AUTH")
		}
		name = u.User.Username()
	}
	return url.UserPassword(name, password).String() + "@" + hosts, nil
}

// withRedisParameters returns the tail of a Redis URL, from the path on, with the parameters that
// other variables set.
func (r *Env) withRedisParameters(tail string, secure, sentinel bool) (string, error) {
	path, query, _ := strings.Cut(tail, "?")
	own, err := url.ParseQuery(query)
	if err != nil {
		return "", errors.New("its parameters cannot be read")
	}
	for _, p := range []struct {
		name, from string
		counts     bool
		without    string
	}{
		{"ca", "REDIS_TLS_CACERT", secure, "TLS: REDIS_TLS=true turns it on"},
		{"cert", "REDIS_TLS_CLIENT_CERT", secure, "TLS: REDIS_TLS=true turns it on"},
		{"key", "REDIS_TLS_CLIENT_KEY", secure, "TLS: REDIS_TLS=true turns it on"},
		{"sentinel_password", "REDIS_SENTINEL_AUTH", sentinel, "Sentinels: REDIS_TYPE=SENTINEL names them"},
	} {
		switch value := r.v[p.from]; {
		case value == "":
		case !p.counts:
			r.idle = append(r.idle, p.from+" has no effect without "+p.without)
		case !own.Has(p.name):
			if query != "" {
				query += "&"
			}
			query += p.name + "=" + url.QueryEscape(value)
		case own.Get(p.name) != value:
			return "", fmt.Errorf("its parameter %s contradicts %s", p.name, p.from)
		}
	}
	if query != "" {
		path += "?" + query
	}
	return path, nil
}

// tracing takes the share of the requests that are followed, all by default.
func (r *Env) tracing() {
	if !r.on("TRACING_ENABLED") {
		return
	}
	rate, err := strconv.ParseFloat(cmp.Or(r.v["TRACING_SAMPLING_RATE"], "1"), 64)
	if err != nil || rate < 0 || rate > 1 {
		r.fail("otel.traces", "TRACING_SAMPLING_RATE=%s must be a number from 0 to 1", r.v["TRACING_SAMPLING_RATE"])
		return
	}
	r.take("otel.traces", strconv.FormatFloat(100*rate, 'f', -1, 64)+"%", "TRACING_ENABLED")
}

// tls takes the certificates of the gRPC door.
func (r *Env) tls() {
	if !r.on("GRPC_SERVER_USE_TLS") {
		return
	}
	r.take("tls.cert", r.v["GRPC_SERVER_TLS_CERT"], "GRPC_SERVER_TLS_CERT")
	r.take("tls.key", r.v["GRPC_SERVER_TLS_KEY"], "GRPC_SERVER_TLS_KEY")
	r.take("tls.doors", "grpc", "GRPC_SERVER_USE_TLS")
	if ca := r.v["GRPC_CLIENT_TLS_CACERT"]; ca != "" {
		r.take("tls.client_ca", ca, "GRPC_CLIENT_TLS_CACERT")
		r.take("tls.client_doors", "grpc", "GRPC_CLIENT_TLS_CACERT")
	}
}

// Finish reports which of the variables are in force. named holds the settings made by the file, by
// Weir's own variables and by flags.
func (r *Env) Finish(named map[string]bool) (in Inherited) {
	for _, f := range r.failed {
		if !named[f.path] {
			in.Problems = append(in.Problems, f.err)
		}
	}
	for _, t := range r.taken {
		value := t.value
		if t.path == "store" {
			value = settings.WithoutCredentials(value)
		}
		if named[t.path] {
			in.Warnings = append(in.Warnings, fmt.Sprintf("%s has no effect, since %s is set otherwise", t.from,
				t.path))
			continue
		}
		in.Read = append(in.Read, fmt.Sprintf("%s=%s (%s)", t.path, value, t.from))
	}
	warn := func(seen bool, text string) {
		if seen {
			in.Warnings = append(in.Warnings, text)
		}
	}
	for _, text := range r.idle {
		warn(!named["store"], text)
	}
	open := r.inPlace || named["listen.grpc"] || r.has("GRPC_UDS") || r.has("GRPC_HOST") || r.has("GRPC_PORT")
	warn(!open, "the gRPC door is open on loopback only; GRPC_HOST=0.0.0.0 opens it to an Envoy elsewhere")
	for _, name := range []string{"DEBUG_HOST", "DEBUG_PORT"} {
		warn(r.has(name), name+" is not read, since the admin port can also change things: set WEIR_LISTEN_ADMIN")
	}
	for _, name := range []string{"USE_STATSD", "USE_DOG_STATSD", "USE_PROMETHEUS"} {
		warn(r.on(name) && (name != "USE_PROMETHEUS" || !r.inPlace),
			name+" is not read: Prometheus' metrics are at /metrics of the admin port")
	}
	warn(r.inPlace && r.has("PROMETHEUS_PATH") && r.v["PROMETHEUS_PATH"] != "/metrics",
		"PROMETHEUS_PATH is not read: the metrics are at /metrics")
	for _, name := range []string{"TRACING_SERVICE_NAME", "TRACING_SERVICE_NAMESPACE", "TRACING_SERVICE_INSTANCE_ID"} {
		warn(r.inPlace && r.on("TRACING_ENABLED") && r.has(name),
			name+" is not read: OTEL_RESOURCE_ATTRIBUTES names the service")
	}
	warn(r.on("TRACING_ENABLED") && !r.inPlace,
		"TRACING_ENABLED is not read: otel.endpoint, or OTEL_EXPORTER_OTLP_ENDPOINT, turns traces on")
	warn(r.on("REDIS_PERSECOND"), "REDIS_PERSECOND is not read: limits of all units live in one Redis")
	ratio, err := strconv.ParseFloat(cmp.Or(r.v["NEAR_LIMIT_RATIO"], "0.8"), 64)
	warn(err != nil || ratio != 0.8, "NEAR_LIMIT_RATIO is not read: write warn into rate_limit, as in warn: 70%")
	warn(r.on("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"),
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT is not read: write count_denied: false into rate_limit")
	if !named["rules"] {
		r.warnOfXDS(warn)
	}
	warn(r.has("GRPC_CLIENT_TLS_SAN"),
		"GRPC_CLIENT_TLS_SAN is not read: any client with a certificate of tls.client_ca may ask")
	warn(r.on("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"),
		"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION is not read: the name is checked; "+
			"server_name in the URL of store says which")
	for _, name := range []string{"LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"} {
		warn(r.has(name), name+" is not read: headers have their usual names")
	}
	return in
}
