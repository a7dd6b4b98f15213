package weir_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// Of several domains that one is meant which alone has a limit of the name, for bans, grants and
// keys; where several have one, the answer says which.
func TestNamesInSeveralDomains(t *testing.T) {
	l, store := inspectedLimiter(t,
		"domain: shop\nlimits: [{ name: login, per: [user], allow: 9/day }, { name: api, per: [user], allow: [9/min, 90/day] }]",
		"domain: blog\nlimits: [{ name: comment, per: [user], allow: 9/day }, { name: api, per: [user], allow: 9/day }]",
		"domain: default\nlimits: [{ name: other, per: [user], allow: 9/day }]")
	until := time.Now().Add(time.Hour)
	ban := func(limit string) (weir.Ban, error) {
		return l.Bans().Set(t.Context(), "", limit, []string{"ada"}, until, "")
	}
	for limit, want := range map[string]string{
		"login": "shop/login", "comment": "blog/comment", "other": "default/other", "api:60s": "shop/api", "blog/api": "blog/api", "shop/api": "shop/api",
	} {
		b, err := ban(limit)
		if err != nil || b.Domain+"/"+b.Rule != want {
			t.Errorf("ban of %s: %+v, %v; want one of %s", limit, b, err, want)
		}
		if k, err := l.Keys().Get(t.Context(), "", limit, []string{"ada"}); err != nil ||
			k[0].Window.Rule.Domain+"/"+k[0].Window.Rule.Name != want {
			t.Errorf("keys of %s: %+v, %v; want one of %s", limit, k, err, want)
		}
		if _, err := l.Bans().Lift(t.Context(), "", limit, []string{"ada"}); err != nil {
			t.Errorf("end of the ban of %s: %v", limit, err)
		}
	}
	if g, err := l.Grants().Set(t.Context(), "", "login", []string{"ada"}, "99/day", until, ""); err != nil ||
		g.Domain != "shop" {
		t.Errorf("grant: %+v, %v", g, err)
	}
	for limit, want := range map[string]string{
		"api":    `the domains shop, blog have a limit "api" each: name one of them, as in shop/api`,
		"logn":   `no rule in force has a limit of this name; name one with domain; there are shop, blog, default; did you mean "shop/login"?`,
		"nosuch": "no rule in force has a limit of this name; name one with domain; there are shop, blog, default; /api/v1/rules lists them",
	} {
		_, err := ban(limit)
		_, other := l.Keys().Reset(t.Context(), "", limit, []string{"ada"})
		for _, err := range []error{err, other} {
			if !errors.Is(err, weir.ErrNoSuchLimit) || strings.TrimPrefix(err.Error(), "weir: ") != want {
				t.Errorf("%s: %v\nwant %s", limit, err, want)
			}
		}
	}
	// A list of keys without a domain is of all of them.
	store.scanning = make(chan struct{}, 9)
	close(store.held)
	if found, err := l.Keys().Hottest(t.Context(), "", "api", weir.HottestOptions{}); err != nil ||
		len(found.Rules) != 2 {
		t.Errorf("list of api: %+v, %v", found, err)
	}
	if _, err := l.Bans().Set(t.Context(), "shop", "logn", []string{"ada"}, until, ""); err == nil ||
		!strings.Contains(err.Error(), `has no limit "logn"; did you mean "login"?`) {
		t.Errorf("in a domain: %v", err)
	}
}

// A value without a name is of ip if it is an address, and else of another attribute, where a rule
// takes either.
func TestKeyOfUserOrAddress(t *testing.T) {
	l, _ := inspectedLimiter(t,
		"limits: [{ name: either, per: [user|ip], allow: 1/day }, { name: first, per: [ip|user], allow: 1/day }, { name: pair, per: ['user|ip', path], allow: 1/day }]")
	for _, c := range []struct{ limit, key, want string }{
		{"either", "192.0.2.1", "ip=192.0.2.1"}, {"either", "2001:db8::7", "ip=2001:db8::/64"}, {"either", "2001:db8::/64", "ip=2001:db8::/64"},
		{"either", "ada", "user=ada"}, {"either", "192.0.2.300", "user=192.0.2.300"}, {"either", "user=192.0.2.1", "user=192.0.2.1"}, {"either", "ip=192.0.2.1", "ip=192.0.2.1"},
		{"first", "ada", "user=ada"}, {"first", "192.0.2.1", "ip=192.0.2.1"},
		{"pair", "192.0.2.1,/x", "ip=192.0.2.1 path=/x"}, {"pair", "ada,/x", "user=ada path=/x"},
	} {
		b, err := l.Bans().Set(t.Context(), "", c.limit, []string{c.key}, time.Now().Add(time.Hour), "")
		if err != nil || strings.Join(b.Key, " ") != c.want {
			t.Errorf("%s of %s: %q, %v; want %s", c.key, c.limit, b.Key, err, c.want)
		}
	}
	// The ban of the address refuses who comes from it, and no user of that name.
	for attributes, banned := range map[*rule.Map]bool{
		{"ip": "192.0.2.1"}: true, {"ip": "192.0.2.2"}: false, {"user": "192.0.2.99"}: false,
	} {
		d, err := l.Allow(t.Context(), weir.Request{Attributes: *attributes, Hits: 1})
		if err != nil || d.Allowed == banned {
			t.Errorf("%v: allowed %v, %v", *attributes, d.Allowed, err)
		}
	}
}

// TestNameIndex: names of rules and windows are found as a look at each rule finds them.
func TestNameIndex(t *testing.T) {
	l, _ := inspectedLimiter(t, `
domain: shop
limits:
  - {name: api, per: [ip], allow: [9/min, 99/hour], override: {192.0.2.1: [5/day, 6/min]}}
  - {name: search, per: [ip], allow: 9/min}
`, `
domain: tills
limits:
  - {name: api, per: [user], allow: [9/min, 99/day]}
  - {name: alone, per: [user], allow: 9/min}
`)
	for limit, want := range map[string]string{
		"search": "shop search", "alone": "tills alone", "shop/api": "shop api", "tills/api": "tills api", "api:3600s": "shop api",
		"api": "", "api:86400s": "", "sear": "", "searchx": "", "": "", "shop/alone": "",
	} {
		key := []string{"192.0.2.7"}
		b, err := l.Bans().Set(t.Context(), "", limit, key, time.Now().Add(time.Hour), "")
		if got := strings.TrimSpace(b.Domain + " " + b.Rule); got != want || (err == nil) != (want != "") {
			t.Errorf("%q means %q, %v; want %q", limit, got, err, want)
		}
	}
}
