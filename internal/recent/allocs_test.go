//go:build !race

package recent

import (
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// Under the race detector a sync.Pool drops what it holds at random.

// Once the buffer is full, remembering allocates nothing.
func TestKeepAllocatesNothing(t *testing.T) {
	b := newBuffer(t, Options{Entries: 64})
	l := newLimiter(t, b, new(clock), shop)
	r := weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/api/x"}, {Name: "user", Value: "ada"}, {Name: "ip", Value: "2001:db8::1"}, {Name: "header.x-api-key", Value: "k"}}, Hits: 1}
	var d weir.Decision
	decide := func() {
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		decide()
	}
	if n := testing.AllocsPerRun(1000, decide); n > 0.1 || d.Allowed {
		t.Errorf("%v allocations a refusal", n)
	}
}

func BenchmarkKeep(b *testing.B) {
	buffer := newBuffer(b, Options{})
	l := newLimiter(b, buffer, new(clock), shop)
	r := weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/api/x"}, {Name: "user", Value: "ada"}, {Name: "ip", Value: "192.0.2.1"}}, Hits: 1}
	var d weir.Decision
	for range 3 {
		if err := l.Decide(b.Context(), &r, &d); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		buffer.decided(&r, &d)
	}
}
