package upstream

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// said is a connection on which a server has said what it has to say: first in one piece, the rest
// in another.
type said struct {
	net.Conn
	rest  []byte
	first int
}

func (s *said) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	n := len(s.rest)
	if s.first > 0 {
		n = min(n, s.first)
		s.first = 0
	}
	n = copy(p, s.rest[:n])
	s.rest = s.rest[n:]
	return n, nil
}

func (*said) SetDeadline(time.Time) error { return nil }
func (*said) Close() error                { return nil }

// responseTo is the answer to a request, of which the first bytes have come.
func responseTo(method string, data []byte, first int) *Response {
	c := &conn{client: &Client{}, Conn: &said{rest: data, first: first}, ctx: context.Background(), limit: MaxHeader}
	c.in = newReader(c)
	c.response = Response{conn: c, method: method, keep: true}
	_, _ = c.in.Peek(1)
	return &c.response
}

var responses = []string{
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello",
	"HTTP/1.1 200 OK\r\nServer: s\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\nX-T: t\r\n\r\nHTTP/1.1 200 OK",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nok\r\n0\r\nX-T: t\r\n\r\n",
	"HTTP/1.1 204 No Content\r\nx-lower: v \t\r\nX-Lower: w\r\n\r\n",
	"HTTP/1.1 304 Not Modified\nEtag: \"x\"\nPragma: no-cache\n\n",
	"HTTP/1.1 200 OK\r\nConnection: close\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nKeep-Alive: 5\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nX-Fold: a\r\n b\r\n\r\n",
	"HTTP/1.1 200 OK\r\nConnection: X-Mine, close\r\nX-Mine: a\r\nContent-Length: 2\r\n\r\nokay",
	"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\nrest",
	"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nokay",
	"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
	"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
}

// FuzzResponse: a response is read as http.ReadResponse reads it, to the same byte, or not at all,
// whatever a server says and in whatever pieces it comes.
func FuzzResponse(f *testing.F) {
	for _, seed := range responses {
		f.Add([]byte(seed), false, uint16(0))
		f.Add([]byte(seed), true, uint16(30))
	}
	f.Fuzz(func(t *testing.T, data []byte, head bool, first uint16) {
		method := "GET"
		if head {
			method = "HEAD"
		}
		got, res := answer{}, responseTo(method, data, int(first))
		var err error
		for got.status < 200 && err == nil {
			got.header = http.Header{}
			if got.status, err = res.Header(got.header); err != nil && len(got.header) > 0 {
				t.Errorf("a header was left after %v", err)
			}
		}
		var body bytes.Buffer
		if err == nil {
			err = res.Copy(&body, nil)
			got.trailer, _ = res.Trailer()
		}
		want, rest, wantErr := oracle(method, data)
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%v, but http.ReadResponse: %v", err, wantErr)
		}
		if res.keep && res.ended && err != nil {
			t.Errorf("the connection is kept after %v", err)
		}
		if err != nil {
			return
		}
		removeHopByHop(want.Header)
		if !maps.EqualFunc(want.Header, without(got.header, "Trailer"), slices.Equal) || got.status != want.StatusCode {
			t.Errorf("%d %q, want %d %q", got.status, got.header, want.StatusCode, want.Header)
		}
		all, _ := io.ReadAll(want.Body)
		if body.String() != string(all) || !maps.EqualFunc(got.trailer, want.Trailer, slices.Equal) {
			t.Errorf("%q %q, want %q %q", body.Bytes(), got.trailer, all, want.Trailer)
		}
		if left, _ := io.ReadAll(res.conn.in); !bytes.Equal(left, rest) {
			t.Errorf("%q is left, want %q", left, rest)
		}
		if kept := res.keep && res.ended; kept &&
			(want.Close || !head && want.ContentLength < 0 && want.TransferEncoding == nil &&
				want.Body != http.NoBody) {
			t.Errorf("the connection is kept after an answer that ends it")
		}
	})
}

func without(h http.Header, name string) http.Header {
	h = maps.Clone(h)
	delete(h, name)
	return h
}

// oracle is what http.ReadResponse reads, with all of its body, and what follows it.
func oracle(method string, data []byte) (res *http.Response, rest []byte, err error) {
	in := newReader(bytes.NewReader(data))
	for {
		if res, err = http.ReadResponse(in, &http.Request{Method: method}); err != nil {
			return nil, nil, err
		}
		switch {
		case res.StatusCode == 101 || res.StatusCode < 100:
			return nil, nil, http.ErrNotSupported // nobody asked for that
		case res.StatusCode < 200:
			continue
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return nil, nil, err
		}
		if res.Body != http.NoBody {
			res.Body = io.NopCloser(bytes.NewReader(body))
		}
		rest, _ = io.ReadAll(in)
		return res, rest, nil
	}
}

// FuzzPlainHeader: what plainHeader accepts of a response, http.ReadResponse reads as the same
// header, and what it does not accept it leaves as it was.
func FuzzPlainHeader(f *testing.F) {
	for _, seed := range responses {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, head bool) {
		method := "GET"
		if head {
			method = "HEAD"
		}
		r := responseTo(method, data, 0)
		h := http.Header{}
		status, ok := r.plainHeader(h)
		if !ok {
			if len(h) > 0 || r.conn.in.Buffered() != min(len(data), readBuffer) {
				t.Fatalf("%v is left, and %d bytes", h, r.conn.in.Buffered())
			}
			return
		}
		rest := newReader(bytes.NewReader(data))
		want, err := http.ReadResponse(rest, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("http.ReadResponse: %v", err)
		}
		removeHopByHop(want.Header)
		if !maps.EqualFunc(h, want.Header, slices.Equal) {
			t.Errorf("%q, want %q", h, want.Header)
		}
		length := want.ContentLength
		if want.Body == http.NoBody {
			length = 0
		}
		chunked := want.Body != http.NoBody && slices.Contains(want.TransferEncoding, "chunked")
		if status != want.StatusCode || r.chunked != chunked || r.length != length || r.keep == want.Close {
			t.Errorf("%d, chunked %v, length %d, kept %v; want %d %v %d %v", status, r.chunked, r.length, r.keep,
				want.StatusCode, want.TransferEncoding, length, !want.Close)
		}
		left, err := io.ReadAll(r.conn.in)
		if err != nil {
			t.Fatal(err)
		}
		if head := len(data) - len(left); !bytes.HasSuffix(data[:head], []byte("\n")) ||
			rest.Buffered() < len(data)-head && len(data) < readBuffer {
			t.Errorf("the header ends at %d", head)
		}
	})
}

// FuzzRequest: whatever is written, what goes over the wire is one request, and that one.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "shop.example", "/a/b", "?c=d", "X-A", "b", "c", "")
	f.Add("POST", "x", "/", "", "X-A", "b", "", "body")
	f.Add("GET /x HTTP/1.1", "x", "/", "", "X-A", "b", "", "")
	f.Add("GET", "x\r\nX-B: c", "/a b", "", "X-A", "b\r\nX-B: c", "", "")
	f.Add("POST", "x", "/", "\r\n\r\nGET / HTTP/1.1", "X A", "b", "", "")
	f.Add("PUT", "x", "*", "", "Transfer-Encoding", "chunked", "", "0\r\n\r\n")
	f.Add("GET", "x", "/", "", "content-length", "5", "", "")
	f.Add("OPTIONS", "x:80", "*", "", "Host", "y", "\t", "")
	f.Fuzz(func(t *testing.T, method, host, target, query, name, value, more, body string) {
		q := NewRequest()
		defer q.Free()
		q.Begin(method, host, target, query)
		q.Field(name, value)
		q.Field("X-Several", value, more)
		q.End(int64(len(body)))
		if body != "" {
			if err := q.ReadBody(strings.NewReader(body)); (err == nil) != q.OK() {
				t.Fatalf("ok %v, but the body: %v", q.OK(), err)
			}
		}
		if q.OK() != q.complete() {
			t.Fatalf("ok %v, complete %v", q.OK(), q.complete())
		}
		if !q.OK() {
			return
		}
		in := newReader(bytes.NewReader(q.Bytes()))
		got, err := http.ReadRequest(in)
		if err != nil {
			// The target may be one that no server reads; nothing follows it for all that.
			if line, _, _ := strings.Cut(string(q.Bytes()), "\r\n"); line != method+" "+target+query+" HTTP/1.1" {
				t.Fatalf("%q: %v", q.Bytes(), err)
			}
			return
		}
		all, err := io.ReadAll(got.Body)
		if err != nil || string(all) != body || in.Buffered() > 0 {
			t.Errorf("%q holds another body: %q, %v, and %d bytes more", q.Bytes(), all, err, in.Buffered())
		}
		if got.Method != method || got.RequestURI != target+query || len(got.Header) > 3 ||
			len(got.TransferEncoding) > 0 {
			t.Errorf("%q is another request: %+v", q.Bytes(), got)
		}
		for k, lines := range got.Header {
			switch {
			case strings.EqualFold(k, name), k == "X-Several":
				if len(lines) > 1 && !strings.EqualFold(name, "X-Several") {
					t.Errorf("%q has %q more than once", q.Bytes(), k)
				}
			case k != "Content-Length":
				t.Errorf("%q has a field %q", q.Bytes(), k)
			}
		}
	})
}
