package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"

	"github.com/weir-rl/weir/internal/listen"
	"github.com/weir-rl/weir/rule"
)

// printExamples writes requests to paste, for the first rule that a handful of attributes meets. Without one, or
// without a decision door, it writes nothing.
func (p *program) printExamples(w io.Writer) {
	set, _ := p.limiter.Rules()
	r, attributes := exampleRequest(set)
	if r == nil {
		return
	}
	query := url.Values{}
	body := struct {
		Domain     string            `json:"domain,omitempty"`
		Attributes map[string]string `json:"attributes"`
	}{Attributes: map[string]string{}}
	type entry struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type descriptor struct {
		Entries []entry `json:"entries"`
	}
	rls := struct {
		Domain      string       `json:"domain"`
		Descriptors []descriptor `json:"descriptors"`
	}{Domain: r.Domain, Descriptors: []descriptor{{Entries: []entry{}}}}
	if len(set.Domains()) > 1 {
		query.Set("domain", r.Domain)
		body.Domain = r.Domain
	}
	for _, a := range attributes {
		query.Set(a.Name, a.Value)
		body.Attributes[a.Name] = a.Value
		rls.Descriptors[0].Entries = append(rls.Descriptors[0].Entries, entry{a.Name, a.Value})
	}
	var text strings.Builder
	for _, d := range p.doors {
		address := connectAddress(d.listener.Addr())
		switch d.name {
		case "http":
			curl, base := p.curl(d, p.needsToken("http"))
			get := shellQuote(base + "/api/v1/limit?" + query.Encode())
			fmt.Fprintf(&text, "\n# HTTP: 200 may pass, 429 may not. Rule %q:\n%s -i %s\n%s -i -X POST %s/api/v1/limit -H 'Content-Type: application/json' -d %s\n",
				r.Name, curl, get, curl, base, shellQuote(mustJSON(body)))
			if n := r.Windows[0].Limit.Config().N; n < 100 {
				fmt.Fprintf(&text, "# More than it allows: the last answers are 429.\nfor i in $(seq %d); do %s -s -o /dev/null -w '%%{http_code} ' %s; done; echo\n", n+1, curl, get)
			}
		case "grpc":
			fmt.Fprintf(&text, "\n# Envoy's rate limit service:\ngrpcurl %s -d %s %s envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit\n",
				p.grpcurl(d), shellQuote(mustJSON(rls)), address)
		case "resp":
			fmt.Fprintf(&text, "\n# The Redis protocol: 1 may pass, 0 may not; then redis-cell's command, which needs no rule: 0 may pass, 1 may not.\n%s\n",
				p.redisCLI(d, r.Domain, attributes))
		case "admin":
			curl, base := p.curl(d, p.tokens != nil)
			fmt.Fprintf(&text, "\n# The counters: metrics, and the hottest keys.\n%s -s %s/metrics\n%s -s %s\n", curl, base, curl,
				shellQuote(base+"/api/v1/keys?"+url.Values{"limit": {r.Name}, "domain": {r.Domain}}.Encode()))
		}
	}
	if p.c.listen.http == "" && p.c.listen.grpc == "" && p.c.listen.resp == "" {
		return
	}
	fmt.Fprintf(w, "Try it:\n%s\n", text.String())
}

// exampleRequest finds the first native rule that plain values meet, and such values.
func exampleRequest(set *rule.Set) (*rule.Rule, []rule.Pair) {
	for _, r := range set.Rules() {
		if r.Lyft != nil || r.Unlimited || r.If != "" || len(r.Windows) == 0 || r.Windows[0].Limit == nil {
			continue
		}
		if attributes, ok := plainAttributes(r); ok {
			return r, attributes
		}
	}
	return nil, nil
}

// plainAttributes returns values that meet r; ok is false if that takes more than exact values.
func plainAttributes(r *rule.Rule) (attributes []rule.Pair, ok bool) {
	has := map[string]bool{}
	add := func(name, value string) {
		if !has[name] {
			has[name] = true
			attributes = append(attributes, rule.Pair{Name: name, Value: value})
		}
	}
	for _, c := range r.When {
		value := ""
		for _, p := range c.Patterns {
			if !p.Negated && !strings.ContainsAny(p.Source, `*~\!`) && (c.Attribute != "ip" || !strings.Contains(p.Source, "/")) {
				value = p.Source
				break
			}
		}
		if value == "" {
			return nil, false
		}
		add(c.Attribute, value)
	}
	samples := map[string]string{"ip": "192.0.2.1", "path": "/", "method": "GET", "host": "example.com"}
	for _, key := range r.Per {
		value := samples[key[0]]
		if value == "" {
			value = "ada"
		}
		add(key[0], value)
	}
	return attributes, true
}

// curl is how curl asks a door of HTTP: the command with its options, and the URL of the door.
func (p *program) curl(d *door, token bool) (command, base string) {
	command, base = "curl", "http://"
	if p.tlsOf(d) != nil {
		base = "https://"
		command += " --cacert CA.pem"
		if p.demandsCertificate(d) {
			command += " --cert CLIENT.pem --key CLIENT.key"
		}
	}
	if token {
		command += ` -H "Authorization: Bearer $TOKEN"`
	}
	if a := d.listener.Addr(); a.Network() == "unix" {
		return command + " --unix-socket " + shellQuote(a.String()), base + "localhost"
	}
	return command, base + connectAddress(d.listener.Addr())
}

// grpcurl are the options of grpcurl that a door needs.
func (p *program) grpcurl(d *door) string {
	options := "-plaintext"
	if p.tlsOf(d) != nil {
		options = "-cacert CA.pem"
		if p.demandsCertificate(d) {
			options += " -cert CLIENT.pem -key CLIENT.key"
		}
	}
	if p.needsToken("grpc") {
		options += ` -H "authorization: Bearer $TOKEN"`
	}
	return options
}

// connectAddress is what a client on this machine writes.
func connectAddress(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return listen.Text(a)
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(tcp.Port))
}

func mustJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings only
	}
	return string(b)
}

// shellQuote makes s one word of a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
