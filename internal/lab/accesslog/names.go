package accesslog

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// kind is a field that Weir knows under many names.
type kind uint8

const (
	kindNone kind = iota
	kindTime
	kindIP
	kindUser
	kindMethod
	kindPath
	kindRequest // a whole request line
	kindHost
	kindStatus
	kindBytes
	kindProtocol
	kindReferer
	kindUserAgent
	kindForwarded // X-Forwarded-For
	kindQuery     // the query, where the path comes without it
	kindDate      // the day, and
	kindClock     // the time of day, where they come apart
	kinds
)

var kindFields = [kinds]string{
	kindTime: "time", kindIP: FieldIP, kindUser: FieldUser, kindMethod: FieldMethod, kindPath: FieldPath,
	kindRequest: "request",
	kindHost:    FieldHost, kindStatus: FieldStatus, kindBytes: FieldBytes, kindProtocol: FieldProtocol,
	kindReferer:   FieldReferer,
	kindUserAgent: FieldUserAgent, kindForwarded: FieldForwarded, kindQuery: "query", kindDate: "date",
	kindClock: "clock",
}

// aliases are the usual names of each kind, lower case, in the logs of Apache, nginx, Caddy,
// Traefik, Envoy, HAProxy, IIS, Kong, pino, the Elastic Common Schema and OpenTelemetry, and of the
// loggers of AWS, Azure, Cloudflare, Google and Vercel. If a log has several, the first one here
// wins.
var aliases = [kinds]string{
	kindTime: "time ts timestamp @timestamp epoch_ms epoch msec time_iso8601 time_local starttime startutc datetime " +
		"date_time date start_time edgestarttimestamp requesttimeepoch requesttime proxy.timestamp timestamp(ms) " +
		"started_at eventtime __realtime_timestamp",
	kindIP: "ip client_ip clientip client request.client_ip request.remote_ip remote_ip remote_addr clienthost " +
		"clientaddr client_addr c-ip remote_host remote source_ip src_ip host_ip client.ip source.ip client.address " +
		"source.address httprequest.remoteip httprequest.clientip identity.sourceip proxy.clientip " +
		"req.remoteaddress req.ip req.client_ip remoteaddress remoteaddr http.client_ip " +
		"downstream_remote_address downstream_remote_address_without_port network.peer.address net.peer.ip " +
		"net.sock.peer.addr request.remote_addr downstream_direct_remote_address realip_remote_addr c_ip sourceip " +
		"remoteip real_ip",
	kindUser: "user remote_user username user_id userid auth_user clientusername cs-username request.user_id " +
		"user.name user.id enduser.id",
	kindMethod: "method verb request_method requestmethod request.method http_method cs-method clientrequestmethod " +
		"httprequest.requestmethod httprequest.httpmethod httpmethod http.request.method http.method req.method " +
		"proxy.method cs_method",
	kindPath: "path uri url request_uri requestpath request_path request.uri target cs-uri-stem clientrequesturi " +
		"clientrequestpath requesturi httprequest.requesturl httprequest.uri http.target url.original url.path " +
		"http.url url.full req.url proxy.path requested_uri document_uri request.url cs_uri_stem",
	kindRequest: "request request_line requestline",
	kindHost: "host vhost http_host request.host requesthost server_name authority cs-host x-host-header cs(host) " +
		"clientrequesthost url.domain server.address http.host req.headers.host request.headers.host " +
		"req.host proxy.host properties.hostname domainname requested_server_name",
	kindStatus: "status response code status_code downstreamstatus http_status sc-status edgeresponsestatus " +
		"httprequest.status httpstatus httpstatuscode http.response.status_code http.status_code res.statuscode statuscode " +
		"proxy.statuscode response_code response.status sc_status",
	kindBytes: "bytes size body_bytes_sent bytes_sent downstreamcontentsize sc-bytes edgeresponsebytes " +
		"httprequest.responsesize responselength http.response.body.bytes response.size sentbytes " +
		"responsebytes sc_bytes",
	kindProtocol: "protocol proto server_protocol requestprotocol request.proto cs-version cs-protocol-version " +
		"clientrequestprotocol httprequest.protocol httprequest.httpversion httpversion",
	kindReferer: "header.referer referer referrer http_referer request.headers.referer cs(referer) " +
		"clientrequestreferer httprequest.referer http.request.referrer",
	kindUserAgent: "header.user-agent user_agent useragent agent http_user_agent request.headers.user-agent " +
		"cs(user-agent) clientrequestuseragent httprequest.useragent user_agent.original http.user_agent " +
		"proxy.useragent",
	kindForwarded: "header.x-forwarded-for http_x_forwarded_for x_forwarded_for x-forwarded-for xforwardedfor " +
		"forwarded_for x-forward-for proxy_add_x_forwarded_for xff cs(x-forwarded-for)",
	kindQuery: "query args query_string querystring cs-uri-query url.query httprequest.args request_query requestquery",
}

// wrappers are the objects in which some loggers put the fields of a request. A name is known below
// them, too.
var wrappers = []string{
	"jsonpayload.", "json.", "log_processed.", "log.", "properties.", "fields.", "attributes.", "data.", "parsed.",
	"message.", "msg.", "record.", "payload.", "access.", "nginx.", "http.",
	"meta.",
}

// wrapped is added to the rank of a name below a wrapper.
const wrapped = 100

// headerMaps are the objects that hold the request's header fields by name.
var headerMaps = []string{"request.headers.", "req.headers.", "httprequest.headers.", "request_headers."}

// target is where the value of a column or a JSON key goes.
type target struct {
	name string // of the field
	kind kind
	rank uint8  // the lowest of a kind wins
	said string // its name in the words of a template
	seen *bool  // set when a line has the column or key; nil for a field not in Options.Fields
}

var known = func() map[string]target {
	m := make(map[string]target)
	for k, names := range aliases {
		for i, name := range strings.Fields(names) {
			m[name] = target{name: name, kind: kind(k), rank: uint8(i + 1)}
		}
	}
	return m
}()

// lookup finds the target of a name as the log writes it.
func lookup(name string) target {
	lower := strings.ToLower(name)
	if t, ok := known[lower]; ok {
		t.name = name
		return t
	}
	for _, w := range wrappers {
		rest, below := strings.CutPrefix(lower, w)
		if t, ok := known[rest]; below && ok {
			t.name = name
			t.rank += wrapped
			return t
		}
	}
	for _, m := range headerMaps {
		if field, below := strings.CutPrefix(lower, m); below {
			return lookup("header." + field)
		}
	}
	if field, ok := strings.CutPrefix(lower, "cs("); ok { // the extended log format of the W3C
		return lookup("header." + strings.TrimSuffix(field, ")"))
	}
	return target{name: name}
}

// asked turns a name that a user gave with --fields into a target that beats every alias.
func asked(name string) target {
	for k, f := range kindFields {
		if name == f && k != 0 && kind(k) < kindDate {
			return target{name: name, kind: kind(k)}
		}
	}
	t := lookup(name)
	t.rank = 0
	return t
}

// fieldSpec is one entry of Options.Fields.
type fieldSpec struct {
	text   string // as it was given
	to     target
	key    string // of "field=key"; else ""
	column int    // of "field=3", from 0; else -1
	skip   bool
}

func parseFields(fields []string) (specs []fieldSpec, mapped bool, err error) {
	plain := false
	for _, f := range fields {
		f = strings.TrimSpace(f)
		name, key, found := strings.Cut(f, "=")
		s := fieldSpec{text: f, column: -1}
		switch {
		case found && (name == "" || key == ""):
			return nil, false, fmt.Errorf("--fields entry %q: expected field=key, such as ip=client.address", f)
		case found:
			mapped = true
			s.to, s.key = asked(name), key
			if n, err := strconv.Atoi(key); err == nil {
				if n < 1 || n > maxFields {
					return nil, false, fmt.Errorf("--fields entry %q: columns count from 1 to %d", f, maxFields)
				}
				s.column = n - 1
			}
		case f == "" || f == "-" || f == "_":
			plain, s.skip = true, true
		default:
			plain = true
			s.to = asked(f)
		}
		s.to.seen = new(bool)
		specs = append(specs, s)
	}
	if plain && mapped {
		return nil, false, fmt.Errorf("--fields mixes plain names with field=key: use one form for all entries")
	}
	if len(specs) > maxFields {
		return nil, false, fmt.Errorf("--fields names %d columns: at most %d are read", len(specs), maxFields)
	}
	return specs, mapped, nil
}

// gather collects the fields of a line by kind, so that the best name of a kind wins.
type gather struct {
	at      [kinds]int16 // index of the best field in Entry.Fields, counted from 1
	rank    [kinds]uint8
	scratch *[]byte // for values that are put together
}

// add adds a value under its target. Its place in e.Fields is kept, so that finish can rename it.
func (g *gather) add(e *Entry, t *target, value []byte) {
	if t.seen != nil {
		*t.seen = true
	}
	if len(value) == 0 || len(value) == 1 && value[0] == '-' || len(e.Fields) >= maxFields {
		return
	}
	e.Fields = append(e.Fields, Field{t.name, value})
	if t.kind != kindNone && (g.at[t.kind] == 0 || t.rank < g.rank[t.kind]) {
		g.at[t.kind], g.rank[t.kind] = int16(len(e.Fields)), t.rank
	}
}

// finish gives the best field of each kind its name, and splits request lines and targets. It
// returns false if there is no time, neither in the line nor before it.
func (g *gather) finish(e *Entry, p *timeParser) bool {
	ok := false
	if i := g.at[kindTime]; i > 0 {
		e.Time, ok = p.parse(e.Fields[i-1].Value)
	} else if d, c := g.at[kindDate], g.at[kindClock]; d > 0 && c > 0 {
		e.Time, ok = p.parse(g.join(e.Fields[d-1].Value, ' ', e.Fields[c-1].Value))
	} else {
		e.Time, ok = p.before, p.hasBefore
	}
	if !ok {
		return false
	}
	var request, host []byte
	for k := kindTime; k < kinds; k++ {
		i := g.at[k]
		if i == 0 {
			continue
		}
		f := &e.Fields[i-1]
		f.Name = kindFields[k]
		switch k {
		case kindIP:
			f.Value = client(f.Value)
		case kindPath:
			f.Value, host = splitTarget(f.Value)
		case kindRequest:
			request = f.Value
		}
	}
	if q := g.at[kindQuery]; q > 0 && g.at[kindPath] > 0 {
		path := &e.Fields[g.at[kindPath]-1]
		if query := e.Fields[q-1].Value; bytes.IndexByte(path.Value, '?') < 0 {
			path.Value = g.join(path.Value, '?', bytes.TrimPrefix(query, []byte("?")))
		}
	}
	if host != nil && g.at[kindHost] == 0 {
		e.add(FieldHost, host)
	}
	if request != nil && g.at[kindPath] == 0 {
		e.addRequest(request)
	}
	return true
}

// join concatenates a, c and b in the scratch memory.
func (g *gather) join(a []byte, c byte, b []byte) []byte {
	s := *g.scratch
	from := len(s)
	s = append(append(append(s, a...), c), b...)
	*g.scratch = s
	return s[from:len(s):len(s)]
}

// missing returns the specs, as given, whose column or key no line has had so far.
func missing(specs []fieldSpec) []string {
	var names []string
	for _, s := range specs {
		if !s.skip && !*s.to.seen {
			names = append(names, s.text)
		}
	}
	return names
}
