package httplimit

import (
	"net/http"
	"testing"
)

// The cost of the headers of one answer. Every request through a door pays it.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct{ name, rules string }{
		{"one limit", `limits: [{name: api-per-user, allow: 1000000/min}]`},
		{"three limits", `limits: [{name: api-per-user, allow: [1000000/min, 5000000/hour]}, {name: everybody, allow: 9000000/hour, algorithm: fixed_window}]`},
	} {
		d := decide(b, newLimiter(b, &clock{}, c.rules), 1)
		for _, f := range []Headers{XDelta, Draft11, XDelta | Draft11} {
			b.Run(c.name+"/"+f.String(), func(b *testing.B) {
				b.ReportAllocs()
				h := http.Header{}
				for b.Loop() {
					clear(h)
					h["Content-Type"] = nil
					h["Date"] = nil
					h["Content-Length"] = nil
					f.Write(h, d)
				}
			})
		}
	}
}
