// Package examples writes the requests to paste that a server shows when it starts: for curl,
// grpcurl and redis-cli, with values that meet a rule in force. Begin with Print.
package examples

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/rule"
)

// Door is a door that requests can be sent to.
type Door struct {
	Name        string // http, grpc, resp or admin; nothing is written for others
	Address     net.Addr
	TLS         bool // it speaks TLS
	Certificate bool // it demands a certificate of clients
	Token       bool // it demands a token
}

// Options are what Print needs to know of a server.
type Options struct {
	Rules string // where they are, as weir explain takes it
	Page  bool   // the admin port serves the operator's page
}

// Print writes requests to paste, for the first rule of set that sample values meet.
func Print(w io.Writer, set *rule.Set, doors []Door, o Options) {
	e := exampleRequest(set)
	if e == nil {
		fmt.Fprintf(w, "No request to try: sample values meet no rule with numbers.\n"+
			"weir explain --rules %s KEY=VALUE… tells which limits a request would meet.\n\n",
			human.ShellQuote(o.Rules))
		return
	}
	domains := set.Domains()
	var text strings.Builder
	if len(domains) > 1 {
		fmt.Fprintf(&text, "\n# The rules hold %d domains (%s): a request names one.\n", len(domains),
			someOf(domains, 5))
	}
	for _, d := range doors {
		d.write(&text, e, len(domains) > 1, o.Page)
	}
	fmt.Fprintf(w, "Try it:\n%s\n", text.String())
}

// someOf lists the first of the names.
func someOf(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// rlsBody is a request to Envoy's rate limit service, as JSON.
type rlsBody struct {
	Domain      string          `json:"domain"`
	Descriptors []rlsDescriptor `json:"descriptors"`
}

type rlsDescriptor struct {
	Entries []rlsEntry `json:"entries"`
}

type rlsEntry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// write writes requests to the door; nothing if e meets its rule there in no way.
func (d *Door) write(text *strings.Builder, e *example, nameDomain, page bool) {
	r := e.rule
	rls := rlsBody{Domain: r.Domain, Descriptors: []rlsDescriptor{{}}}
	for _, a := range e.attributes {
		entries := &rls.Descriptors[0].Entries
		*entries = append(*entries, rlsEntry{a.Name, a.Value})
	}
	switch d.Name {
	case "http":
		curl, base := d.curl()
		request := ""
		if e.byAttributes {
			query := url.Values{}
			body := struct {
				Domain     string            `json:"domain,omitempty"`
				Attributes map[string]string `json:"attributes"`
			}{Attributes: map[string]string{}}
			if nameDomain {
				query.Set("domain", r.Domain)
				body.Domain = r.Domain
			}
			for _, a := range e.attributes {
				query.Set(a.Name, a.Value)
				body.Attributes[a.Name] = a.Value
			}
			request = human.ShellQuote(base + "/api/v1/limit?" + query.Encode())
			fmt.Fprintf(text,
				"\n# HTTP: 200 may pass, 429 may not. Rule %q:\n%s -i %s\n%s -i -X POST %s/api/v1/limit -H 'Content-Type: application/json' -d %s\n",
				r.Name, curl, request, curl, base, human.ShellQuote(mustJSON(body)))
		} else {
			request = base + "/json -d " + human.ShellQuote(mustJSON(rls))
			fmt.Fprintf(text, "\n# HTTP: 200 may pass, 429 may not. Rule %q:\n%s -i %s\n", r.Name, curl, request)
		}
		if n := r.Windows[0].Limit.Config().N; n < 100 {
			fmt.Fprintf(text,
				"# More than it allows: the last answers are 429.\nfor i in $(seq %d); do %s -s -o /dev/null -w '%%{http_code} ' %s; done; echo\n", n+1, curl, request)
		}
	case "grpc":
		fmt.Fprintf(text,
			"\n# Envoy's rate limit service:\ngrpcurl %s -d %s %s envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit\n",
			d.grpcurl(), human.ShellQuote(mustJSON(rls)), connectAddress(d.Address))
	case "resp":
		if e.byAttributes {
			fmt.Fprintf(text,
				"\n# The Redis protocol: 1 may pass, 0 may not; then redis-cell's command, which needs no rule: 0 may pass, 1 may not.\n%s\n",
				d.redisCLI(r.Domain, e.attributes))
		}
	case "admin":
		curl, base := d.curl()
		if page && d.Address.Network() != "unix" {
			fmt.Fprintf(text, "\n# In a browser, what goes on and whether the rules do their job: %s/\n", base)
		}
		fmt.Fprintf(text, "\n# The counters: metrics, and the hottest keys.\n%s -s %s/metrics\n%s -s %s\n", curl, base,
			curl,
			human.ShellQuote(base+"/api/v1/keys?"+url.Values{"limit": {r.Name}, "domain": {r.Domain}}.Encode()))
	}
}

// example is a request that meets a rule.
type example struct {
	rule       *rule.Rule
	attributes []rule.Pair // or the entries of one descriptor, in this order
	// byAttributes is false if only a descriptor meets the rule.
	byAttributes bool
}

// exampleRequest finds the first rule that sample values meet, and prefers one that requests at
// every door can meet. It is nil if there is none.
func exampleRequest(set *rule.Set) *example {
	var found *example   // by a descriptor
	var failing *example // an expression fails on it
	var m rule.Matches
	meets := func(q rule.Query, r *rule.Rule) bool {
		set.Match(&q, &m)
		return slices.ContainsFunc(m.Hits,
			func(h rule.Hit) bool { return h.Window.Rule == r && h.Mode == rule.Enforce })
	}
	for _, r := range set.Rules() {
		if r.Unlimited || len(r.Windows) == 0 || r.Windows[0].Limit == nil {
			continue
		}
		for _, attributes := range samplesOf(r, set) {
			if meets(rule.Query{Domain: r.Domain, Attributes: rule.Pairs(attributes)}, r) {
				if m.CELErrors == 0 {
					return &example{r, attributes, true}
				}
				failing = cmp.Or(failing, &example{r, attributes, true})
			}
		}
		if found != nil {
			continue
		}
		attributes, descriptor := sampleAttributes(r), rule.Descriptor{}
		for _, a := range attributes {
			descriptor.Entries = append(descriptor.Entries, rule.Entry{Key: a.Name, Value: a.Value})
		}
		if meets(rule.Query{Domain: r.Domain, Descriptors: []rule.Descriptor{descriptor}}, r) {
			found = &example{rule: r, attributes: attributes}
		}
	}
	return cmp.Or(found, failing)
}

// samplesOf makes requests that may meet r, the shortest first: with the attributes of its when and
// per, with those that its expressions read, too, and with all that expressions of the domain read.
// A value that only an expression reads is a number in some, and a name in the others.
func samplesOf(r *rule.Rule, set *rule.Set) (samples [][]rule.Pair) {
	plain := sampleAttributes(r)
	samples = append(samples, plain)
	domain := slices.DeleteFunc(slices.Clone(set.Rules()), func(o *rule.Rule) bool { return o.Domain != r.Domain })
	for _, rules := range [][]*rule.Rule{{r}, domain} {
		names := readByExpressions(rules)
		for _, value := range []string{"1", sampleName} {
			more := slices.Clone(plain)
			for _, name := range names {
				if !slices.ContainsFunc(more, func(a rule.Pair) bool { return a.Name == name }) {
					more = append(more, rule.Pair{Name: name, Value: cmp.Or(sampleValues[name], value)})
				}
			}
			samples = append(samples, more)
		}
	}
	return samples
}

// readByExpressions returns the attributes that the conditions and costs of rules read.
func readByExpressions(rules []*rule.Rule) (names []string) {
	for _, r := range rules {
		if r.Exprs == nil {
			continue
		}
		for _, e := range []rule.Reader{r.Exprs.If, r.Exprs.Cost} {
			if e != nil {
				read, _ := e.Reads()
				names = append(names, read...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// sampleValues are the values of attributes that mean the same everywhere; sampleName is the value
// of the others.
var sampleValues = map[string]string{"ip": "192.0.2.1", "remote_address": "192.0.2.1", "path": "/", "method": "GET",
	"host": "example.com"}

const sampleName = "ada"

// sampleAttributes makes values that look as if they met r. Whether they do, Match knows.
func sampleAttributes(r *rule.Rule) (attributes []rule.Pair) {
	has := map[string]bool{}
	add := func(name, value string) {
		if !has[name] {
			has[name] = true
			attributes = append(attributes, rule.Pair{Name: name, Value: value})
		}
	}
	sample := func(name string) string { return cmp.Or(sampleValues[name], sampleName) }
	if r.Lyft != nil {
		for _, e := range r.Lyft.Path {
			add(e.Key, cmp.Or(strings.ReplaceAll(e.Value, "*", "x"), sample(e.Key)))
		}
		return attributes
	}
	for _, c := range r.When {
		value := sample(c.Attribute) // for one that is only not to match a pattern
		for _, p := range c.Patterns {
			if !p.Negated && !strings.HasPrefix(p.Source, "~") {
				value = samplePattern(c.Attribute, p.Source)
				break
			}
		}
		add(c.Attribute, value)
	}
	for _, key := range r.Per {
		add(key[0], sample(key[0]))
	}
	return attributes
}

// samplePattern is a value that matches an exact pattern, a glob, or a block of addresses.
func samplePattern(attribute, pattern string) string {
	if block, err := netip.ParsePrefix(pattern); attribute == "ip" && err == nil {
		return block.Addr().String()
	}
	pattern = strings.ReplaceAll(strings.ReplaceAll(pattern, "**", "*"), "*", "x")
	return strings.ReplaceAll(pattern, `\`, "")
}

// curl is how curl asks a door of HTTP: the command with its options, and the URL of the door.
func (d *Door) curl() (command, base string) {
	command, base = "curl", "http://"
	if d.TLS {
		base = "https://"
		command += " --cacert CA.pem"
		if d.Certificate {
			command += " --cert CLIENT.pem --key CLIENT.key"
		}
	}
	if d.Token {
		command += ` -H "Authorization: Bearer $TOKEN"`
	}
	if d.Address.Network() == "unix" {
		return command + " --unix-socket " + human.ShellQuote(d.Address.String()), base + "localhost"
	}
	return command, base + connectAddress(d.Address)
}

// grpcurl are the options of grpcurl that the door needs.
func (d *Door) grpcurl() string {
	options := "-plaintext"
	if d.TLS {
		options = "-cacert CA.pem"
		if d.Certificate {
			options += " -cert CLIENT.pem -key CLIENT.key"
		}
	}
	if d.Token {
		options += ` -H "authorization: Bearer $TOKEN"`
	}
	return options
}

// redisCLI are commands to paste that ask the door.
func (d *Door) redisCLI(domain string, attributes []rule.Pair) string {
	cli := "redis-cli"
	if a, ok := d.Address.(*net.TCPAddr); ok {
		host, port, _ := net.SplitHostPort(connectAddress(a)) // which is an address
		cli += " -h " + host + " -p " + port
	} else {
		cli += " -s " + human.ShellQuote(d.Address.String())
	}
	if d.TLS {
		cli += " --tls --cacert CA.pem"
		if d.Certificate {
			cli += " --cert CLIENT.pem --key CLIENT.key"
		}
	}
	if d.Token {
		cli += ` -a "$TOKEN" --no-auth-warning`
	}
	limit := cli + " WEIR.LIMIT " + human.ShellQuote(domain) + " 1"
	for _, a := range attributes {
		limit += " " + human.ShellQuote(a.Name) + " " + human.ShellQuote(a.Value)
	}
	return limit + "\n" + cli + " CL.THROTTLE ada 15 30 60"
}

// connectAddress is the address for a client on this machine.
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
