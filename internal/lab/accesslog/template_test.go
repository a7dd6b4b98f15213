package accesslog

import (
	"net/netip"
	"strings"
	"testing"
)

// readOne reads one line, and returns what it holds without the time's own field.
func readOne(t *testing.T, line string, o Options) string {
	t.Helper()
	entries, skipped := readAll(t, line+"\n", o)
	if len(entries) != 1 {
		t.Fatalf("%q: %d entries, %d lines skipped", line, len(entries), skipped)
	}
	return dropTime(entries[0])
}

func TestWords(t *testing.T) {
	for _, c := range []struct{ name, format, line, want string }{
		{"nginx", `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" "$http_x_forwarded_for" $request_time`,
			`10.0.0.7 - ada lovelace [20/Nov/2026:10:00:00 +0000] "GET /a"b?c HTTP/1.1" 200 5 "-" "M \"x\" 1" "192.0.2.1, 10.0.0.9" 0.001`,
			`2026-11-20T10:00:00Z ip="10.0.0.7" user="ada lovelace" request="GET /a\"b?c HTTP/1.1" status="200" bytes="5" header.user-agent="M \"x\" 1" header.x-forwarded-for="192.0.2.1, 10.0.0.9" request_time="0.001" protocol="HTTP/1.1" method="GET" path="/a\"b?c"`},
		{"nginx, parts of a request, fields of the header, lists", `$msec|${remote_addr}|$scheme://$host$request_uri|$http_x_api_key|$arg_page|$upstream_addr $upstream_status $request_method`,
			`1795168800.250|2001:db8::1|https://www.example.com/a?page=2|k1|2|10.1.0.1:80, 10.1.0.2:80 502, 200 GET`,
			`2026-11-20T10:00:00.25Z ip="2001:db8::1" scheme="https" host="www.example.com" path="/a?page=2" header.x-api-key="k1" query.page="2" upstream_addr="10.1.0.1:80, 10.1.0.2:80" upstream_status="502, 200" method="GET"`},
		{"nginx, the path and its query", `$time_iso8601 $remote_addr:$remote_port $uri$is_args$args "$request_body"`,
			`2026-11-20T10:00:00+01:00 2001:db8::1:4711 /a?b=c "x"`,
			`2026-11-20T09:00:00Z ip="2001:db8::1" remote_port="4711" path="/a?b=c" request_body="x"`},
		{"nginx, a port at the end, and a time after a colon", `$host:$time_iso8601 $status $remote_addr:$remote_port`,
			`www.example.com:2026-11-20T10:00:00+00:00 200 2001:db8::1:4711`,
			`2026-11-20T10:00:00Z host="www.example.com" status="200" ip="2001:db8::1" remote_port="4711"`},
		{"nginx, the query apart", `$time_iso8601 $remote_addr $uri $args`, `2026-11-20T10:00:00+00:00 192.0.2.1 /a b=c`,
			`2026-11-20T10:00:00Z ip="192.0.2.1" path="/a?b=c" query="b=c"`},
		{"nginx, a request and a user agent without quotation marks", `$time_iso8601 $remote_addr $request $status $http_user_agent rt=$request_time`,
			`2026-11-20T10:00:00Z 192.0.2.1 GET /a HTTP/1.1 200 Mozilla/5.0 (X11) rt=0.1`,
			`2026-11-20T10:00:00Z ip="192.0.2.1" request="GET /a HTTP/1.1" status="200" header.user-agent="Mozilla/5.0 (X11)" request_time="0.1" protocol="HTTP/1.1" method="GET" path="/a"`},
		{"Apache", `%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"`,
			`www.example.com:443 192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "http://x/" "M"`,
			`2026-11-20T10:00:00Z host="www.example.com" ip="192.0.2.1" request="GET / HTTP/1.1" status="200" bytes="5" header.referer="http://x/" header.user-agent="M" protocol="HTTP/1.1" method="GET" path="/"`},
		{"Apache, as in a configuration file", `LogFormat "%{X-Forwarded-For}i %a %t \"%m %U%q %H\" %>s %!200,304{X-Api-Key}i %D" mine`,
			`192.0.2.1, 10.0.0.9 10.0.0.7 [20/Nov/2026:10:00:00 +0000] "GET /a?b HTTP/1.1" 404 k1 812`,
			`2026-11-20T10:00:00Z header.x-forwarded-for="192.0.2.1, 10.0.0.9" ip="10.0.0.7" method="GET" path="/a?b" protocol="HTTP/1.1" status="404" header.x-api-key="k1"`},
		{"Apache, times of its own", `[%{%d/%b/%Y %T}t.%{msec_frac}t %{%z}t] %h "%r"`, `[20/Nov/2026 10:00:00.250 +0100] host.example "GET / HTTP/1.1"`,
			`2026-11-20T09:00:00.25Z ip="host.example" request="GET / HTTP/1.1" protocol="HTTP/1.1" method="GET" path="/"`},
		{"Envoy", `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% %DOWNSTREAM_REMOTE_ADDRESS% "%REQ(X-API-KEY):20%" %RESP(SERVER)%`,
			`[2026-11-20T10:00:00.250Z] "GET /a HTTP/2" 200 192.0.2.1:4711 "k1" envoy`,
			`2026-11-20T10:00:00.25Z method="GET" path="/a" protocol="HTTP/2" status="200" ip="192.0.2.1" header.x-api-key="k1"`},
		{"HAProxy", `%ci:%cp\ [%tr]\ %ST\ %B\ %{+Q}r\ %[capture.req.hdr(0)]\ %[req.hdr(X-Api-Key),lower]`,
			`2001:db8::1:4711 [20/Nov/2026:10:00:00.250] 200 5 "GET / HTTP/1.1" x k1`,
			`2026-11-20T10:00:00.25Z ip="2001:db8::1" status="200" bytes="5" request="GET / HTTP/1.1" header.x-api-key="k1" protocol="HTTP/1.1" method="GET" path="/"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			format, err := ParseFormat(c.format)
			if err != nil {
				t.Fatal(err)
			}
			// Some words are the names of fields that every format has; the field of the time is
			// of no interest.
			if got := readOne(t, c.line, Options{Format: format}); got != c.want {
				t.Errorf("read\n%s\nwant\n%s", got, c.want)
			}
			// Behind a prefix, too.
			if got := readOne(t, "Nov 20 10:00:00 web1 httpd: "+c.line, Options{Format: format}); got != c.want {
				t.Errorf("behind a prefix, read\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// A value of a template can be taken for a field by its name in the server's words.
func TestWordsWithFields(t *testing.T) {
	format, err := ParseFormat(`$remote_addr [$time_local] "$http_cf_connecting_ip" "$request"`)
	if err != nil {
		t.Fatal(err)
	}
	line := `10.0.0.7 [20/Nov/2026:10:00:00 +0000] "192.0.2.1" "GET / HTTP/1.1"`
	got := readOne(t, line, Options{Format: format, Fields: []string{"ip=http_cf_connecting_ip"}})
	if !strings.Contains(got, ` ip="192.0.2.1"`) {
		t.Errorf("read %s", got)
	}
	for _, fields := range [][]string{{"ip=http_cf_connecting"}, {"ip", "time"}} {
		if _, err := NewReader(strings.NewReader(line+"\n"), Options{Format: format, Fields: fields}); err == nil {
			t.Errorf("fields %q are taken", fields)
		}
	}
}

// What does not fit a template is skipped, and never read halfway.
func TestWordsRefuse(t *testing.T) {
	format, err := ParseFormat(`$remote_addr [$time_local] "$request" $status $body_bytes_sent`)
	if err != nil {
		t.Fatal(err)
	}
	good := `192.0.2.1 [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5`
	log := strings.Join([]string{
		good, good + " and more",
		`192.0.2.1 - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5`,
		`192.0.2.1 [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200`,
		`192.0.2.1 [yesterday] "GET / HTTP/1.1" 200 5`,
		`192.0.2.1 [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1 200 5`,
		"",
	}, "\n")
	if entries, skipped := readAll(t, log, Options{Format: format}); len(entries) != 2 || skipped != 4 {
		t.Errorf("%d entries, %d skipped: %q", len(entries), skipped, entries)
	}
	for words, want := range map[string]string{
		`%h %Y %t`:                  "%Y is no word of Apache",
		`%h %{%c}t`:                 "are not read",
		`$remote_addr$remote_user`:  "nothing parts $remote_user",
		`[$time_local]`:             "has no value that is known",
		`%START_TIME% %REQ(A)`:      "as words of Envoy",
		`%h %t %`:                   "as words of Apache",
		strings.Repeat("$a ", 1000): "more than 256 values",
	} {
		if _, err := ParseFormat(words); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseFormat(%.40q) = %v, want an error with %q", words, err, want)
		}
	}
	noTime, err := ParseFormat(`$remote_addr "$request"`)
	if err != nil {
		t.Fatal(err)
	}
	const bare = `192.0.2.1 "GET / HTTP/1.1"`
	if _, err := NewReader(strings.NewReader(bare+"\n"), Options{Format: noTime}); err == nil ||
		!strings.Contains(err.Error(), "has no time") {
		t.Errorf("a log without a time: %v", err)
	}
	// A logger may know it.
	if got := readOne(t, "2026-11-20T10:00:00.5Z stdout F "+bare, Options{Format: noTime}); !strings.HasPrefix(got,
		`2026-11-20T10:00:00.5Z ip="192.0.2.1"`) {
		t.Errorf("read %s", got)
	}
}

// The client of a line is the peer, or whom the list names, if a proxy is believed.
func TestClient(t *testing.T) {
	second := func(peer, list string) (a netip.Addr) { // the last but one of the list, for peers in 10.0.0.0/8
		if parts := strings.Split(list, ", "); (peer == "" || strings.HasPrefix(peer, "10.")) && len(parts) > 1 {
			a, _ = netip.ParseAddr(parts[len(parts)-2])
		}
		return a
	}
	const rest = ` [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "-"`
	for _, c := range []struct{ line, alone, believing string }{
		{`10.0.0.7 - -` + rest + ` "192.0.2.1, 10.0.0.9"`, "10.0.0.7", "192.0.2.1"},
		{`203.0.113.5 - -` + rest + ` "192.0.2.1, 10.0.0.9"`, "203.0.113.5", "203.0.113.5"},
		{`10.0.0.7 - -` + rest + ` "-"`, "10.0.0.7", "10.0.0.7"},
		{`10.0.0.7 - -` + rest + ` "10.1.0.4:8080"`, "10.0.0.7", "10.0.0.7"}, // an upstream, no client
		{`198.51.100.1, 192.0.2.1, 10.0.0.9 - -` + rest, "198.51.100.1", "192.0.2.1"},
		{`unknown, 192.0.2.1, 10.0.0.9 - -` + rest, "192.0.2.1", "192.0.2.1"},
		{`192.0.2.1, 10.0.0.9 10.0.0.7 - -` + rest, "10.0.0.7", "192.0.2.1"},
		{`- 10.0.0.7 - -` + rest, "10.0.0.7", "10.0.0.7"},
		{`www.example.com 192.0.2.1 - -` + rest, "192.0.2.1", "192.0.2.1"},
		{`192.0.2.80:443 192.0.2.1 - -` + rest, "192.0.2.1", "192.0.2.1"},
		{`{"time":1795168800,"client_ip":["192.0.2.1","10.0.0.9"],"path":"/"}`, "192.0.2.1", "192.0.2.1"},
		{`{"time":1795168800,"request":{"remote_ip":"10.0.0.7","uri":"/","headers":{"X-Forwarded-For":["192.0.2.1, 10.0.0.9"]}}}`, "10.0.0.7", "192.0.2.1"},
		{`{"time":1795168800,"ip":"::ffff:192.0.2.1","path":"/"}`, "192.0.2.1", "192.0.2.1"},
	} {
		lines := c.line + "\n"
		if strings.HasPrefix(c.line, "- ") { // other lines of such a log show what is there
			lines = strings.Repeat(`192.0.2.1, 10.0.0.9 10.0.0.7 - -`+rest+"\n", 3) + lines
		}
		for i, find := range []func(string, string) netip.Addr{nil, second} {
			want := []string{c.alone, c.believing}[i]
			entries, _ := readAll(t, lines, Options{Client: find})
			if len(entries) == 0 || !strings.Contains(entries[len(entries)-1], ` ip="`+want+`"`) {
				t.Errorf("%s, believing %v: want %s, read %q", c.line, find != nil, want, entries)
			}
		}
	}
}

func TestIsClient(t *testing.T) {
	for text, want := range map[string]bool{
		"192.0.2.1": true, "2001:db8::1": true, "fe80::1%eth0": true, "host.example": true, "a-b.c_d.example.": true, "localhost": true, "1.2.3.com": true,
		"": false, "-": false, "Nov": false, "www.example.com:443": false, "2016-10-06T00:17:09.669794202Z": false, "192.0.2.1,": false, "0.002": false,
		"192.0.2.256": false, "/index.html": false, ".example": false, "a..b": false, "a b.c": false, "unix:": false,
	} {
		if got := isClient([]byte(text)); got != want {
			t.Errorf("isClient(%q) = %v", text, got)
		}
	}
	for text, want := range map[string]bool{"/a": true, "GET": true, "2026-11-20T10:00:00Z": true,
		"[20/Nov/2026:10:00:00 +0000]": true,
		"":                             false, "q7f3a": false, "web1": false, "200": false, "1795168800": false, "a=/b": false} {
		if got := isNoClient([]byte(text)); got != want {
			t.Errorf("isNoClient(%q) = %v", text, got)
		}
	}
}

// Of several columns of addresses the one with most different ones holds the clients.
func TestClientColumn(t *testing.T) {
	for _, line := range []string{
		"2026-11-20 10:00:00 10.0.0.4 GET /a - 443 - 192.0.2.%d curl/8 200\n", // IIS without its #Fields
		"1795168800,10.0.0.4,192.0.2.%d,GET,/a\n",
	} {
		var log strings.Builder
		for i := range 3 {
			log.WriteString(strings.ReplaceAll(line, "%d", string(rune('1'+i))))
		}
		entries, _ := readAll(t, log.String(), Options{})
		if len(entries) != 3 || !strings.Contains(entries[2], ` ip="192.0.2.3"`) {
			t.Errorf("read %q", entries)
		}
	}
	// Names of clients are no names of hosts, unless the client after them says so.
	for line, want := range map[string]string{
		`client.example identd.example ada [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5`:           ` ip="client.example"`,
		`192.0.2.1 www.example.com - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5`:                 ` ip="192.0.2.1"`, // lighttpd
		`www.example.com:443 client.example - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5`:      ` ip="client.example"`,
		`nginx.1     | www.example.com 192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5`: ` ip="192.0.2.1"`,
	} {
		if got := readOne(t, line, Options{}); !strings.Contains(got, want) {
			t.Errorf("%s: read %s, want%s", line, got, want)
		}
	}
}

// A field of the request's header has one name, whatever the format calls it.
func TestHeaderFields(t *testing.T) {
	const want = ` header.x-api-key="k1"`
	for _, line := range []string{
		`{"time":1795168800,"request":{"remote_ip":"192.0.2.1","uri":"/","headers":{"X-Api-Key":["k1"]}}}`,
		`{"time":1795168800,"req":{"remoteAddress":"192.0.2.1","url":"/","headers":{"x-api-key":"k1"}}}`,
	} {
		if got := readOne(t, line, Options{}); !strings.Contains(got, want) {
			t.Errorf("%s: read %s", line, got)
		}
	}
	entries, _ := readAll(t,
		"#Fields: date time c-ip cs(X-Api-Key) cs(Host)\n2026-11-20 10:00:00 192.0.2.1 k1 h.example\n", Options{})
	if len(entries) != 1 || !strings.Contains(entries[0], want) || !strings.Contains(entries[0], ` host="h.example"`) {
		t.Errorf("read %q", entries)
	}
}
