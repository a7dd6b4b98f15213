package accesslog

import (
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
	kinds
)

var kindFields = [kinds]string{
	kindTime: "time", kindIP: FieldIP, kindUser: FieldUser, kindMethod: FieldMethod, kindPath: FieldPath, kindRequest: "request",
	kindHost: FieldHost, kindStatus: FieldStatus, kindBytes: FieldBytes, kindProtocol: FieldProtocol, kindReferer: FieldReferer,
	kindUserAgent: FieldUserAgent,
}

// aliases are the usual names of each kind in the logs of Apache, nginx, Caddy, Traefik, HAProxy,
// IIS and cloud balancers, lower case; where a log has several, the first here holds.
var aliases = [kinds]string{
	kindTime:      "time ts timestamp @timestamp epoch_ms epoch msec time_iso8601 time_local starttime startutc datetime date_time date",
	kindIP:        "ip client_ip clientip client request.client_ip request.remote_ip remote_ip remote_addr clienthost clientaddr client_addr c-ip remote_host remote source_ip src_ip host_ip",
	kindUser:      "user remote_user username user_id userid auth_user clientusername cs-username",
	kindMethod:    "method verb request_method requestmethod request.method http_method cs-method",
	kindPath:      "path uri url request_uri requestpath request_path request.uri target cs-uri-stem",
	kindRequest:   "request request_line",
	kindHost:      "host vhost http_host request.host requesthost server_name authority cs-host",
	kindStatus:    "status response code status_code downstreamstatus http_status sc-status",
	kindBytes:     "bytes size body_bytes_sent bytes_sent downstreamcontentsize sc-bytes",
	kindProtocol:  "protocol proto server_protocol requestprotocol request.proto",
	kindReferer:   "header.referer referer referrer http_referer request.headers.referer",
	kindUserAgent: "header.user-agent user_agent useragent agent http_user_agent request.headers.user-agent",
}

// target is where the value of a column or a JSON key goes.
type target struct {
	name string // of the field
	kind kind
	rank uint8 // the lowest of a kind holds
	seen *bool // set when a line has the column or key; nil for a field not in Options.Fields
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
	if t, ok := known[strings.ToLower(name)]; ok {
		t.name = name
		return t
	}
	return target{name: name}
}

// asked turns a name that a user gave with --fields into a target that beats every alias.
func asked(name string) target {
	for k, f := range kindFields {
		if name == f && k != 0 {
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

// gather collects the fields of a line by kind, so that the best name of a kind holds.
type gather struct {
	at   [kinds]int16 // index of the best field in Entry.Fields, counted from 1
	rank [kinds]uint8
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

// finish gives the best field of each kind its name, and splits request lines and targets; false if
// there is no time.
func (g *gather) finish(e *Entry, p *timeParser) bool {
	i := g.at[kindTime]
	if i == 0 {
		return false
	}
	t, ok := p.parse(e.Fields[i-1].Value)
	if !ok {
		return false
	}
	e.Time = t
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
	if host != nil && g.at[kindHost] == 0 {
		e.add(FieldHost, host)
	}
	if request != nil && g.at[kindPath] == 0 {
		e.addRequest(request)
	}
	return true
}

// missing returns the specs, as they were given, whose column or key no line has had so far.
func missing(specs []fieldSpec) []string {
	var names []string
	for _, s := range specs {
		if !s.skip && !*s.to.seen {
			names = append(names, s.text)
		}
	}
	return names
}
