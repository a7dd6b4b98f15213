package h2

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// openLarge opens a stream with a call whose header is as large as it gets, in as many frames as it
// takes.
func (c *rawClient) openLarge(id uint32, path string, more ...string) {
	block := c.fields(path, more...)
	for first := true; ; first = false {
		part := block[:min(len(block), maxFrame)]
		block = block[len(part):]
		if first {
			c.must(c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part,
				EndHeaders: len(block) == 0, EndStream: true}))
		} else {
			c.must(c.f.WriteContinuation(id, len(block) == 0, part))
		}
		if len(block) == 0 {
			return
		}
	}
}

// TestLargeHeaders: a header that is larger than a call may have ends its call, and neither the
// others of its connection nor what its fields have left in the table of the connection.
func TestLargeHeaders(t *testing.T) {
	plain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	for name, more := range map[string][]string{
		"one field":              {"x-large", strings.Repeat("\x01", 70_000)},
		"one field of 140 KB":    {"x-large", strings.Repeat("x", 140_000)},
		"many fields":            slicesOf("x-field", strings.Repeat("v", 500), 140),
		"many fields, then kept": append(slicesOf("x-field", strings.Repeat("v", 500), 140), "x-kept", "in the table"),
	} {
		t.Run(name, func(t *testing.T) {
			svc := newService()
			_, addr := serve(t, Options{Methods: svc.methods(), Handler: plain})
			c := dialRaw(t, addr)
			c.open(1, echoPath)
			c.openLarge(3, echoPath, more...)
			if a := c.answer(3); a.header.Get(":status") != "200" || a.header.Get("grpc-status") != "8" {
				t.Errorf("the call with the large header: %+v", a)
			}
			c.must(c.f.WriteData(1, true, frameMessage([]byte("still here"))))
			if a := c.answer(1); !strings.Contains(string(a.body), "still here") {
				t.Errorf("a call that was under way: %+v", a)
			}
			c.call(5, echoPath, []byte("later"), "x-kept", "in the table")
			if a := c.answer(5); !strings.Contains(string(a.body), "later") {
				t.Errorf("a later call: %+v", a)
			}
		})
	}
}

// slicesOf is a field n times.
func slicesOf(name, value string, n int) (fields []string) {
	for range n {
		fields = append(fields, name, value)
	}
	return fields
}
