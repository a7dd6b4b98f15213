package accesslog

import (
	"fmt"
	"strings"
)

// Format is the shape of a log's lines. The zero value, Guess, finds it out from the first lines.
type Format struct {
	style    style
	template *template // of styleTemplate
}

type style uint8

const (
	styleGuess style = iota
	styleCommon
	styleVhost
	styleForwarded
	styleJSON
	styleCSV
	styleTSV
	styleW3C
	styleColumns
	styleTemplate
)

// The formats that need no template.
var (
	Guess     = Format{}
	Common    = Format{style: styleCommon}    // Apache and nginx common and combined
	Vhost     = Format{style: styleVhost}     // the host, with or without its port, before a common line
	Forwarded = Format{style: styleForwarded} // X-Forwarded-For before a common line
	JSON      = Format{style: styleJSON}      // one object a line
	CSV       = Format{style: styleCSV}
	TSV       = Format{style: styleTSV}
	W3C       = Format{style: styleW3C} // a line #Fields names the columns: IIS, CloudFront

	// columns are parted by spaces, and told by their contents. It can be guessed only.
	columns = Format{style: styleColumns}
)

// formatNames are the names that ParseFormat takes; the first of each is the one that String
// returns.
var formatNames = []struct {
	format Format
	names  string
}{
	{Guess, "guess auto"},
	{Common, "common combined apache nginx clf"},
	{Vhost, "vhost_combined vhost_common"},
	{Forwarded, "forwarded_combined"},
	{JSON, "json jsonl ndjson"},
	{CSV, "csv"},
	{TSV, "tsv"},
	{W3C, "w3c iis cloudfront"},
	{Format{styleTemplate, envoyTemplate}, "envoy"},
	{Format{styleTemplate, istioTemplate}, "istio"},
	{Format{styleTemplate, haproxyTemplate}, "haproxy"},
	{Format{styleTemplate, albTemplate}, "alb"},
	{Format{styleTemplate, elbTemplate}, "elb"},
}

// Templates of formats that have a name. Further text on a line is ignored.
var (
	envoyTemplate = mustTemplate(`[%START_TIME%] "%REQ(:METHOD)% ` +
		`%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
		`%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% ` +
		`"%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" ` +
		`"%UPSTREAM_HOST%"`)
	istioTemplate = mustTemplate(`[%START_TIME%] "%REQ(:METHOD)% ` +
		`%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %RESPONSE_FLAGS% ` +
		`%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% ` +
		`"%UPSTREAM_TRANSPORT_FAILURE_REASON%" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% ` +
		`%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" "%REQ(USER-AGENT)%" ` +
		`"%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% ` +
		`%UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% ` +
		`%REQUESTED_SERVER_NAME% %ROUTE_NAME%`)
	// option httplog and option httpslog. Captured headers come before the request.
	haproxyTemplate = mustTemplate(`%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS ` +
		`%tsc %ac/%fc/%bc/%sc/%rc %sq/%bq %hr%{+Q}r`)
	// Access logs of AWS: Application Load Balancers, and the classic ones.
	albTemplate = mustTemplate(`$type $time_iso8601 $elb $client:$client_port $backend $waited ` +
		`$target_time $answer_time $status $target_status $received $bytes_sent "$request" ` +
		`"$http_user_agent"`)
	elbTemplate = mustTemplate(`$time_iso8601 $elb $client:$client_port $backend $waited ` +
		`$target_time $answer_time $status $target_status $received $bytes_sent "$request" ` +
		`"$http_user_agent"`)
)

// String returns the name that ParseFormat takes, or the text of the template.
func (f Format) String() string {
	for _, n := range formatNames {
		if n.format == f {
			name, _, _ := strings.Cut(n.names, " ")
			return name
		}
	}
	if f.template != nil {
		return f.template.text
	}
	return "columns parted by spaces and told by their contents"
}

// expectedFormats names the formats in messages.
const expectedFormats = "common, combined, vhost_combined, json, csv, tsv, w3c (iis, cloudfront), " +
	"envoy, istio, haproxy, alb, elb, or the format in the words of nginx, Apache, Envoy or HAProxy, " +
	`as in '$remote_addr - $remote_user [$time_local] "$request" $status'`

// ParseFormat finds a format by its name ("" is Guess), or reads it in the words of nginx, Apache,
// Envoy or HAProxy.
func ParseFormat(s string) (Format, error) {
	name := strings.ToLower(strings.TrimSpace(s))
	if name == "" {
		return Guess, nil
	}
	for _, n := range formatNames {
		for known := range strings.FieldsSeq(n.names) {
			if known == name {
				return n.format, nil
			}
		}
	}
	if !strings.ContainsAny(s, "$%") {
		return Guess, fmt.Errorf("unknown log format %q: expected %s", s, expectedFormats)
	}
	t, err := newTemplate(s)
	if err != nil {
		return Guess, err
	}
	return Format{styleTemplate, t}, nil
}
