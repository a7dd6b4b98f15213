package file

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
)

// loadKinds are kinds of rules whose load is measured, each # a rule's number.
var loadKinds = []struct{ name, text string }{
	{"small", `  - {name: r#, when: {path: /svc#/**}, per: [ip], allow: 10/min}
`},
	{"usual", `  - name: rule-#
    when:
      path: /x/#/**
      method: [GET, POST]
    per: [user]
    allow: 100/min
`},
	{"large", `  - name: rule-#
    when: { path: /x/#/**, method: [GET, POST], plan: "!free" }
    per: [user|ip]
    allow: [10/min, 500/hour]
    throttle: { soft: 10% }
    on_store_error: local
`},
	{"regexp", `  - name: r#
    when: {path: "~^/svc#/[a-z]+$"}
    per: [ip]
    allow: 10/min
`},
	{"if", `  - name: r#
    if: 'path.startsWith("/svc#/")'
    per: [ip]
    allow: 10/min
`},
}

// rulesOf is a file of n limits of a kind.
func rulesOf(text string, n int) []byte {
	var b strings.Builder
	b.WriteString("domain: many\nlimits:\n")
	for i := range n {
		b.WriteString(strings.ReplaceAll(text, "#", fmt.Sprint(i)))
	}
	return []byte(b.String())
}

// live is the size of the heap after a collection.
func live() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// loaded is what the last benchmark of loading made, so that go test -memprofile shows where its
// memory goes.
var loaded *rule.Set

// BenchmarkLoad measures what loading rules takes, by kind and number, and how much of memory the
// Set keeps for each rule: docs/operating/capacity.md.
func BenchmarkLoad(b *testing.B) {
	for _, k := range loadKinds {
		b.Run(k.name, func(b *testing.B) {
			for _, n := range []int{10, 1000, 10_000, 100_000} {
				b.Run(fmt.Sprint(n), func(b *testing.B) {
					var files []Source
					for i := 0; i < n; i += 10_000 { // a file may hold 8 MiB
						files = append(files, Source{Name: fmt.Sprint("f", i, ".yaml"), Data: rulesOf(
							strings.ReplaceAll(k.text, "#", fmt.Sprint(i/10_000, "-#")), min(n, 10_000))})
					}
					loaded = nil
					before := live()
					set, _, err := Load(files, Options{})
					if err != nil {
						b.Fatal(err)
					}
					kept := float64(live()-before) / float64(n)
					loaded = set
					b.ReportAllocs()
					for b.Loop() {
						if _, _, err := Load(files, Options{}); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/rule")
					b.ReportMetric(kept, "kept-B/rule")
				})
			}
		})
	}
}
