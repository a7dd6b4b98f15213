package h1

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// step is one thing that a handler does with its answer.
type step struct {
	what       string
	key, value string
	n          int
}

func (s step) do(w http.ResponseWriter, r *http.Request) {
	switch s.what {
	case "add":
		w.Header()[s.key] = append(w.Header()[s.key], s.value)
	case "none":
		w.Header()[s.key] = nil
	case "status":
		w.WriteHeader(s.n)
	case "write":
		_, _ = w.Write([]byte(strings.Repeat(s.value, s.n)))
	case "string":
		_, _ = io.WriteString(w, strings.Repeat(s.value, s.n))
	case "read":
		_, _ = io.CopyN(io.Discard, r.Body, int64(s.n))
	case "close":
		_ = r.Body.Close()
	case "flush":
		_ = http.NewResponseController(w).Flush()
	}
}

// steps makes what a handler does: all but what New says that it cannot do.
func steps() *rapid.Generator[[]step] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		s := step{what: rapid.SampledFrom([]string{"add", "add", "none", "status", "write", "string", "write", "string",
			"flush", "read", "close"}).Draw(t, "what")}
		switch s.what {
		case "add", "none":
			s.key = rapid.SampledFrom([]string{"Content-Type", "Content-Length", "Date", "Connection",
				"Content-Encoding", "X-A", "x-b", "a b", "a:b", "", "Trailer", "X-T", http.TrailerPrefix + "X-U"}).Draw(
				t, "key")
			s.value = rapid.SampledFrom([]string{"", "a", "close", "Close", "keep-alive", "close, a", "5", "100",
				"3000", "-1", "a\r\nb", " a\t", "X-T, x-a", "\x00", "\u00e4"}).Draw(t, "value")
		case "status":
			s.n = rapid.SampledFrom([]int{100, 103, 200, 201, 204, 205, 304, 404, 429, 500, 777}).Draw(t, "status")
		default:
			s.value = rapid.SampledFrom([]string{"a", "<html>", "\x00"}).Draw(t, "text")
			s.n = rapid.SampledFrom([]int{0, 1, 5, 100, 2047, 2048, 2049, 5000, 40_000}).Draw(t, "times")
		}
		return s
	}), 0, 12)
}

// TestAnswers: whatever a handler does, its answer equals net/http's, and so does the fate of a
// request behind it.
func TestAnswers(t *testing.T) {
	var of atomic.Pointer[[]step]
	loop, plain := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, s := range *of.Load() {
			s.do(w, r)
		}
	}))
	rapid.Check(t, func(rt *rapid.T) {
		list := steps().Draw(rt, "steps")
		request := rapid.SampledFrom([]string{get("/"), post("/", "a body"), ask("HEAD", "/"),
			ask("PUT", "/", "Content-Length: 60000") + strings.Repeat("long", 15_000)}).Draw(rt, "request")
		if strings.HasPrefix(request, "HEAD") {
			// net/http sends a length that is none
			list = slices.DeleteFunc(list, func(s step) bool {
				_, err := strconv.ParseUint(s.value, 10, 63)
				return s.key == "Content-Length" && err != nil
			})
		}
		of.Store(&list)
		same(fatal{t, rt}, loop, plain, request+get("/behind"))
	})
	if n := loop.handed.Load(); n > 0 {
		t.Errorf("net/http has served %d connections", n)
	}
}
