package rule

import (
	"sync"
	"testing"
)

// A Set serves many goroutines at once, the limits that requests bring included.
func TestMatchConcurrently(t *testing.T) {
	ifx, err := CompileIf(`header.exists(k, k == "x") && user != ""`)
	if err != nil {
		t.Fatal(err)
	}
	s := testSet(t, &File{
		Rules: []*Rule{testRule(t, "a", "user|ip").when(on(t, "path", "/api/**", "~x$")),
			testRule(t, "b").with(func(r *Rule) {
				r.Exprs = &Exprs{If: ifx}
			})},
		Descriptors: lyftTree(t, "user vtm rule"),
	})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			var m Matches
			for i := range 500 {
				s.Match(&Query{Domain: "default", Attributes: Map{"path": "//api/x", "ip": "2001:db8::1", "user": "ada",
					"header.x": "1"}}, &m)
				if got, want := met(&m), "user[user=ada], a[user=ada], b"; got != want {
					t.Errorf("met %q, want %q", got, want)
					return
				}
				d := append(descriptors("user=bob"), Descriptor{Entries: []Entry{{"k", "v"}},
					Override: &DescriptorLimit{uint32(g*500 + i), "HOUR"}})
				s.Match(&Query{Domain: "default", Descriptors: d}, &m)
				if got, want := met(&m), "user[user=bob], request_override:3600s[k=v]"; got != want ||
					m.Descriptors[1].Rule.Lyft.RequestsPerUnit != uint32(g*500+i) ||
					m.Descriptors[0].StatsKey != "default.user_bob" {
					t.Errorf("met %q, %+v", got, m.Descriptors)
					return
				}
			}
		})
	}
	wg.Wait()
}
