package h2

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// dump answers with all that a handler can know of a request.
var dump = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	h := r.Header.Clone()
	h.Del("Host") // which net/http leaves there
	body, err := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "text/plain")
	fmt.Fprintf(w, "%q %q %q %q %d %q %v %q %q %v", r.Method, r.Host, r.RequestURI, r.URL, r.ContentLength, body,
		err != nil, h, r.Trailer, r.TransferEncoding)
})

// judged sends a request field by field, and returns its outcome: the status and body of its
// answer, or that it was reset.
func judged(t testing.TB, base string, fields []hpack.HeaderField, body []byte, trailer []hpack.HeaderField) string {
	t.Helper()
	conn, err := net.Dial("tcp", address(base))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := rawOver(t, conn)
	_, err = io.WriteString(conn, preface)
	c.must(err)
	c.must(c.f.WriteSettings())
	encode := func(fields []hpack.HeaderField) []byte {
		c.block.Reset()
		for _, f := range fields {
			c.must(c.enc.WriteField(f))
		}
		return bytes.Clone(c.block.Bytes())
	}
	// A server may have answered, and closed, before it has read all.
	_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(fields), EndHeaders: true,
		EndStream: body == nil && trailer == nil})
	if body != nil {
		_ = c.f.WriteData(1, trailer == nil, body)
	}
	if trailer != nil {
		_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(trailer), EndHeaders: true,
			EndStream: true})
	}
	for {
		if a := c.answers[1]; a != nil && a.over {
			if a.wasReset && a.reset != http2.ErrCodeNo {
				return "reset: " + a.reset.String()
			}
			statuses := a.header[":status"] // a 100 may have come before
			return statuses[len(statuses)-1] + " " + string(a.body)
		}
		f, err := c.read()
		if err != nil {
			return "closed"
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			return "closed: " + g.ErrCode.String()
		}
		c.take(f)
	}
}

// stricter reports whether a request that is judged in two ways is one of those that Configure
// describes: it is malformed, we reset it, and net/http does not.
func stricter(fields []hpack.HeaderField, trailer []hpack.HeaderField, ours, theirs string) bool {
	if ours != "reset: PROTOCOL_ERROR" {
		return false
	}
	if theirs == "closed: PROTOCOL_ERROR" {
		return true // net/http minds what comes for a stream that it has reset
	}
	path, method := "", ""
	for _, f := range fields {
		switch f.Name {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te":
			return strings.HasPrefix(theirs, "400 ") || f.Name == "te"
		case "content-length":
			return true
		case ":path":
			path = f.Value
		case ":method":
			method = f.Value
		}
	}
	for _, f := range trailer { // net/http looks at none but what was announced
		switch f.Name {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "te", "content-length":
			return true
		}
	}
	return method != "CONNECT" && path != "*" && !strings.HasPrefix(path, "/") ||
		strings.ContainsFunc(method,
			func(r rune) bool { return r < '!' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) })
}

func fieldsOf(pairs ...string) (fields []hpack.HeaderField) {
	for i := 0; i+1 < len(pairs); i += 2 {
		fields = append(fields, hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	return fields
}

// FuzzSame: a request is judged as net/http judges it, and its handler meets the same, except as
// Configure says. The input is a field a line, its name and value with a tab between; a body
// follows an empty line, and trailers another.
func FuzzSame(f *testing.F) {
	const get = ":method\tGET\n:scheme\thttp\n:path\t/a?b=c\n:authority\texample.test\n"
	for _, more := range []string{
		"", "x\ty\n", "X\ty\n", "x\ty\nx\tz\n", ":path\t/other\n", ":odd\tx\n", "host\tother\n", "host\texample.test\n", "connection\tclose\n",
		"transfer-encoding\tchunked\n", "upgrade\tx\n", "te\ttrailers\n", "te\tgzip\n", "content-length\t5\n", "content-length\t0\n", "content-length\t+5\n",
		"content-length\t5\ncontent-length\t5\n", "content-length\t5\ncontent-length\t6\n", "cookie\ta=b\ncookie\tc=d\n", "x\t\x00\n", "x y\tz\n",
		"x\t a \n", "é\tx\n", "x\té\n", "\tx\n", "expect\t100-continue\n", "trailer\tX-A, Content-Length\n", "authorization\ta\nauthorization\tb\n",
	} {
		f.Add(get + more)
		f.Add(get + more + "\nhello")
		f.Add(get + more + "\nhello\nx-a\tb\n")
		f.Add(get + more + "\n\nx-a\tb\nauthorization\tc\n")
	}
	for _, whole := range []string{
		"", ":method\tGET\n", ":scheme\thttp\n:path\t/\n", ":method\tGET\n:scheme\thttp\n:path\t\n", ":method\tGET\n:scheme\tftp\n:path\t/\n",
		":method\tGET\n:path\t/\n", ":method\tGET\n:scheme\thttps\n:path\t/%zz\n", ":method\tGET\n:scheme\thttp\n:path\t*\n", ":method\tGET\n:scheme\thttp\n:path\thttp://other/\n",
		":method\tCONNECT\n:authority\tx:1\n", ":method\tCONNECT\n:scheme\thttp\n:path\t/\n:authority\tx:1\n", ":method\tCONNECT\n", ":method\tG T\n:scheme\thttp\n:path\t/\n",
		":method\tGET\n:scheme\thttp\n:path\t/\n:authority\tuser@x\n", ":method\tGET\n:scheme\thttp\n:path\t/\nhost\tx\n", "x\ty\n:method\tGET\n:scheme\thttp\n:path\t/\n",
		":method\tGET\n:scheme\thttp\n:path\t/a b#c\n:authority\ta b\n", ":method\tGET\n:scheme\thttp\n:path\t//x/..;y\n:authority\t[::1]:80\n",
	} {
		f.Add(whole)
	}
	ours, theirs := httpServer(f, dump, nil, configure), httpServer(f, dump, nil)
	f.Fuzz(func(t *testing.T, input string) {
		head, rest, hasBody := strings.Cut(input, "\n\n")
		text, tail, hasTrailer := strings.Cut(rest, "\n")
		parse := func(s string) (fields []hpack.HeaderField) {
			for line := range strings.SplitSeq(s, "\n") {
				if name, value, ok := strings.Cut(line, "\t"); ok {
					fields = append(fields, hpack.HeaderField{Name: name, Value: value})
				}
			}
			return fields
		}
		fields, trailer := parse(head), []hpack.HeaderField(nil)
		var body []byte
		if hasBody {
			body = []byte(text)
		}
		if hasTrailer {
			trailer = parse(tail)
		}
		if len(input) > 4096 || len(fields) == 0 || hasTrailer && len(trailer) == 0 {
			return
		}
		got, want := judged(t, ours, fields, body, trailer), judged(t, theirs, fields, body, trailer)
		if got != want && !stricter(fields, trailer, got, want) {
			t.Errorf("%q, %q, %q:\n got %s\nwant %s", fields, body, trailer, got, want)
		}
	})
}

// TestSmuggling: what would let a request be read in two ways is reset, whatever net/http does.
func TestSmuggling(t *testing.T) {
	base := httpServer(t, dump, nil, configure)
	begin := fieldsOf(":method", "POST", ":scheme", "http", ":path", "/", ":authority", "x")
	for _, c := range []struct{ name, value, body string }{
		{"content-length", "4", "hello"}, {"content-length", "6", "hello"}, {"content-length", "5, 5", "hello"}, {"content-length", "-5", "hello"},
		{"content-length", "0x5", "hello"}, {"content-length", " 5", "hello"}, {"content-length", "", "hello"}, {"transfer-encoding", "chunked", "5\r\nhello\r\n0\r\n\r\n"},
		{"x", "a\r\nb: c", ""}, {"x\r\nb", "c", ""}, {"x: y", "c", ""}, {"Content-Length", "5", "hello"},
	} {
		if got := judged(t, base, append(slices.Clip(begin), fieldsOf(c.name, c.value)...), []byte(c.body), nil); got != "reset: PROTOCOL_ERROR" {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
