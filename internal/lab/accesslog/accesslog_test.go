package accesslog

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// show prints an entry in one line, for comparison.
func show(e *Entry) string {
	var b strings.Builder
	b.WriteString(time.UnixMicro(e.Time).UTC().Format(time.RFC3339Nano))
	for _, f := range e.Fields {
		fmt.Fprintf(&b, " %s=%q", f.Name, f.Value)
	}
	return b.String()
}

// readAll reads a log to its end.
func readAll(t *testing.T, text string, o Options) (entries []string, skipped int64) {
	t.Helper()
	r, err := NewReader(strings.NewReader(text), o)
	if err != nil {
		t.Fatalf("NewReader: %v", err)
	}
	var e Entry
	for {
		switch err := r.Next(&e); err {
		case nil:
			entries = append(entries, show(&e))
		case io.EOF:
			if int(r.Entries()) != len(entries) {
				t.Errorf("Entries() = %d, but %d were read", r.Entries(), len(entries))
			}
			return entries, r.Skipped()
		default:
			t.Fatalf("Next: %v", err)
		}
	}
}

func TestFormats(t *testing.T) {
	tests := []struct {
		name    string
		text    string
		o       Options
		want    []string
		skipped int64
	}{
		{"combined", `192.0.2.1 - ada [25/Oct/2015:04:11:25 +0100] "GET /a?b=c HTTP/1.1" 200 24323 "http://x/" "Mozilla/5.0 (X; \"quoted\")"` + "\n",
			Options{},
			[]string{`2015-10-25T03:11:25Z ip="192.0.2.1" user="ada" protocol="HTTP/1.1" method="GET" path="/a?b=c" status="200" bytes="24323" header.referer="http://x/" header.user-agent="Mozilla/5.0 (X; \"quoted\")"`}, 0},
		{"common without a final line break, CRLF, empty lines", "\r\n\nhost.example - - [01/Aug/1995:00:00:01 -0400] \"HEAD / HTTP/1.0\" 304 -\r\n  \r\na - - [01/Aug/1995:00:00:02 -0400] \"GET /x\" 200 5",
			Options{}, []string{
				`1995-08-01T04:00:01Z ip="host.example" protocol="HTTP/1.0" method="HEAD" path="/" status="304"`,
				`1995-08-01T04:00:02Z ip="a" method="GET" path="/x" status="200" bytes="5"`}, 0},
		{"a user with a space, a path with a space, IPv6 with port", `[2001:db8::1]:4711 id ada lovelace [29/Feb/2024:23:59:60 +0000] "GET /a b c HTTP/2.0" 200 1`,
			Options{},
			[]string{`2024-03-01T00:00:00Z ip="2001:db8::1" ident="id" user="ada lovelace" protocol="HTTP/2.0" method="GET" path="/a b c" status="200" bytes="1"`}, 0},
		{"absolute target",
			`1.2.3.4:80 - - [01/Jan/2024:00:00:00 +0000] "GET http://u@Example.com:81/p/q?x HTTP/1.1" 200 1` + "\n" +
				`1.2.3.4 - - [01/Jan/2024:00:00:00 +0000] "GET http://example.com HTTP/1.1" 200 1`,
			Options{}, []string{
				`2024-01-01T00:00:00Z ip="1.2.3.4" protocol="HTTP/1.1" method="GET" path="/p/q?x" host="Example.com:81" status="200" bytes="1"`,
				`2024-01-01T00:00:00Z ip="1.2.3.4" protocol="HTTP/1.1" method="GET" path="/" host="example.com" status="200" bytes="1"`}, 0},
		{"no request line, a TLS handshake, a stray quote",
			`1.2.3.4 - - [01/Jan/2024:00:00:00 +0000] "-" 408 -` + "\n" +
				`1.2.3.4 - - [01/Jan/2024:00:00:01 +0000] "\x16\x03\x01" 400 0 "-" "-"` + "\n" +
				`1.2.3.4 - - [01/Jan/2024:00:00:02 +0000] "GET /"x" HTTP/1.1" 200 7 "unfinished`,
			Options{}, []string{
				`2024-01-01T00:00:00Z ip="1.2.3.4" status="408"`,
				`2024-01-01T00:00:01Z ip="1.2.3.4" status="400" bytes="0"`,
				`2024-01-01T00:00:02Z ip="1.2.3.4" protocol="HTTP/1.1" method="GET" path="/\"x\"" status="200" bytes="7"`}, 0},
		{"damaged lines", `1.2.3.4 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1` + "\n" +
			"nonsense\n" +
			`1.2.3.4 - - [31/Feb/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1` + "\n" +
			`1.2.3.4 - - [01/Jan/2024:00:00:00 +0000] "GET / HT` + "\n" +
			"1.2.3.4 - - [01/Jan/2024:00:00:00 +0000] \"GET /\x00 HTTP/1.1\" 200 1\n" +
			strings.Repeat("A", 1<<20) + "\n" +
			`1.2.3.4 - - [01/Jan/2024:00:00:09 +0000] "GET / HTTP/1.1" 200 1`,
			Options{}, []string{
				`2024-01-01T00:00:00Z ip="1.2.3.4" protocol="HTTP/1.1" method="GET" path="/" status="200" bytes="1"`,
				`2024-01-01T00:00:09Z ip="1.2.3.4" protocol="HTTP/1.1" method="GET" path="/" status="200" bytes="1"`}, 5},
		{"JSON of nginx", `{"time_iso8601":"2024-01-01T00:00:00+02:00","remote_addr":"192.0.2.1","request":"POST /a?x=1 HTTP/1.1","status":201,"http_user_agent":"curl/8","tenant":"acme"}`,
			Options{},
			[]string{`2023-12-31T22:00:00Z ip="192.0.2.1" request="POST /a?x=1 HTTP/1.1" status="201" header.user-agent="curl/8" tenant="acme" protocol="HTTP/1.1" method="POST" path="/a?x=1"`}, 0},
		{"JSON of Caddy", `{"level":"info","ts":1646861401.5241024,"request":{"remote_ip":"10.0.0.1","client_ip":"192.0.2.7","proto":"HTTP/2.0","method":"GET","host":"localhost","uri":"/caf\u00e9\n","headers":{"User-Agent":["curl/7","x"],"Accept":[]}},"status":200,"size":2326,"ok":true,"none":null}`,
			Options{},
			[]string{`2022-03-09T21:30:01.524102Z level="info" request.remote_ip="10.0.0.1" ip="192.0.2.7" protocol="HTTP/2.0" method="GET" host="localhost" path="/café\n" header.user-agent="curl/7" status="200" bytes="2326" ok="true"`}, 0},
		{"JSON with named fields", `{"at":1700000000123,"peer":{"addr":"a"},"ip":"other","u":"/x"}` + "\n{\"at\":1}x\n{\"at\":}\n[]\n{\"peer\":1}",
			Options{Format: JSON, Fields: []string{"time=at", "ip=peer.addr", "path=u"}},
			[]string{`2023-11-14T22:13:20.123Z ip="a" ip="other" path="/x"`}, 4},
		{"TSV with the header of the NASA log", "host\tlogname\ttime\tmethod\turl\tresponse\tbytes\nin24.inetnebr.com\t-\t807249601\tGET\t/a.txt\t200\t1839\t\t\n",
			Options{},
			[]string{`1995-08-01T04:00:01Z ip="in24.inetnebr.com" method="GET" path="/a.txt" status="200" bytes="1839"`}, 0},
		{"TSV without header", "807249601000\tin24.inetnebr.com\tGET\t/a.txt\t200\t1839\n807249607000\tuplherc.upl.com\tGET\t/\t304\t0\n",
			Options{}, []string{
				`1995-08-01T04:00:01Z ip="in24.inetnebr.com" method="GET" path="/a.txt" status="200" bytes="1839"`,
				`1995-08-01T04:00:07Z ip="uplherc.upl.com" method="GET" path="/" status="304" bytes="0"`}, 0},
		{"CSV with quotes, named columns and a header", "When,Who,What\n\"2024-01-01 00:00:00.5\",\"a \"\"b\"\" c\",/x\n2024-01-01T00:00:01Z,d,\"/y,z\"\n2024-01-01T00:00:01Z,\"d\nbad,2\n",
			Options{Format: CSV, Fields: []string{"time", "user", "path"}}, []string{
				`2024-01-01T00:00:00.5Z user="a \"b\" c" path="/x"`,
				`2024-01-01T00:00:01Z user="d" path="/y,z"`}, 2},
		{"CSV, columns by number and by header, others by their own names", "TIMESTAMP,ContextTokens,GeneratedTokens,peer\n2023-11-16 18:17:03.9799600,4808,10,p\n",
			Options{Fields: []string{"ip=peer", "cost=2"}},
			[]string{`2023-11-16T18:17:03.97996Z cost="4808" GeneratedTokens="10" ip="p"`}, 0},
		{"CSV, skipped columns", "1,1700000000,x,9\n", Options{Format: CSV, Fields: []string{"-", "time", "ip", ""}}, []string{`2023-11-14T22:13:20Z ip="x"`}, 0},
		{"byte order mark", "\xef\xbb\xbftime,ip\n1700000000,x\n", Options{}, []string{`2023-11-14T22:13:20Z ip="x"`}, 0},
		{"empty", "", Options{}, nil, 0},
		{"only empty lines", "\n\n \r\n", Options{}, nil, 0},
		{"a long line first", strings.Repeat("x", 300<<10) + "\n" + `1.2.3.4 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1` + "\n", Options{},
			[]string{`2024-01-01T00:00:00Z ip="1.2.3.4" protocol="HTTP/1.1" method="GET" path="/" status="200" bytes="1"`}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, skipped := readAll(t, tt.text, tt.o)
			// The time keeps a place in formats with names; it is of no interest here.
			for i := range got {
				var words []string
				for _, w := range strings.SplitAfter(got[i], "\" ") {
					if !strings.HasPrefix(w, "time=") {
						words = append(words, w)
					}
				}
				got[i] = dropTime(strings.Join(words, ""))
			}
			if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
				t.Errorf("read\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
			}
			if skipped != tt.skipped {
				t.Errorf("skipped %d lines, want %d", skipped, tt.skipped)
			}
		})
	}
}

// dropTime removes the field time= from a shown entry.
func dropTime(s string) string {
	i := strings.Index(s, ` time="`)
	if i < 0 {
		return s
	}
	end := strings.IndexByte(s[i+7:], '"')
	return s[:i] + s[i+7+end+1:]
}

func TestOptionErrors(t *testing.T) {
	clf := `1.2.3.4 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1`
	tests := []struct {
		name, text string
		o          Options
		want       string
	}{
		{"no format fits", "hello world\n", Options{}, `cannot tell the format of the log from its first line "hello world"`},
		{"fields on a combined log", clf, Options{Fields: []string{"time"}}, "--fields names columns or JSON keys"},
		{"fields without time", "1,2\n", Options{Fields: []string{"ip", "path"}}, "has no time"},
		{"mixed forms", "1,2\n", Options{Fields: []string{"time", "ip=2"}}, "mixes plain names"},
		{"half an entry", "1,2\n", Options{Fields: []string{"time="}}, `"time=": expected field=key`},
		{"no such column", "time,b\n1700000000,2\n", Options{Fields: []string{"ip=c"}}, "no column of that name"},
		{"no time column", "a,b\nx,y\n", Options{}, "cannot tell which column"},
		{"column 0", "time,b\n1700000000,2\n", Options{Fields: []string{"ip=0"}}, "columns count from 1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewReader(strings.NewReader(tt.text), tt.o)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("NewReader error = %v, want one with %q", err, tt.want)
			}
		})
	}
	if _, err := ParseFormat("xml"); err == nil || !strings.Contains(err.Error(), "expected common") {
		t.Errorf("ParseFormat(xml) = %v", err)
	}
	for _, n := range formatNames {
		if g, err := ParseFormat(n.format.String()); err != nil || g != n.format {
			t.Errorf("ParseFormat(%q) = %v, %v", n.format.String(), g, err)
		}
	}
}

func TestTime(t *testing.T) {
	var p timeParser
	for s, want := range map[string]string{
		"1700000000":                    "2023-11-14T22:13:20Z",
		"1700000000.25":                 "2023-11-14T22:13:20.25Z",
		"1700000000123":                 "2023-11-14T22:13:20.123Z",
		"1700000000123.5":               "2023-11-14T22:13:20.1235Z",
		"1700000000123456":              "2023-11-14T22:13:20.123456Z",
		"1700000000123456789":           "2023-11-14T22:13:20.123456Z",
		"0":                             "1970-01-01T00:00:00Z",
		"2024-02-29T23:59:59Z":          "2024-02-29T23:59:59Z",
		"2024-02-29t23:59:59.1234567z":  "2024-02-29T23:59:59.123456Z",
		"2024-01-01 00:00:00,5":         "2024-01-01T00:00:00.5Z",
		"2024-01-01T00:00:00+05:30":     "2023-12-31T18:30:00Z",
		"2024-01-01T00:00:00.000-0800":  "2024-01-01T08:00:00Z",
		"2024-01-01 00:00:00 +0000 UTC": "2024-01-01T00:00:00Z",
		"[01/Jan/2024:00:00:00 +0100]":  "2023-12-31T23:00:00Z",
		"01/Mar/2000:00:00:00 +0000":    "2000-03-01T00:00:00Z",
		"":                              "", "-": "", "x": "", "-5": "", "1.": "", ".5": "", "1e9": "", "99999999999999999999": "",
		"2023-02-29T00:00:00Z": "", "2023-13-01T00:00:00Z": "", "2024-01-01T24:00:00Z": "", "2024-01-01T00:00:00": "2024-01-01T00:00:00Z",
		"2024-01-01T00:00:61Z": "", "2024-01-01T00:00:00.Z": "", "2024-01-01T00:00:00+1": "", "2024-01-01X00:00:00Z": "",
		"01/Foo/2024:00:00:00 +0000": "", "01/Jan/2024:00:00:00": "2024-01-01T00:00:00Z", "01/Jan/2024:00:60:00 +0000": "", "01/anF/2024:00:00:00 +0000": "",
		"1969-12-31T23:59:59Z": "", "2200-01-01T00:00:00Z": "", "9999-01-01T00:00:00Z": "",
	} {
		// Twice: the second time from memory.
		for range 2 {
			us, ok := p.parse([]byte(s))
			got := ""
			if ok {
				got = time.UnixMicro(us).UTC().Format(time.RFC3339Nano)
			}
			if got != want {
				t.Errorf("parse(%q) = %q, want %q", s, got, want)
			}
		}
	}
	// Every day, and a walk through times, against the standard library.
	for d := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC); d.Year() < 2200; d = d.Add(25*time.Hour + 61*time.Second) {
		for _, layout := range []string{"02/Jan/2006:15:04:05 -0700", time.RFC3339, "2006-01-02 15:04:05"} {
			if us, ok := p.parse([]byte(d.Format(layout))); !ok || us != d.UnixMicro() {
				t.Fatalf("parse(%s) = %d, %v, want %d", d.Format(layout), us, ok, d.UnixMicro())
			}
		}
	}
}

// The scanner accepts exactly the objects that encoding/json accepts.
func checkJSON(t *testing.T, line []byte) {
	s := newJSONScanner(nil, false)
	var e Entry
	s.b, s.i, s.e = line, 0, &e
	s.space()
	got := s.object(0)
	s.space()
	got = got && s.i == len(line)
	var v map[string]any
	if want := json.Unmarshal(line, &v) == nil && v != nil; got != want && depth(line) < maxDepth {
		t.Errorf("accepts %q: %v, encoding/json %v", line, got, want)
	}
}

func depth(line []byte) int {
	return strings.Count(string(line), "{") + strings.Count(string(line), "[")
}

func TestJSONAccepts(t *testing.T) {
	for _, s := range []string{`{}`, `{"a":1}`, `{"a":01}`, `{"a":-}`, `{"a":1.}`, `{"a":1e}`, `{"a":1e+5}`,
		`{"a":[1,{"b":[]}]}`, `{"a":[1,]}`, `{"a":tru}`,
		`{"a":"\ud83d\ude00"}`, `{"a":"\ud83d"}`, `{"a":"\ud83d\u0041"}`, `{"a":"\x"}`, `{"a":"` + "\t" + `"}`, `{"a" : 1 , "b":null}`, `{"a":1,}`, `{a:1}`, `{"a":1}}`, ` {"a":1} `, `{"a":"\u00g0"}`, `{"a"`, `{"a":"\`} {
		checkJSON(t, []byte(s))
	}
	deep := strings.Repeat(`{"a":`, 100000) + "1" + strings.Repeat("}", 100000)
	s := newJSONScanner(nil, false)
	if s.scan([]byte(deep), &Entry{}) {
		t.Error("a line 100,000 objects deep parses")
	}
}

// nobody is a Client that believes nobody.
func nobody(peer, list string) (none netip.Addr) { return none }

func TestNoAllocation(t *testing.T) {
	for name, line := range map[string]string{
		"common": `192.0.2.1 - - [25/Oct/2015:04:11:25 +0100] "GET /a\"b HTTP/1.1" 200 24323 "http://x/" "Mozilla/5.0"`,
		"json":   `{"ts":1646861401.5,"request":{"remote_ip":"10.0.0.1","uri":"/caf\u00e9","headers":{"X":["y"]}},"status":200}`,
		"csv":    `1700000000,"a""b",GET,/x`,
		"tsv":    "1700000000\tab\tGET\t/x",
		"vhost":  `www.example.com:443 192.0.2.1 - - [25/Oct/2015:04:11:25 +0100] "GET /a HTTP/1.1" 200 1 "-" "-" "10.0.0.1, 10.0.0.2"`,
		"envoy":  `[2024-01-01T00:00:00.5Z] "GET /a HTTP/2" 200 - 0 1 2 3 "192.0.2.1,10.0.0.1" "a\"b" "id" "h" "10.0.0.1:1"`,
		"spaced": `2024-01-01 00:00:00 192.0.2.1 "GET /a HTTP/1.1" 200`,
		"cri":    `2024-01-01T00:00:00.5Z stdout F 192.0.2.1 - - [25/Oct/2015:04:11:25 +0100] "GET /a HTTP/1.1" 200 1`,
		"docker": `{"log":"192.0.2.1 - - [25/Oct/2015:04:11:25 +0100] \"GET /a HTTP/1.1\" 200 1\n","time":"2024-01-01T00:00:00.5Z"}`,
		"w3c":    "2024-01-01 00:00:00 192.0.2.1 GET /a b=c M+1",
	} {
		log := strings.Repeat(line+"\n", 3000)
		if name == "w3c" {
			log = "#Fields: date time c-ip cs-method cs-uri-stem cs-uri-query cs(User-Agent)\n" + log
		}
		alone, err := NewReader(strings.NewReader(log), Options{Client: nobody})
		if err != nil {
			t.Fatal(err)
		}
		var read Entry
		for range 1000 {
			if err := alone.Next(&read); err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(1500, func() {
			if err := alone.Next(&read); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %.2f allocations a line that is read, want 0", name, n)
		}
		r, err := NewReader(strings.NewReader(log), Options{Client: nobody})
		if err != nil {
			t.Fatal(err)
		}
		var e Entry
		o := ordered{r: r, window: second}
		for range 1000 {
			if err := o.next(&e); err != nil {
				t.Fatal(err)
			}
		}
		if n := testing.AllocsPerRun(1500, func() {
			if err := o.next(&e); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %.2f allocations a line, want 0", name, n)
		}
	}
}

// Missing reports a field that is in no line, even if another name stands in for it.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		name, text string
		o          Options
		want       string
	}{
		{"another key stands in", `{"ts":1704067200,"ip":"a"}`, Options{Fields: []string{"time=when", "ip=address"}}, "time=when ip=address"},
		{"the key is there", `{"ts":1704067200,"at":1,"c":{"ip":"a"}}`, Options{Fields: []string{"time=at", "ip=c.ip"}}, ""},
		{"without a value", `{"at":1704067200,"who":null,"path":""}`, Options{Fields: []string{"time=at", "user=who", "path=path"}}, ""},
		{"in an object of an array", `{"at":1704067200,"a":[{"ip":"a"}]}`, Options{Fields: []string{"time=at", "ip=a.ip"}}, "ip=a.ip"},
		{"keys by their own name", `{"time":1704067200,"client_ip":"a"}`, Options{Format: JSON, Fields: []string{"time", "ip", "-"}}, "ip"},
		{"columns", "1704067200,a", Options{Fields: []string{"time", "-", "path"}}, "path"},
		{"a column's number", "time,client_ip\n1704067200,a", Options{Fields: []string{"time=1", "ip=3"}}, "ip=3"},
		{"nothing", "", Options{Fields: []string{"time=at"}}, "time=at"},
		{"nobody asked", `{"ts":1704067200}`, Options{}, ""},
	} {
		r, err := NewReader(strings.NewReader(c.text), c.o)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var e Entry
		for err == nil {
			err = r.Next(&e)
		}
		if got := strings.Join(r.Missing(), " "); err != io.EOF || got != c.want {
			t.Errorf("%s: missing %q, want %q (%v)", c.name, got, c.want, err)
		}
	}
}
