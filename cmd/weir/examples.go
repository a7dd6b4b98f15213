package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"

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
			get := shellQuote("http://" + address + "/api/v1/limit?" + query.Encode())
			fmt.Fprintf(&text, "\n# HTTP: 200 may pass, 429 may not. Rule %q:\ncurl -i %s\ncurl -i -X POST http://%s/api/v1/limit -H 'Content-Type: application/json' -d %s\n",
				r.Name, get, address, shellQuote(mustJSON(body)))
			if n := r.Windows[0].Limit.Config().N; n < 100 {
				fmt.Fprintf(&text, "# More than it allows: the last answers are 429.\nfor i in $(seq %d); do curl -s -o /dev/null -w '%%{http_code} ' %s; done; echo\n", n+1, get)
			}
		case "grpc":
			fmt.Fprintf(&text, "\n# Envoy's rate limit service:\ngrpcurl -plaintext -d %s %s envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit\n",
				shellQuote(mustJSON(rls)), address)
		case "admin":
			fmt.Fprintf(&text, "\n# The counters: metrics, and the hottest keys.\ncurl -s http://%s/metrics\ncurl -s %s\n", address,
				shellQuote("http://"+address+"/api/v1/keys?"+url.Values{"limit": {r.Name}, "domain": {r.Domain}}.Encode()))
		}
	}
	if p.c.listen.http == "" && p.c.listen.grpc == "" {
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

// connectAddress is what a client on this machine writes.
func connectAddress(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
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
