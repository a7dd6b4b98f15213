//go:build unix

package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/server/settings"
)

// What the variables of envoyproxy/ratelimit mean here, and what goes before them.
func TestRateLimitEnv(t *testing.T) {
	const root, sub = "RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit"
	for name, c := range map[string]struct {
		file string
		env  string
		args []string
		want []string // of rules, store, listen.grpc, listen.http, log.level; "" for the default
		warn string   // a warning that must come; "" for none at all
	}{
		"none of them":       {env: "PORT=9999 REDIS_URL=somewhere:6379 LOG_LEVEL=nonsense SHADOW_MODE=true", want: []string{"./rules", "", "", "", ""}},
		"a folder":           {env: root + " " + sub + " GRPC_HOST=127.0.0.1", want: []string{"/data/ratelimit/config", "", "127.0.0.1:8081", "", ""}},
		"another folder":     {env: root + " RUNTIME_APPDIRECTORY=limits GRPC_HOST=::", want: []string{"/data/limits", "", "[::]:8081", "", ""}},
		"without a root":     {env: sub + " GRPC_PORT=1", want: []string{"/srv/runtime_data/current/ratelimit/config", "", "0.0.0.0:1", "", ""}},
		"ports":              {env: root + " PORT=80 GRPC_PORT=81 HOST=10.0.0.1", want: []string{"/data/config", "", "0.0.0.0:81", "10.0.0.1:80", ""}},
		"a socket":           {env: root + " GRPC_UDS=/run/rls.sock GRPC_PORT=81", want: []string{"/data/config", "", "unix:/run/rls.sock", "", ""}},
		"loopback":           {env: root, want: []string{"/data/config", "", "", "", ""}, warn: "GRPC_HOST=0.0.0.0 opens it"},
		"one Redis":          {env: root + " GRPC_PORT=1 REDIS_SOCKET_TYPE=tcp REDIS_URL=db:6379 REDIS_AUTH=a:p/w", want: []string{"/data/config", "redis://a:p%2Fw@db:6379", "0.0.0.0:1", "", ""}},
		"Redis by TLS":       {env: root + " GRPC_PORT=1 REDIS_URL=db:6379 REDIS_AUTH=p REDIS_TLS=true", want: []string{"/data/config", "rediss://:p@db:6379", "0.0.0.0:1", "", ""}},
		"Sentinels":          {env: root + " GRPC_PORT=1 REDIS_TYPE=SENTINEL REDIS_URL=main,a:1,b:2", want: []string{"/data/config", "redis+sentinel://a:1,b:2/main", "0.0.0.0:1", "", ""}},
		"a Cluster":          {env: root + " GRPC_PORT=1 REDIS_TYPE=cluster REDIS_URL=a:1,b:2", want: []string{"/data/config", "redis+cluster://a:1,b:2", "0.0.0.0:1", "", ""}},
		"a URL":              {env: root + " GRPC_PORT=1 REDIS_URL=redis://db:6379/2", want: []string{"/data/config", "redis://db:6379/2", "0.0.0.0:1", "", ""}},
		"a URL with TLS":     {env: root + " GRPC_PORT=1 REDIS_URL=redis://db:6379/2 REDIS_TLS=true REDIS_AUTH=a:p/w", want: []string{"/data/config", "rediss://a:p%2Fw@db:6379/2", "0.0.0.0:1", "", ""}},
		"a URL with all":     {env: root + " GRPC_PORT=1 REDIS_URL=rediss://a:p%2Fw@db?server_name=x REDIS_TLS=1 REDIS_AUTH=a:p/w", want: []string{"/data/config", "rediss://a:p%2Fw@db?server_name=x", "0.0.0.0:1", "", ""}},
		"a URL with a user":  {env: root + " GRPC_PORT=1 REDIS_URL=redis://a@db REDIS_AUTH=p/w", want: []string{"/data/config", "redis://a:p%2Fw@db", "0.0.0.0:1", "", ""}},
		"a URL of Sentinels": {env: root + " GRPC_PORT=1 REDIS_URL=redis+sentinel://a:1,b:2/main REDIS_TYPE=SENTINEL REDIS_TLS=true REDIS_SENTINEL_AUTH=p/w", want: []string{"/data/config", "rediss+sentinel://a:1,b:2/main?sentinel_password=p%2Fw", "0.0.0.0:1", "", ""}},
		"a URL of a Cluster": {env: root + " GRPC_PORT=1 REDIS_URL=redis://a:1,b:2 REDIS_TYPE=cluster REDIS_TLS=true", want: []string{"/data/config", "rediss+cluster://a:1,b:2", "0.0.0.0:1", "", ""}},
		"a CA without TLS":   {env: root + " GRPC_PORT=1 REDIS_URL=redis://db REDIS_TLS_CACERT=/ca.pem", want: []string{"/data/config", "redis://db", "0.0.0.0:1", "", ""}, warn: "REDIS_TLS_CACERT has no effect without TLS"},
		"no Sentinels":       {env: root + " GRPC_PORT=1 REDIS_URL=db:1 REDIS_SENTINEL_AUTH=p/w", want: []string{"/data/config", "redis://db:1", "0.0.0.0:1", "", ""}, warn: "REDIS_SENTINEL_AUTH has no effect without Sentinels"},
		"a log":              {env: root + " GRPC_PORT=1 LOG_LEVEL=WARNING", want: []string{"/data/config", "", "0.0.0.0:1", "", "WARN"}},
		"ours go before":     {env: root + " GRPC_PORT=1 REDIS_URL=/run/r WEIR_STORE=redis://x:1 WEIR_LISTEN_GRPC=:5", args: []string{"--rules=here"}, want: []string{"here", "redis://x:1", ":5", "", ""}, warn: "GRPC_PORT has no effect, since listen.grpc is set otherwise"},
		"the file as well":   {file: "rules: there\n", env: root + " GRPC_PORT=1 CONFIG_TYPE=GRPC_XDS_SOTW", want: []string{"there", "", "0.0.0.0:1", "", ""}, warn: "CONFIG_GRPC_XDS_SERVER_URL has no effect"},
		"a control plane":    {env: root + " GRPC_PORT=1 CONFIG_TYPE=GRPC_XDS_SOTW", want: []string{"xds://localhost:18000?node=default", "", "0.0.0.0:1", "", ""}},
		"as Envoy Gateway":   {env: root + " GRPC_PORT=1 CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit CONFIG_GRPC_XDS_SERVER_USE_TLS=true CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt FORCE_START_WITHOUT_INITIAL_CONFIG=true", want: []string{"xdss://envoy-gateway:18001?ca=%2Fcerts%2Fca.crt&cert=%2Fcerts%2Ftls.crt&key=%2Fcerts%2Ftls.key&node=envoy-ratelimit&require=nothing", "", "0.0.0.0:1", "", ""}},
		"of all":             {env: root + " GRPC_PORT=1 CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_USE_TLS=1 CONFIG_GRPC_XDS_SERVER_TLS_SAN=gw CONFIG_GRPC_XDS_NODE_METADATA=a:b,c=d XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=104857600 FORCE_START_WITHOUT_INITIAL_CONFIG=1 HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true", want: []string{"xdss://localhost:18000?max_message=100&metadata.a=b&metadata.c=d&node=default&require=ready&server_name=gw", "", "0.0.0.0:1", "", ""}},
		"headers":            {env: root + " GRPC_PORT=1 CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:b", want: []string{"xds://localhost:18000?node=default", "", "0.0.0.0:1", "", ""}, warn: "ADDITIONAL_HEADERS is not read"},
		"metrics":            {env: root + " GRPC_PORT=1 USE_STATSD=true", want: []string{"/data/config", "", "0.0.0.0:1", "", ""}, warn: "USE_STATSD is not read"},
		"no metrics":         {env: root + " GRPC_PORT=1 USE_STATSD=false NEAR_LIMIT_RATIO=0.80", want: []string{"/data/config", "", "0.0.0.0:1", "", ""}},
		"near":               {env: root + " GRPC_PORT=1 NEAR_LIMIT_RATIO=0.7", want: []string{"/data/config", "", "0.0.0.0:1", "", ""}, warn: "write warn into rate_limit"},
		"the admin port":     {env: root + " GRPC_PORT=1 DEBUG_PORT=6070", want: []string{"/data/config", "", "0.0.0.0:1", "", ""}, warn: "set WEIR_LISTEN_ADMIN"},
	} {
		t.Run(name, func(t *testing.T) {
			config := mustConfig(t, c.file, strings.Fields(c.env), c.args)
			plain := mustConfig(t, "", nil, nil)
			got := []string{config.rules, config.store, config.listen.grpc, config.listen.http,
				config.log.level.String()}
			for i, value := range []string{"", plain.store, plain.listen.grpc, plain.listen.http,
				plain.log.level.String()} {
				if c.want[i] == "" {
					c.want[i] = value
				}
				if got[i] != c.want[i] {
					t.Errorf("got %q, want %q", got[i], c.want[i])
				}
			}
			warned := strings.Join(config.inherited.Warnings, "\n")
			if !strings.Contains(warned, c.warn) || c.warn == "" && warned != "" {
				t.Errorf("warnings %q, want %q", warned, c.warn)
			}
			if told := strings.Join(config.inherited.Read, " "); strings.Contains(told, "p%2Fw") ||
				strings.Contains(told+warned, "p/w") {
				t.Errorf("it tells the password: %s", told)
			}
		})
	}
	for env, want := range map[string]string{
		"SHADOW_MODE=true":      "SHADOW_MODE=true: write shadow_mode: true into the descriptors",
		"QUOTA_MODE=1":          "QUOTA_MODE=1: write quota_mode: true into the descriptors",
		"BACKEND_TYPE=memcache": "BACKEND_TYPE=memcache: counters live in this process or in a Redis",
		"CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=gateway": `CONFIG_GRPC_XDS_SERVER_URL: URL of the xDS server: "gateway": expected HOST:PORT`,
		"REDIS_URL=/var/run/redis.sock":                                "REDIS_URL: a unix socket of Redis is not supported; set WEIR_STORE",
		"REDIS_TYPE=SENTINEL REDIS_URL=a:1":                            "expected MASTER,HOST:PORT",
		"GRPC_PORT=grpc":                                               `GRPC_PORT: "0.0.0.0:grpc" is no address`,
		"LOG_LEVEL=loud":                                               `LOG_LEVEL: "loud" must be`,
		"REDIS_TIMEOUT=10":                                             "REDIS_TIMEOUT: \"10\" is no duration",
		"REDIS_URL=db:1 REDIS_TLS=1 REDIS_TLS_CACERT=/no/ca.pem":       "ca: open /no/ca.pem",
		"REDIS_TYPE=RING REDIS_URL=secret@a:1":                         "REDIS_TYPE=RING is not known",
		"REDIS_URL=redis://db REDIS_TLS=1 REDIS_TLS_CACERT=/no/ca.pem": "ca: open /no/ca.pem",
		"REDIS_URL=rediss://db REDIS_TLS=false":                        "REDIS_URL: rediss:// contradicts REDIS_TLS=false; set WEIR_STORE",
		"REDIS_URL=redis://db REDIS_TLS=yes":                           "REDIS_TLS=yes is neither true nor false",
		"REDIS_URL=redis://:secret@db REDIS_AUTH=hidden":               "REDIS_URL: it has another user or password than REDIS_AUTH",
		"REDIS_URL=redis://eve@db REDIS_AUTH=ada:hidden":               "another user or password than REDIS_AUTH",
		"REDIS_URL=:secret@db:1 REDIS_AUTH=hidden":                     "another user or password than REDIS_AUTH",
		"REDIS_URL=redis://:secret%@db REDIS_AUTH=hidden":              "the user and password cannot be read",
		"REDIS_URL=redis+sentinel://a:1/m REDIS_TYPE=CLUSTER":          "redis+sentinel:// contradicts REDIS_TYPE=CLUSTER",
		"REDIS_URL=redis+cluster://a:1 REDIS_TYPE=SINGLE":              "redis+cluster:// contradicts REDIS_TYPE=SINGLE",
		"REDIS_URL=redis://m,a:1 REDIS_TYPE=SENTINEL":                  "expected MASTER,HOST:PORT",
		"REDIS_URL=redis://db:1 REDIS_SOCKET_TYPE=unix":                "a unix socket of Redis is not supported",
		"REDIS_URL=rediss://db?ca=/a.pem REDIS_TLS_CACERT=/b.pem":      "its parameter ca contradicts REDIS_TLS_CACERT",
		"REDIS_URL=redis://:sec/ret@db REDIS_AUTH=hidden":              "there is an @ behind the hosts",
		"REDIS_URL=postgres://db REDIS_TLS=true":                       "is not known",
	} {
		env := append(strings.Fields(env), root)
		config := mustConfig(t, "", env, nil) // for lint and health nothing is wrong
		if err := errors.Join(config.inherited.Problems...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", env, err, want)
		}
		var out strings.Builder
		err := Serve(t.Context(), config, true, "", &out, &out)
		if _, early := errors.AsType[*SetupError](err); !early ||
			!strings.Contains(settings.Redact(err.Error()), want) {
			t.Errorf("%s: %v, %s", env, err, &out)
		}
		out.WriteString(settings.Redact(err.Error()))
		for _, secret := range []string{"secret", "hidden"} {
			if strings.Contains(out.String(), secret) {
				t.Errorf("%s: it tells the password: %s", env, &out)
			}
		}
	}
}

// TestInPlace: under the name of envoyproxy/ratelimit its defaults hold, below our own settings,
// and no other doors open; in a container the defaults of doors are others, unless somebody sets
// them.
func TestInPlace(t *testing.T) {
	for env, want := range map[string]string{
		"":                                     "/srv/runtime_data/current/config 0.0.0.0:8080 0.0.0.0:8081  127.0.0.1:6070",
		"WEIR_CONTAINER=true":                  "/srv/runtime_data/current/config 0.0.0.0:8080 0.0.0.0:8081  127.0.0.1:6070",
		"PORT=80 HOST=:: GRPC_PORT=81":         "/srv/runtime_data/current/config [::]:80 0.0.0.0:81  127.0.0.1:6070",
		"CONFIG_TYPE=GRPC_XDS_SOTW":            "xds://localhost:18000?node=default 0.0.0.0:8080 0.0.0.0:8081  127.0.0.1:6070",
		"RUNTIME_ROOT=/data WEIR_RULES=x.yaml": "x.yaml 0.0.0.0:8080 0.0.0.0:8081  127.0.0.1:6070",
		"USE_PROMETHEUS=true PROMETHEUS_ADDR=:19001":                                 "/srv/runtime_data/current/config 0.0.0.0:8080 0.0.0.0:8081  127.0.0.1:6070 metrics :19001",
		"USE_PROMETHEUS=true WEIR_LISTEN_METRICS=h:1":                                "/srv/runtime_data/current/config 0.0.0.0:8080 0.0.0.0:8081  127.0.0.1:6070 metrics h:1",
		"WEIR_LISTEN_GRPC=:5 GRPC_PORT=81 WEIR_LISTEN_RESP=:6 WEIR_LISTEN_ADMIN=off": "/srv/runtime_data/current/config 0.0.0.0:8080 :5 :6 ",
	} {
		c, err := LoadInPlace([]string{"--no", "such"}, strings.Fields(env))
		if err != nil {
			t.Fatal(err)
		}
		l := &c.listen
		got := strings.Join([]string{c.rules, l.http, l.grpc, l.resp, l.admin}, " ")
		if l.metrics != "" {
			got += " metrics " + l.metrics
		}
		if got != want {
			t.Errorf("%s: %q, want %q", env, got, want)
		}
		if l.proxy+l.spoe != "" || len(c.strays) > 0 || len(c.inherited.Problems) > 0 || len(c.ignored) != 2 {
			t.Errorf("%s: %q %q %v %v", env, l.proxy, l.spoe, c.strays, c.inherited)
		}
	}
	for env, want := range map[string]string{
		"TRACING_ENABLED=true": "1 0s", "TRACING_ENABLED=true TRACING_SAMPLING_RATE=0.125": "0.125 0s", "": "0 0s",
		"TRACING_ENABLED=true WEIR_OTEL_TRACES=2%": "0.02 0s", "OTEL_METRICS_EXPORTER=otlp": "0 1m0s",
	} {
		c, err := LoadInPlace(nil, strings.Fields(env))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(c.otel.Traces, " ", c.otel.Metrics); got != want {
			t.Errorf("%s: traces %s, want %s", env, got, want)
		}
	}
	if c, err := LoadInPlace(nil, []string{"TRACING_ENABLED=true", "TRACING_SAMPLING_RATE=2"}); err != nil ||
		len(c.inherited.Problems) != 1 {
		t.Errorf("a rate of 2: %v, %v", err, c.inherited.Problems)
	}
	for env, want := range map[string]string{
		"WEIR_CONTAINER=true":                           ":8080 :8081 :6380 127.0.0.1:6070",
		"WEIR_CONTAINER=true WEIR_LISTEN_HTTP=h:1":      "h:1 :8081 :6380 127.0.0.1:6070",
		"WEIR_CONTAINER=true USE_STATSD=no GRPC_PORT=5": ":8080 0.0.0.0:5 :6380 127.0.0.1:6070",
		"": "127.0.0.1:8080 127.0.0.1:8081 127.0.0.1:6380 127.0.0.1:6070",
	} {
		l := &mustConfig(t, "", strings.Fields(env), nil).listen
		if got := strings.Join([]string{l.http, l.grpc, l.resp, l.admin}, " "); got != want {
			t.Errorf("%s: %q, want %q", env, got, want)
		}
	}
	if l := &mustConfig(t, "listen: { http: 'f:1' }\n", []string{"WEIR_CONTAINER=true"}, nil).listen; l.http != "f:1" {
		t.Errorf("the file does not go before: %s", l.http)
	}
}
