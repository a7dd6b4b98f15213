package h1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"testing"

	"golang.org/x/net/http/httpguts"
)

// FuzzHead holds what the loop takes for a request to what net/http's own parser makes of it.
func FuzzHead(f *testing.F) {
	for _, s := range oddRequests() {
		f.Add([]byte(s), 3)
	}
	for _, s := range []string{
		get("/"), get("//a?b=c", "X: y", "x:\tz "), get("/a%2Fb?", "Connection: close"), get("/", "Pragma: no-cache"), post("/api/v1/limit", `{"hits": 1}`, "Content-Type: application/json"),
		get("/*'()@:;=$,!&"), get("/\\"), get("/%"), get("/?%"), get("/a;b"), get("/[", "Host2: x"), get("/", "Expect2: x", "HOSTS: y", "X-\u00e4: z"),
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
		if want.Header.Get("Expect") != "" || len(want.TransferEncoding) > 0 || want.ProtoMajor != 1 || want.ProtoMinor != 1 {
			t.Fatalf("the loop serves %q", data)
		}
		body, _ := io.ReadAll(want.Body)
		rest, _ := io.ReadAll(in)
		if got := len(data) - h.next; int64(len(body)) != min(h.length, int64(got)) || len(body)+len(rest) != got {
			t.Fatalf("the head of %q has %d bytes, and net/http reads %d of the body and leaves %d", data, h.next, len(body), len(rest))
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
