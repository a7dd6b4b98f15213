package h2

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// TestSplitCookie: a Cookie in many fields is joined, at a cost that grows as they do.
func TestSplitCookie(t *testing.T) {
	request := func(n int) (string, uint64) {
		q := &request{method: "GET", path: "/", length: -1, fields: []hpack.HeaderField{{Name: "a", Value: "b"}}}
		for range n {
			q.fields = append(q.fields, hpack.HeaderField{Name: "cookie", Value: "c=1"})
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := new(conn).httpRequest(context.Background(), &stream{request: q}, nil)
		runtime.ReadMemStats(&after)
		if err != nil || len(r.Header["Cookie"]) > 1 {
			t.Fatalf("%v, %d lines of Cookie", err, len(r.Header["Cookie"]))
		}
		return r.Header.Get("Cookie"), after.TotalAlloc - before.TotalAlloc
	}
	for n, want := range map[int]string{0: "", 1: "c=1", 2: "c=1; c=1", 3: "c=1; c=1; c=1"} {
		if got, _ := request(n); got != want {
			t.Errorf("%d fields are joined to %q", n, got)
		}
	}
	got, bytes := request(4000)
	if want := strings.Repeat("c=1; ", 3999) + "c=1"; got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if bytes > 1<<20 { // 40 MB by a joining that copies what it has each time
		t.Errorf("4000 fields took %d bytes", bytes)
	}
}
