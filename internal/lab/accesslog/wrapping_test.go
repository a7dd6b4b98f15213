package accesslog

import (
	"fmt"
	"strings"
	"testing"
)

// A wrapping in which nothing stands is no line, and one within another is taken off, too.
func TestWrapped(t *testing.T) {
	const cri = "2026-11-20T10:00:00.5Z stdout F "
	for _, c := range []struct {
		name    string
		lines   []string
		want    string // what the last line holds, from its client on
		skipped int64
	}{
		{"nothing in a prefix", []string{cri + "#Fields: date time c-ip", cri + "2026-11-20 10:00:00 192.0.2.1", cri, cri + "2026-11-20 10:00:01 192.0.2.2"}, `ip="192.0.2.2"`, 1},
		{"blanks in a prefix", []string{cri + "  ", cri + `192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1`}, `ip="192.0.2.1" protocol="HTTP/1.1" method="GET" path="/" status="200" bytes="1"`, 1},
		{"syslog within a container", []string{cri, cri + `<34>Nov 20 10:00:00 web app: 192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1`},
			`ip="192.0.2.1" protocol="HTTP/1.1" method="GET" path="/" status="200" bytes="1"`, 1},
		{"three, one in the other", []string{`{"log":"{\"message\":\"web-1  | 192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] \\\"GET / HTTP/1.1\\\" 200 1\"}\n"}`},
			`ip="192.0.2.1" protocol="HTTP/1.1" method="GET" path="/" status="200" bytes="1"`, 0},
		{"lines with and without a prefix", []string{cri + `192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1`, cri + "hello", cri + "hello",
			`192.0.2.2 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1`}, `ip="192.0.2.2" protocol="HTTP/1.1" method="GET" path="/" status="200" bytes="1"`, 2},
		{"the time of the logger", []string{`{"log":"{\"client\":\"192.0.2.1\",\"path\":\"/\"}","time":"2026-11-20T10:00:00Z"}`}, `ip="192.0.2.1" path="/"`, 0},
	} {
		entries, skipped := readAll(t, strings.Join(c.lines, "\n")+"\n", Options{})
		if len(entries) == 0 || skipped != c.skipped || !strings.HasSuffix(dropTime(entries[len(entries)-1]), c.want) {
			t.Errorf("%s: %d lines skipped, read %q", c.name, skipped, entries)
		}
	}
}

// Where a program says much before its first request, later lines tell how the log is read.
func TestLongStart(t *testing.T) {
	var b strings.Builder
	for i := range 500 {
		fmt.Fprintf(&b, "2026-11-20T09:59:00.5Z stdout F worker %d, the next, has started\n", i)
	}
	for range 3 {
		b.WriteString(
			`2026-11-20T10:00:00.5Z stdout F 192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1` + "\n")
	}
	for _, o := range []Options{{}, {Format: Common}} {
		if entries, skipped := readAll(t, b.String(), o); len(entries) != 3 || skipped != 500 {
			t.Errorf("%s: %d entries, %d lines skipped", o.Format, len(entries), skipped)
		}
	}
}

// Of JSON in which some lines hold a request, the others are none.
func TestJSONWithoutRequests(t *testing.T) {
	const request, other = `{"time":1795168800,"req":{"method":"GET","url":"/a","remoteAddress":"192.0.2.1"}}`,
		`{"time":1795168801,"res":{"statusCode":200}}`
	r, err := NewReader(strings.NewReader(request+"\n"+other+"\n"+request+"\n"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var e Entry
	for range 2 {
		if err := r.Next(&e); err != nil || e.Get(FieldPath) == nil {
			t.Fatalf("%v: %s", err, show(&e))
		}
	}
	if f := r.Faults(); r.Skipped() != 1 || len(f) != 1 || f[0].Line != 2 || !strings.Contains(f[0].Why, "no request") {
		t.Errorf("%d skipped, faults %+v", r.Skipped(), f)
	}
	// Nor are there requests to miss where no line has one.
	if entries, _ := readAll(t, `{"time":1795168800,"tenant":"a"}`+"\n", Options{}); len(entries) != 1 {
		t.Errorf("read %q", entries)
	}
}
