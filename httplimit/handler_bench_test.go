package httplimit

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

type nowhere struct{ h http.Header }

func (n nowhere) Header() http.Header         { return n.h }
func (n nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n nowhere) WriteHeader(int)             {}

// BenchmarkHandler is the whole middleware around a handler that does nothing.
func BenchmarkHandler(b *testing.B) {
	l := wallLimiter(b, "limits: [{name: a, when: {path: /api/**}, per: [ip], allow: 1000000000/min}]")
	mw, err := New(l, Options{})
	if err != nil {
		b.Fatal(err)
	}
	h := mw(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest("GET", "/api/x?y=1", nil)
	w := nowhere{http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.h)
		h.ServeHTTP(w, r)
	}
}
