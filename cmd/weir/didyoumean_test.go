package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// runWith runs the program in an environment, and returns its exit status and what it printed.
func runWith(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Run(t.Context(), args, env, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

// A word that is no flag and no command is an error of the command line, which says what was meant.
func TestDidYouMean(t *testing.T) {
	servertest.InFolder(t, servertest.Hourly)
	for _, c := range []struct{ args, want string }{
		{"serve --lisen-http :0", `unknown flag: --lisen-http; did you mean "--listen-http"? (see weir serve --help)`},
		{"serve --listen.http :0", `did you mean "--listen-http"?`},
		{"serve --listen_http :0", `did you mean "--listen-http"?`},
		{"serve --http-listen :0", `did you mean "--listen-http"?`},
		{"serve --proxy-domain shop", `did you mean "--default-domain"?`},
		{"serve --upstream http://x", `did you mean "--proxy-upstream"?`},
		{"serve -rules rules.yaml", `unknown shorthand flag: 'r' in -rules; did you mean "--rules"?`},
		{"serve --no-such-thing", `unknown flag: --no-such-thing (see`},
		{"lint --strct rules.yaml", `did you mean "--strict"? (see weir lint --help)`},
		{"ban set api ada --fro 1h", `did you mean "--for"? (see weir ban set --help)`},
		{"ban list --sever x", `did you mean "--server"?`},
		{"srve", `unknown command "srve"; did you mean "serve"? (see weir --help)`},
		{"ban sett", `unknown command "sett"; did you mean "set"? (see weir ban --help)`},
		{"ban nosuch", `unknown command "nosuch" (see weir ban --help)`},
		{"rules staus", `did you mean "status"? (see weir rules --help)`},
		{"rules nosuch", `unknown command "nosuch" (see weir rules --help)`},
		{"keys lits api", `did you mean "list"?`},
		{"help nosuch", `unknown command "nosuch" (see weir --help)`},
		{"help serv", `did you mean "serve"?`},
		{"help ban nosuch", `unknown command "nosuch" (see weir ban --help)`},
		{"help ban lits", `did you mean "list"?`},
	} {
		status, out, errs := runWith(t, nil, strings.Fields(c.args)...)
		want := exitUsage
		if command, _, _ := strings.Cut(c.args, " "); command == "serve" || command == "proxy" {
			want = exitConfig
		}
		if status != want || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("weir %s: exit status %d: %s%s\nwant %s", c.args, status, errs, out, c.want)
		}
	}
	for _, args := range []string{"help", "help serve", "help ban set", "help rules", "help help", "ban", "rules"} {
		if status, out, errs := runWith(t, nil, strings.Fields(args)...); status != 0 ||
			!strings.Contains(out, "Usage:") || errs != "" {
			t.Errorf("weir %s: exit status %d: %s%s", args, status, out, errs)
		}
	}
}

// A variable that begins as settings do and is none causes a warning, which names what was meant,
// and no error. The variables that Kubernetes sets for a service called weir cause none.
func TestStrayVariables(t *testing.T) {
	servertest.InFolder(t, servertest.Hourly)
	for name, near := range map[string]string{
		"WEIR_LISTEN_HTP": "WEIR_LISTEN_HTTP", "WEIR_RULEZ": "WEIR_RULES", "WEIR_UPSTREAM": "WEIR_PROXY_UPSTREAM",
		"WEIR_HTTP_LISTEN": "WEIR_LISTEN_HTTP", "WEIR_STORE_URL": "WEIR_STORE", "WEIR_TRUSTED_PROXIES": "WEIR_CLIENT_IP_TRUSTED_PROXIES", "WEIR_NO_SUCH_THING": "", "WEIR_PROXY_DOMAIN": "WEIR_DEFAULT_DOMAIN",
		"WEIR_PORT": "", // 8080 is no link
	} {
		want := name + " is no setting, and has no effect"
		if near != "" {
			want += `; did you mean "` + near + `"?`
		}
		env := []string{name + "=8080"}
		status, _, errs := runWith(t, env, "serve", "--rules=rules.yaml", "--check")
		if status != 0 || !strings.Contains(strings.ReplaceAll(errs, `\"`, `"`), want) ||
			strings.Contains(errs, "8080") || strings.Count(errs, "level=WARN") != 1 {
			t.Errorf("serve with %s: exit status %d: %s\nwant %s", name, status, errs, want)
		}
		if status, _, errs := runWith(t, env, "lint", "--strict", "rules.yaml"); status != 0 ||
			!strings.Contains(errs, "weir: warning: the environment: "+want) {
			t.Errorf("lint with %s: exit status %d: %s", name, status, errs)
		}
	}
	links := []string{
		"WEIR_SERVICE_HOST=10.96.7.7", "WEIR_SERVICE_PORT=8080", "WEIR_SERVICE_PORT_HTTP=8080", "WEIR_PORT=tcp://10.96.7.7:8080", "WEIR_PORT_8080_TCP=tcp://10.96.7.7:8080",
		"WEIR_PORT_8080_TCP_PROTO=tcp", "WEIR_PORT_8080_TCP_PORT=8080", "WEIR_PORT_8080_TCP_ADDR=10.96.7.7", "WEIR_ADMIN_SERVICE_HOST=10.96.7.8",
		"WEIR_ADMIN_SERVICE_PORT=6070", "WEIR_ADMIN_PORT=tcp://10.96.7.8:6070", "WEIR_ADMIN_PORT_6070_TCP_ADDR=10.96.7.8",
	}
	settings := []string{"WEIR_LISTEN_ADMIN=127.0.0.1:0", "WEIR_STORE_TIMEOUT=1s", "WEIR_LOG_LEVEL=info", "MY_WEIR=x",
		"WEIRD=x", "PATH=/bin"}
	if status, _, errs := runWith(t, append(links, settings...), "serve", "--rules=rules.yaml", "--check"); status != 0 || strings.Contains(errs, "is no setting") {
		t.Errorf("links of services: exit status %d: %s", status, errs)
	}
}

// A ConfigMap in place of the configuration is one error, which says what it is.
func TestConfigurationIsAManifest(t *testing.T) {
	servertest.InFolder(t, servertest.Hourly)
	if err := os.WriteFile("map.yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: weir}\ndata:\n  weir.yaml: |\n    rules: /rules\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, _, errs := runWith(t, nil, "serve", "--config=map.yaml", "--check")
	if status != exitConfig ||
		!regexp.MustCompile(
			`map.yaml:1:1\d?: this is a manifest of Kubernetes \(ConfigMap\), not the configuration; `).MatchString(errs) ||
		strings.Count(errs, "map.yaml:") != 1 {
		t.Errorf("exit status %d: %s", status, errs)
	}
}
