package h1

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
)

// FuzzHead holds what the loop takes for a request to what net/http's own parser makes of it.
func FuzzHead(f *testing.F) {
	for _, s := range oddRequests() {
		f.Add([]byte(s), 3)
	}
	for _, s := range []string{
		get("/"), get("//a?b=c", "X: y", "x:\tz "), get("/a%2Fb?", "Connection: close"), get("/", "Pragma: no-cache"),
		post("/api/v1/limit", `{"hits": 1}`, "Content-Type: application/json"),
		get("/*'()@:;=$,!&"), get("/\\"), get("/%"), get("/?%"), get("/a;b"), get("/[", "Host2: x"), ask("HEAD", "/"),
		ask("PUT", "/", "Content-Length: 999999999999999999"), ask("OPTIONS", "/"), ask("PRI", "/"), ask("CONNECT",
			"/"), ask("GETS", "/"), get("/", "Expect2: x", "HOSTS: y", "X-\u00e4: z"),
	} {
		f.Add([]byte(s), 7)
	}
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		h := readHead(data, len(data))
		if cut = max(0, min(cut, len(data))); !reflect.DeepEqual(h, readHead(data, cut)) {
			t.Fatalf("%q is another request when %d bytes come first", data, cut)
		}
		if h == nil {
			return
		}
		r, u := &http.Request{Header: http.Header{}}, new(url.URL)
		if _, ok := h.fill(r, u, nil, data); !ok {
			return
		}
		in := bufio.NewReader(bytes.NewReader(data))
		want, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("the loop serves %q, and net/http says %v", data, err)
		}
		// what http.Server does beside
		if hosts := want.Header["Host"]; len(hosts) > 1 || !httpguts.ValidHostHeader(want.Host) {
			t.Fatalf("the loop serves %q with the hosts %q", data, hosts)
		}
		for name, values := range want.Header {
			for _, v := range values {
				if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(v) {
					t.Fatalf("the loop serves %q with the field %q: %q", data, name, v)
				}
			}
		}
		if want.Header.Get("Expect") != "" || len(want.TransferEncoding) > 0 || want.ProtoMajor != 1 ||
			want.ProtoMinor != 1 {
			t.Fatalf("the loop serves %q", data)
		}
		body, _ := io.ReadAll(want.Body)
		rest, _ := io.ReadAll(in)
		if got := len(data) - h.next; int64(len(body)) != min(h.length, int64(got)) || len(body)+len(rest) != got {
			t.Fatalf("the head of %q has %d bytes, and net/http reads %d of the body and leaves %d", data, h.next,
				len(body), len(rest))
		}
		want.Body, r.Body = nil, nil
		if *want.URL != *r.URL {
			t.Fatalf("%q: the URL is %#v, want %#v", data, *r.URL, *want.URL)
		}
		want.URL, r.URL = nil, nil
		if !reflect.DeepEqual(r, want) {
			t.Fatalf("%q:\nthe loop reads    %+v\nand net/http reads %+v", data, r, want)
		}
	})
}

// FuzzServe compares the answers to any input over a connection, in two parts, with net/http's.
func FuzzServe(f *testing.F) {
	for _, s := range oddRequests() {
		f.Add([]byte(get("/")+s), 3)
	}
	for _, s := range []string{
		get("/") + ask("HEAD", "/a"), post("/", "a body") + "\r\n" + ask("DELETE", "/"),
		ask("PUT", "/", "Content-Length: 9") + "a body" + get("/"),
		post("/?unread", "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n") + get("/"),
		post("/", "x", "Connection: close") + get("/"), ask("PATCH", "/?unread", "Content-Length: 70000") +
			strings.Repeat("x", 70_000) + get("/"),
		ask("PUT", "/", "Content-Length: 1000000") + "cut off",
	} {
		f.Add([]byte(s), 40)
	}
	loop, plain := newSides(f, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "unread" {
			body, err := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%q %v", body, err)
		}
		fmt.Fprintf(w, "%s %q %q %q", r.Method, r.RequestURI, r.Host, r.Header)
	}))
	f.Fuzz(func(t *testing.T, data []byte, cut int) {
		if bytes.Contains(data, []byte("PRI ")) {
			return // begins no HTTP/2 here
		}
		cut = max(0, min(cut, len(data)))
		same(t, loop, plain, string(data[:cut]), string(data[cut:]))
	})
}

// readHead reads a head of which cut bytes come first; nil if it is none, or not whole.
func readHead(data []byte, cut int) *head {
	h := new(head)
	h.reset()
	s := h.read(data[:cut])
	if s == partial {
		s = h.read(data)
	}
	if s != whole {
		return nil
	}
	return h
}
