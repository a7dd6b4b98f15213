//go:build !race

package recent

import (
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/rule"
)

// Under the race detector a sync.Pool drops what it holds at random.

// Once the buffer is full, remembering allocates nothing, nor does what is not remembered.
func TestKeepAllocatesNothing(t *testing.T) {
	b, c := newBuffer(t, Options{Entries: 64}), new(clock)
	l := newLimiter(t, b, c, strings.Replace(shop, "allow: { rate: 2/min, burst: 2 }", "allow: 0/min", 1))
	r := weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/api/x"}, {Name: "user", Value: "ada"},
		{Name: "ip", Value: "2001:db8::1"}, {Name: "header.x-api-key", Value: "k"}}, Hits: 1}
	var d weir.Decision
	step := int64(1e6 / perKey)
	decide := func() {
		c.now += step
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		decide()
	}
	if n := testing.AllocsPerRun(1000, decide); n > 0.1 || d.Allowed || thinnedOf(t, b, c) != "" {
		t.Errorf("%v allocations a refusal; thinned: %s", n, thinnedOf(t, b, c))
	}
	step = 1
	if n := testing.AllocsPerRun(1000, decide); n > 0.1 || d.Allowed || len(b.Thinned(time.UnixMicro(c.now))) == 0 {
		t.Errorf("%v allocations a refusal in a flood", n)
	}
}

// BenchmarkKeep is what a decision costs that is kept, BenchmarkFlood what one costs that is not.
func BenchmarkKeep(b *testing.B) {
	buffer, r, d := benchmarked(b)
	for b.Loop() {
		buffer.keep(r, d, buffer.hash(d, observe.Facts{Outcome: observe.Unclear}))
	}
}

func BenchmarkFlood(b *testing.B) {
	buffer, r, d := benchmarked(b)
	for range 100 {
		buffer.Decided(r, d, observe.Facts{Outcome: observe.Unclear})
	}
	for b.Loop() {
		buffer.Decided(r, d, observe.Facts{Outcome: observe.Unclear})
	}
}

// BenchmarkSince measures one look of a stream for new decisions: twenty new ones in a full buffer,
// of which ten are shown.
func BenchmarkSince(b *testing.B) {
	buffer, r, d := benchmarked(b)
	keep := func(n int) {
		for i := range uint64(n) {
			buffer.keep(r, d, i<<32)
		}
	}
	keep(2 * defaultEntries)
	var spent time.Duration
	for b.Loop() {
		at := buffer.Cursor()
		keep(20)
		begin := time.Now()
		if found, fit, _ := buffer.Since(at, Query{}, 10); len(found) != 10 || fit != 20 {
			b.Fatalf("%d of %d", len(found), fit)
		}
		spent += time.Since(begin)
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "ns/look")
}

// BenchmarkList measures another node's question for the decisions of the last seconds, which it
// asks once a second: twenty new decisions in a full buffer.
func BenchmarkList(b *testing.B) {
	buffer, r, d := benchmarked(b)
	at := time.UnixMicro(d.Time)
	for i := range uint64(2 * defaultEntries) {
		buffer.keep(r, d, i<<32)
	}
	d.Time += 10_000_000
	for i := range uint64(20) {
		buffer.keep(r, d, i<<32)
	}
	for b.Loop() {
		if found := buffer.List(Query{After: at.Add(time.Second), N: 10}); len(found) != 10 {
			b.Fatalf("%d", len(found))
		}
	}
}

// BenchmarkSearch measures a search of a full buffer, for one client and for any.
func BenchmarkSearch(b *testing.B) {
	buffer, r, d := benchmarked(b)
	for i := range uint64(2 * defaultEntries) {
		buffer.keep(r, d, i<<32)
	}
	for name, text := range map[string]string{"nobody": "nobody", "any": ""} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				buffer.Search(find.NewBook(&find.Query{Text: []byte(text)}, 0))
			}
		})
	}
}

// benchmarked returns a buffer and a refusal.
func benchmarked(b *testing.B) (*Buffer, *weir.Request, *weir.Decision) {
	buffer := newBuffer(b, Options{})
	l := newLimiter(b, buffer, new(clock), shop)
	r := &weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/api/x"}, {Name: "user", Value: "ada"},
		{Name: "ip", Value: "192.0.2.1"}}, Hits: 1}
	d := new(weir.Decision)
	for range 3 {
		if err := l.Decide(b.Context(), r, d); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	return buffer, r, d
}
