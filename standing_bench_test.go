package weir_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/store/memory"
)

// BenchmarkDecideStanding decides a request on one limit: without bans and grants, with many of
// other keys in force, for a key that is banned, and for one with a grant.
func BenchmarkDecideStanding(b *testing.B) {
	const rules = `
limits:
  - {name: api, per: [user], allow: 500000000/s, ban: {after: 5, within: 1m, for: 1h}}
  - {name: login, when: {path: /login}, per: [ip], allow: 5/s}`
	for _, c := range []struct {
		name            string
		bans, grants    int
		banned, granted bool
		network         bool
	}{
		{name: "none"}, {name: "bans", bans: 10_000}, {name: "grants", grants: 1_000},
		{name: "both", bans: 10_000, grants: 1_000}, {name: "banned", bans: 10_000, banned: true}, {name: "granted", grants: 1_000, granted: true},
		{name: "network", bans: 10_000, network: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, err := memory.New(memory.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			l, err := weir.New(s, weir.WithRules(load(b, rules)))
			if err != nil {
				b.Fatal(err)
			}
			until := time.Now().Add(time.Hour)
			ban := func(user string) {
				if _, err := l.Bans().Set(b.Context(), "", "api", []string{user}, until, ""); err != nil {
					b.Fatal(err)
				}
			}
			grant := func(user string) {
				if _, err := l.Grants().Set(b.Context(), "", "api", []string{user}, "1000000000/s", until, ""); err != nil {
					b.Fatal(err)
				}
			}
			for i := range c.bans {
				ban(fmt.Sprint("b", i))
			}
			for i := range c.grants {
				grant(fmt.Sprint("g", i))
			}
			if c.banned {
				ban("ada")
			}
			if c.granted {
				grant("ada")
			}
			if c.network { // which does not hold the address
				if _, err := l.Bans().Set(b.Context(), "", "login", []string{"198.51.100.0/24"}, until, "", weir.BanInDomain); err != nil {
					b.Fatal(err)
				}
			}
			r := weir.Request{Hits: 1, Attributes: weir.Pairs{{Name: "user", Value: "ada"}, {Name: "ip", Value: "192.0.2.1"}}}
			var d weir.Decision
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Decide(b.Context(), &r, &d); err != nil || d.Allowed == c.banned {
					b.Fatal(d.Allowed, err)
				}
			}
		})
	}
}
