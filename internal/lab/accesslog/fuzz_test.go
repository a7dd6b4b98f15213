package accesslog

import (
	"io"
	"net/netip"
	"strings"
	"testing"
)

func fuzzLine(f *testing.F, format Format, fields []string, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if len(line) > 4096 {
			return
		}
		r, err := NewReader(strings.NewReader(string(line)), Options{Format: format, Fields: fields})
		if err != nil {
			return
		}
		var names names
		var e, back Entry
		for {
			err := r.Next(&e)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if e.Time < 0 || e.Time >= maxTime {
				t.Errorf("time %d out of range", e.Time)
			}
			size := 0
			for _, x := range e.Fields {
				if len(x.Value) == 0 {
					t.Errorf("field %q is empty", x.Name)
				}
				size += len(x.Value)
			}
			if size > 4*len(line)+64 {
				t.Errorf("%d bytes of values from a line of %d", size, len(line))
			}
			names.decode(names.encode(nil, &e), &back)
			back.Time = e.Time
			if show(&e) != show(&back) {
				t.Errorf("encoded and decoded: %s, want %s", show(&back), show(&e))
			}
		}
		if format == JSON {
			for _, l := range strings.Split(string(line), "\n") {
				checkJSON(t, []byte(l))
			}
		}
	})
}

func FuzzLineCommon(f *testing.F) {
	fuzzLine(f, Common, nil,
		`192.0.2.1 - ada [25/Oct/2015:04:11:25 +0100] "GET /a?b=c HTTP/1.1" 200 24323 "http://x/" "M\"o\x41\\"`,
		`a - - [01/Jan/2024:00:00:00 +0000] "GET http://h/p HTTP/1.1" 200 -`, `[::1]:8 - - [01/Jan/2024:00:00:00 +0000] "-" - -`, "\x00", `a b c [`)
}

func FuzzLineJSON(f *testing.F) {
	fuzzLine(f, JSON, nil,
		`{"ts":1646861401.5,"request":{"remote_ip":"10.0.0.1","uri":"/caf\u00e9","headers":{"User-Agent":["y"]}},"status":200}`,
		`{"time":"2024-01-01T00:00:00Z","request":"GET / HTTP/1.1","a":[[{}],1]}`, `{"a":"\ud83d\ude00\/"}`, `{`, `{"a":1e5,"b":-0.1}`)
}

func FuzzLineCSV(f *testing.F) {
	fuzzLine(f, CSV, nil, "time,ip,path\n1700000000,\"a\"\"b\",/x\n", "1700000000,GET,http://h?x,1.2.3.4:5",
		"time,ip\n1700000000,:0", `"`, `"a"b,`, `"",""""`)
}

func FuzzLineTSV(f *testing.F) {
	fuzzLine(f, TSV, []string{"time", "ip", "-", "path"}, "1700000000\tx\ty\t/z", "host\tx\n2024-01-01 00:00:00.5\tx",
		"\t\t\t")
}

func FuzzLineTemplate(f *testing.F) {
	format, err := ParseFormat(
		`$remote_addr:$remote_port $http_x_forwarded_for [$time_local] "$request" $status $http_user_agent rt=$request_time $uri$is_args$args "$http_referer"`)
	if err != nil {
		f.Fatal(err)
	}
	fuzzLine(f, format, nil,
		`192.0.2.1:80 192.0.2.9, 10.0.0.1 [25/Oct/2015:04:11:25 +0100] "GET /a "b HTTP/1.1" 200 curl/8 x rt=0.1 /a?b "-"`,
		`2001:db8::1:80 - [25/Oct/2015:04:11:25.5 +0100] "\x16" 400 - rt=- - "a\"b"`, `:`, `a: b [`)
}

func FuzzLineHAProxy(f *testing.F) {
	format, err := ParseFormat("haproxy")
	if err != nil {
		f.Fatal(err)
	}
	fuzzLine(f, format, nil,
		`Nov 20 10:00:00 lb1 haproxy[1]: 192.0.2.1:4 [06/Feb/2009:12:14:14.655] a b/c 1/2/3/4/5 200 6 - - ---- 1/1/1/1/0 0/0 {x "y} {} "GET / HTTP/1.1"`,
		`2001:db8::1:4 [06/Feb/2009:12:14:14.655] a b/<NOSRV> -1/-1/-1/-1/5 400 0 - - PR-- 1/1/1/1/0 0/0 "<BADREQ>"`)
}

func FuzzLineW3C(f *testing.F) {
	fuzzLine(f, W3C, nil,
		"#Fields: date time c-ip cs-method cs-uri-stem cs-uri-query cs(User-Agent)\n2024-01-01 00:00:00 192.0.2.1 GET /a b=c M+1",
		"#Fields: date time c-ip cs(User-Agent)\n2024-01-01\t00:00:00\t192.0.2.1\tM%2520%zz%4", "#Fields:", "# ", "x y")
}

func FuzzLineSpaced(f *testing.F) {
	fuzzLine(f, columns, nil,
		`2024-01-01 00:00:00 +0100 192.0.2.1, 10.0.0.1 "GET /a "b HTTP/1.1" 200`, `[25/Oct/2015:04:11:25 +0100] 192.0.2.1 GET /a 200`,
		`02/Jan/2024 00:00:00,5 [::1]:80 - "`, `2024/01/01`, `, , ,`)
}

func FuzzLineVhost(f *testing.F) {
	fuzzLine(f, Vhost, nil, `www.example.com:443 192.0.2.1 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1`,
		`a b `)
}

func FuzzLineForwarded(f *testing.F) {
	fuzzLine(f, Forwarded, nil,
		`192.0.2.1, 10.0.0.1 10.0.0.2 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1 "-" "-" "192.0.2.1, ::1"`, `-, ,`)
}

// FuzzGuess reads anything, in whatever way is found out: prefixes, objects around lines and all.
func FuzzGuess(f *testing.F) {
	fuzzLine(f, Guess, nil,
		`<34>1 2003-10-11T22:14:15.003Z host app 1 - [a b="c\"]"] 192.0.2.1 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1`,
		`<34>Oct 11 22:14:15 host app: 2024-01-01T00:00:00Z 192.0.2.1 GET / 200`, `web-1  | [pod/a/b] {"a":1}`,
		`2016-10-06T00:17:09.669794202Z stdout F {"log":"{\"message\":\"192.0.2.1 - - [01/Jan/2024:00:00:00 +0000] \\\"GET / HTTP/1.1\\\" 200 1\"}"}`,
		`{"time":1700000000,"client":["192.0.2.1","::1",{"a":1},3],"x_forwarded_for":"a,b"}`, "#Fields: a\n1", "<1>", "[pod/ ", " | ")
}

// FuzzFormat reads any words of a format, and a line by them.
func FuzzFormat(f *testing.F) {
	for _, words := range []string{`$remote_addr - $remote_user [$time_local] "$request"`, `%h %l %u %t \"%r\" %>s %b`,
		`%!200,304{X}i%{c}a %{%d %T}t.%{msec_frac}t`,
		`[%START_TIME(%s.%3f)%] %REQ(X?:PATH):10%`, `%ci:%cp [%tr] %{+Q}r %[req.hdr(x),lower]\ %%`, `log_format a escape=json '$a' '$msec';`, `LogFormat "%t" x`, `${time_local}$uri`, `%`, `$`} {
		f.Add(words, `192.0.2.1 - - [01/Jan/2024:00:00:00 +0000] "GET / HTTP/1.1" 200 1`)
	}
	f.Fuzz(func(t *testing.T, words, line string) {
		if len(words) > 1024 || len(line) > 4096 {
			return
		}
		format, err := ParseFormat(words)
		if err != nil {
			return
		}
		r, err := NewReader(strings.NewReader(line), Options{Format: format})
		if err != nil {
			return
		}
		var e Entry
		for err == nil {
			if err = r.Next(&e); err != nil {
				break
			}
			for _, x := range e.Fields {
				if len(x.Value) == 0 || x.Name == "" {
					t.Errorf("field %q is %q", x.Name, x.Value)
				}
			}
		}
		if err != io.EOF {
			t.Error(err)
		}
	})
}

// FuzzUnwrap takes off lines what may stand around them.
func FuzzUnwrap(f *testing.F) {
	for _, line := range []string{`<34>1 - h a - - - x`, `<34>Oct 11 22:14:15 h a: x`,
		`2016-10-06T00:17:09Z stdout P x`, `2016-10-06T00:17:09Z s x`, `a | x`, `[pod/a] x`,
		`{"log":"x y\n","time":"2016-10-06T00:17:09Z"}`, `<1>1 `, `<34>1 a b c d e [`, `[pod/`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if len(line) == 0 {
			return
		}
		for _, kind := range wrapKinds {
			rest, when, ok := kind.make().unwrap(line)
			if ok && len(rest)+len(when) > 3*len(line) {
				t.Errorf("%s: %q and %q of %q", kind.name, rest, when, line)
			}
		}
	})
}

// FuzzClient settles who a client is.
func FuzzClient(f *testing.F) {
	f.Add([]byte("192.0.2.1:80"), []byte("unknown, [2001:db8::1]:80, "))
	f.Add([]byte("::ffff:192.0.2.1"), []byte(","))
	f.Fuzz(func(t *testing.T, peer, list []byte) {
		for _, find := range []func(peer, list string) netip.Addr{nil, nobody} {
			e := &Entry{Fields: []Field{{FieldIP, client(peer)}, {FieldForwarded, list}}}
			c := clients{find: find}
			c.settle(e)
			isClient(e.Get(FieldIP))
			isNoClient(e.Get(FieldIP))
		}
	})
}
