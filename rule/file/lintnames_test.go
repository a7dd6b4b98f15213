package file

import (
	"fmt"
	"strings"
	"testing"
)

// warningsOf returns the warnings of a file, one a line.
func warningsOf(t *testing.T, text string, o LintOptions) string {
	t.Helper()
	set, problems, err := load(t, "x.yaml", text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var all strings.Builder
	for _, p := range append(problems, Lint(set, o)...) {
		fmt.Fprintln(&all, p.Error())
	}
	return all.String()
}

// Lint hints at the attribute that a name most likely means: one in other letters, one that other
// programs call so, and a field of the request.
func TestLintForeignNames(t *testing.T) {
	for name, want := range map[string]string{
		"IP": "ip", "Ip": "ip", "User": "user", "METHOD": "method", "Path": "path", "Host": "host",
		"client_ip": "ip", "clientIP": "ip", "client-ip": "ip", "remote_addr": "ip", "remoteAddr": "ip", "$binary_remote_addr": "ip", "source_ip": "ip",
		"X-Forwarded-For": "ip", "x-real-ip": "ip", "CF-Connecting-IP": "ip",
		"request_uri": "path", "$uri": "path", "url": "path", "request_method": "method", "http_method": "method", "verb": "method", "hostname": "host", "authority": "host",
		"X-Api-Key": "header.x-api-key", "x-api-key": "header.x-api-key", "Api-Key": "header.api-key", "Authorization": "header.authorization",
		"authorization": "header.authorization", "User-Agent": "header.user-agent", "user-agent": "header.user-agent", "Cookie": "header.cookie",
		"header:X-Api-Key": "header.x-api-key", "headers[x-plan]": "header.x-plan", "$http_x_api_key": "header.x-api-key", "$arg_page": "query.page", "query:page": "query.page",
		"headers.x-plan": "header.x-plan", "mehtod": "method",
	} {
		wanted := fmt.Sprintf("%s is no attribute that doors supply of themselves (did you mean %s?", name, want)
		for _, text := range []string{
			"limits: [{name: a, per: ['%s'], allow: 1/s}]", "limits: [{name: a, per: ['own|%s'], allow: 1/s}]",
			"limits: [{name: a, when: {'%s': 'x*'}, allow: 1/s}]", `limits: [{name: a, if: 'attr["%s"] != "x"', allow: 1/s}]`,
		} {
			if got := warningsOf(t, fmt.Sprintf(text, name), LintOptions{}); !strings.Contains(got, wanted) ||
				strings.Count(got, "[attribute-name]") != 1 {
				t.Errorf(text+": %s\nwant %s", name, got, wanted)
			}
		}
		if got := warningsOf(t, fmt.Sprintf("exempt: {'%s': x}\nlimits: [{name: a, allow: 1/s}]", name), LintOptions{}); !strings.Contains(got, "exempt: "+wanted) {
			t.Errorf("exempt %s: %s", name, got)
		}
		if got := warningsOf(t, fmt.Sprintf("limits: [{name: a, per: ['%s'], allow: 1/s}]", name), LintOptions{Identity: map[string]string{name: "jwt:x"}}); strings.Contains(got, "[attribute-name]") {
			t.Errorf("%s, which identity names: %s", name, got)
		}
	}
	for name, want := range map[string]string{
		"cookie:sid": `name an attribute in identity, as in: sid: "cookie:sid", and write that here`,
		"cookie.sid": `name an attribute in identity, as in: sid: "cookie:sid", and write that here`,
		"jwt:sub":    `name an attribute in identity, as in: user: "jwt:sub", and write that here`,
	} {
		if got := warningsOf(t, fmt.Sprintf("limits: [{name: a, per: ['%s'], allow: 1/s}]", name), LintOptions{}); !strings.Contains(got, want) {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
	}
	for _, name := range []string{
		"ip", "user", "method", "path", "host", "header.x-api-key", "query.page", "remote_address", "key", "tenant", "user_id", "users", "hosts", "plan", "post",
		"api_key", "apiKey", "customer-id", "model", "destination", "origin", "accept", "priority", "cost", "region", "ips", "zip", "port",
	} {
		if got := warningsOf(t, fmt.Sprintf("limits: [{name: a, per: ['%s'], allow: 1/s}]", name), LintOptions{}); strings.Contains(got, "[attribute-name]") {
			t.Errorf("%s: %s", name, got)
		}
	}
	if got := warningsOf(t, `limits: [{name: a, if: 'get(header, "X-Plan", "") == "free"', allow: 1/s}]`, LintOptions{}); !strings.Contains(got, `header["X-Plan"] is never there (write header["x-plan"])`) {
		t.Errorf("a header in capitals in an expression: %s", got)
	}
}

// A key of a limit that stands among the attributes of when is named.
func TestLintMisplacedBelowWhen(t *testing.T) {
	for _, key := range []string{"if", "per", "allow", "on_limit", "algorithm"} {
		got := warningsOf(t, fmt.Sprintf("limits: [{name: a, when: {%s: 'path == \"/x\"'}, allow: 1/s}]", key),
			LintOptions{})
		if want := fmt.Sprintf("a: when.%s is taken for an attribute called %[1]s, which no door supplies of itself (%[1]s stands beside when, as a key of the limit", key); !strings.Contains(got, want) {
			t.Errorf("%s: %s\nwant %s", key, got, want)
		}
		if got := warningsOf(t, "limits:\n- name: a # lint: ignore attribute-name: callers send it\n  when: {if: x}\n  allow: 1/s", LintOptions{}); got != "" {
			t.Errorf("ignored: %s", got)
		}
	}
	if got := warningsOf(t, "exempt: {if: x}\nlimits: [{name: a, allow: 1/s}]", LintOptions{}); !strings.Contains(got,
		"exempt: if is taken for an attribute called if") {
		t.Errorf("exempt: %s", got)
	}
	if got := warningsOf(t, "limits: [{name: a, when: {paths: /x}, allow: 1/s}]", LintOptions{}); !strings.Contains(got,
		"did you mean path? Else paths stands beside when") {
		t.Errorf("paths: %s", got)
	}
	if got := warningsOf(t, "limits: [{name: a, when: {priority: high, cost: '7', name: x}, allow: 1/s}]", LintOptions{}); got != "" {
		t.Errorf("names that callers may have: %s", got)
	}
}

// A parameter in a path is no wildcard, and lint says what is.
func TestLintPathParameters(t *testing.T) {
	for path, want := range map[string]string{
		"/api/{id}":               "/api/*",
		"/api/{id}/x":             "/api/*/x",
		"/api/{id:[0-9]{2}}":      "/api/*",
		"/files/{rest...}":        "/files/**",
		"/files/{*rest}":          "/files/**",
		"/files/{rest:.*}":        "/files/**",
		"/files/{rest:path}":      "/files/**",
		"/{a}-{b}/x":              "/*/x",
		"/api/:id":                "/api/*",
		"/api/:id/items/:item_id": "/api/*/items/*",
		"/api/:rest*":             "/api/**",
		`/api/:id(\d+)`:           "/api/*",
		"/api/<id>":               "/api/*",
		"/api/<int:id>/x":         "/api/*/x",
		"/api/<path:rest>":        "/api/**",
		"/api/[id]":               "/api/*",
		"/api/[...rest]":          "/api/**",
		"/api/**/:id":             "/api/**/*",
	} {
		for _, negated := range []string{"", "!"} {
			got := warningsOf(t, fmt.Sprintf("limits: [{name: a, per: [ip], when: {path: '%s%s'}, allow: 1/s}]",
				negated, path), LintOptions{})
			wanted := fmt.Sprintf(
				"a: when.path: %s%s stands for itself: a pattern has no parameters (write %[1]s%[3]s: * stands for one segment", negated, path, want)
			if !strings.Contains(got, wanted) || strings.Count(got, "warning") > 0 ||
				strings.Count(got, "\n    limits") != 1 {
				t.Errorf("%s%s: %s\nwant %s", negated, path, got, wanted)
			}
		}
	}
	if got := warningsOf(t, "exempt: {path: '/health/{kind}'}\nlimits: [{name: a, allow: 1/s}]", LintOptions{}); !strings.Contains(got, "exempt: path: /health/{kind} stands for itself") {
		t.Errorf("exempt: %s", got)
	}
	if got := warningsOf(t, "limits: [{name: a, per: [ip, path], allow: 1/s, override: {'192.0.2.1,/api/:id': 9/s}}]", LintOptions{}); !strings.Contains(got, "override: /api/:id stands for itself") {
		t.Errorf("override: %s", got)
	}
	if got := warningsOf(t, "limits: [{name: a, per: [ip], when: {path: '/{a,b}/x'}, allow: 1/s}]", LintOptions{}); !strings.Contains(got, "braces name no alternatives (several are a list") {
		t.Errorf("alternatives: %s", got)
	}
	for _, path := range []string{"/api/*", "/v1/models/x:generate", "/v1/projects/*:batchGet", "/a:b", "/**",
		"~^/api/[^/]+$", "~^/x/[0-9]{2}$", "/time/12:30", "/$metadata"} {
		if got := warningsOf(t, fmt.Sprintf("limits: [{name: a, per: [ip], when: {path: '%s'}, allow: 1/s}]", path), LintOptions{}); got != "" {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// A manifest of Kubernetes among the rules is one error, which says what it is.
func TestKubernetesManifest(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: rules}\ndata:\n  shop.yaml: |\n    limits: []\n": "this is a ConfigMap of Kubernetes, not a file of rules (mounted as a volume it is a folder with a file for each key below data, " +
			"and that folder is rules; to check it before, write the text below shop.yaml into a file)",
		"apiVersion: apps/v1\nkind: Deployment\nspec: {}\n":                              "this is a Deployment of Kubernetes, not a file of rules (keep it outside the folder of the rules)",
		"kind: Ingress\napiVersion: networking.k8s.io/v1\nspec: {}\n---\nkind: Secret\n": "this is an Ingress of Kubernetes",
	} {
		_, _, err := load(t, "x.yaml", text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "x.yaml:") != 1 {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
	if _, _, err := load(t, "x.yaml", "limits:\n- name: {{ .Values.name }}\n  allow: {{ .Values.allow | quote }}\n"); err == nil || !strings.Contains(err.Error(), "this looks like a template, such as Helm has: render it first") {
		t.Errorf("a template: %v", err)
	}
}
