package weir_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/store/memory"
)

const scopeRules = `
domain: shop
exempt: {ip: [198.51.100.9, 203.0.0.0/16]}
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 1000/min}
  - {name: wide, when: {path: /wide}, per: [ip], allow: 1000/min, ban: {after: 5, within: 1m, for: 1m, scope: domain}}
  - {name: api, when: {path: /api}, per: [user|ip], allow: 1000/min}
  - {name: pair, when: {path: /pair}, per: [user, ip], allow: 1000/min}
  - {name: all, allow: 1000000/min}
`

// passes asks for a request of an address, and of a user if one is given.
func passes(t *testing.T, l *weir.Limiter, ip, path, user string) bool {
	t.Helper()
	r := from(ip, path)
	r.Domain = "shop"
	if user != "" {
		r.Attributes = append(r.Attributes.(weir.Pairs), weir.Pairs{{Name: "user", Value: user}}...)
	}
	d := decide(t, l, r)
	if d.Allowed == (d.Banned.Rule != nil) {
		t.Errorf("%s %s %s: allowed %v, banned %v", ip, path, user, d.Allowed, d.Banned.Rule)
	}
	if len(d.Limits) != len(d.Matches.Hits) {
		t.Errorf("%s %s: %d limits, %d hits", ip, path, len(d.Limits), len(d.Matches.Hits))
	}
	return d.Allowed
}

// A ban by hand holds where the rule's own bans do, or where the operator says.
func TestBanScope(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, scopeRules)
	end := time.UnixMicro(c.read()).Add(time.Hour)
	set := func(limit, key string, scope ...weir.BanScope) weir.Ban {
		t.Helper()
		b, err := l.Bans().Set(t.Context(), "shop", limit, []string{key}, end, "", scope...)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if b := set("login", "192.0.2.1"); b.DomainWide {
		t.Error("a ban is wide although nobody said so")
	}
	if passes(t, l, "192.0.2.1", "/login", "") || !passes(t, l, "192.0.2.1", "/", "") {
		t.Error("a ban of a rule does not hold where, and only where, that applies")
	}
	if b := set("login", "192.0.2.1", weir.BanInDomain); !b.DomainWide {
		t.Errorf("%+v", b)
	}
	if passes(t, l, "192.0.2.1", "/login", "") || passes(t, l, "192.0.2.1", "/", "") ||
		passes(t, l, "192.0.2.1", "/api", "ada") || !passes(t, l, "192.0.2.2", "/", "") {
		t.Error("a ban by hand does not hold everywhere in the domain, or for others")
	}
	other := from("192.0.2.1", "/")
	other.Domain = "elsewhere"
	if d := decide(t, l, other); !d.Allowed {
		t.Error("it holds in another domain")
	}
	// What is asked of a key under another limit tells of it.
	if b, err := l.Bans().On("shop", "pair", []string{"ada", "192.0.2.1"}); err != nil || b.Rule != "login" {
		t.Errorf("the ban on a pair: %+v, %v", b, err)
	}
	if b, err := l.Bans().On("shop", "api", []string{"user=ada"}); err == nil {
		t.Errorf("the ban on a user: %+v", b)
	}
	// A user|ip: the key of a request with a user is not the address.
	set("api", "user=eve", weir.BanInDomain)
	if passes(t, l, "192.0.2.3", "/", "eve") || !passes(t, l, "192.0.2.3", "/", "") {
		t.Error("the ban of a user does not hold everywhere")
	}
	// The rule says domain, the operator says rule.
	if b := set("wide", "192.0.2.4"); !b.DomainWide {
		t.Error("not as the rule's own bans")
	}
	set("wide", "192.0.2.4", weir.BanInRule)
	if passes(t, l, "192.0.2.4", "/wide", "") || !passes(t, l, "192.0.2.4", "/", "") {
		t.Error("a ban is wider than the operator said")
	}
	// A reload keeps the scope.
	l.SetRules(load(t, strings.Replace(scopeRules, "1000000/min", "2000000/min", 1)))
	if passes(t, l, "192.0.2.1", "/", "") {
		t.Error("a reload lifted it")
	}
	if _, err := l.Bans().Lift(t.Context(), "shop", "login", []string{"192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	if !passes(t, l, "192.0.2.1", "/", "") || !passes(t, l, "192.0.2.1", "/login", "") {
		t.Error("refused after the lift")
	}
}

// A network is refused as a whole: the exempt in it are not, and neither are others.
func TestBanOfNetwork(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, scopeRules)
	end := time.UnixMicro(c.read()).Add(time.Hour)
	set := func(limit, key string, scope ...weir.BanScope) (weir.Ban, error) {
		return l.Bans().Set(t.Context(), "shop", limit, []string{key}, end, "", scope...)
	}
	for _, bad := range []struct{ limit, key, says string }{
		{"login", "198.0.0.0/8", "too many addresses"}, {"login", "2001::/16", "too many addresses"},
		{"login", "0.0.0.0/0", "too many addresses"}, {"login", "::/0", "too many addresses"},
		{"pair", "ada,198.51.100.0/24", "whose key is the address alone"}, {"login", "198.51.100.0/33", "is not an address"},
		{"login", "203.0.113.0/24", "is exempt"}, {"login", "64:ff9b::/48", "ban their IPv4 networks"}, {"api", "user=198.51.100.0/24", ""},
	} {
		b, err := set(bad.limit, bad.key)
		if bad.says == "" && err == nil && b.Key[0] == bad.key {
			continue // a user of this name
		}
		if err == nil || !strings.Contains(err.Error(), bad.says) {
			t.Errorf("%s %s: %+v, %v", bad.limit, bad.key, b, err)
		}
	}
	if _, err := l.Grants().Set(t.Context(), "shop", "login", []string{"198.51.100.0/24"}, "1/min", end, ""); err == nil {
		t.Error("a network was granted something")
	}
	b, err := set("login", "198.51.100.77/24")
	if err != nil || !slices.Equal(b.Key, []string{"ip=198.51.100.0/24"}) {
		t.Fatalf("%+v, %v", b, err)
	}
	for ip, want := range map[string]bool{"198.51.100.0": false, "198.51.100.255": false, "198.51.101.0": true,
		"198.51.99.255": true, "198.51.100.9": true, "::ffff:198.51.100.3": false} {
		if got := passes(t, l, ip, "/login", ""); got != want {
			t.Errorf("%s passes: %v", ip, got)
		}
	}
	if !passes(t, l, "198.51.100.1", "/", "") {
		t.Error("refused where the rule does not apply")
	}
	// Wide, and of IPv6, where a /64 is one key.
	if b, err = set("api", "2001:db8:7::/48", weir.BanInDomain); err != nil || b.Key[0] != "ip=2001:db8:7::/48" {
		t.Fatalf("%+v, %v", b, err)
	}
	for ip, want := range map[string]bool{"2001:db8:7::1": false, "2001:db8:7:ffff::1": false, "2001:db8:8::1": true,
		"2001:db8:6:ffff::1": true, "198.51.100.1": true} {
		if got := passes(t, l, ip, "/", ""); got != want {
			t.Errorf("%s passes: %v", ip, got)
		}
	}
	// The rule's key is the user where there is one, and the address is not looked at.
	if !passes(t, l, "2001:db8:7::1", "/", "ada") {
		t.Error("a request with another key was refused")
	}
	if b, err := set("login", "2001:db8:9::/64"); err != nil || b.Key[0] != "ip=2001:db8:9::/64" {
		t.Errorf("what is counted together: %+v, %v", b, err)
	}
	if passes(t, l, "2001:db8:9::8", "/login", "") {
		t.Error("a /64 is not banned")
	}
	// A key in it can have a ban of its own; the answer names the later one, also after it.
	if _, err := l.Bans().Set(t.Context(), "shop", "login", []string{"198.51.100.1"},
		time.UnixMicro(c.read()).Add(time.Minute), "own"); err != nil {
		t.Fatal(err)
	}
	if b, err := l.Bans().On("shop", "login", []string{"198.51.100.1"}); err != nil || b.Key[0] != "ip=198.51.100.0/24" {
		t.Errorf("%+v, %v", b, err)
	}
	r := from("198.51.100.1", "/login")
	r.Domain = "shop"
	if d := decide(t, l, r); d.Banned.Until != end.UnixMicro() || d.RetryAfter != end.UnixMicro()-c.read() {
		t.Errorf("told to come back in %d", d.RetryAfter)
	}
	// A wider one beside, in the domain: it holds where the rule is not met.
	if _, err := set("login", "198.51.0.0/16", weir.BanInDomain); err != nil {
		t.Fatal(err)
	}
	if passes(t, l, "198.51.100.1", "/", "") || !passes(t, l, "198.51.100.9", "/", "") {
		t.Error("only the smaller of two networks counts, or an exempt address is refused")
	}
	for _, key := range []string{"198.51.0.0/16", "ip=198.51.100.0/24"} {
		if _, err := l.Bans().Lift(t.Context(), "shop", "login", []string{key}); err != nil {
			t.Fatal(err)
		}
	}
	if !passes(t, l, "198.51.100.2", "/login", "") || passes(t, l, "198.51.100.1", "/login", "") {
		t.Error("the lift of networks lifted too little, or the ban of a key")
	}
	c.now.Add(time.Hour.Microseconds())
	if !passes(t, l, "2001:db8:7::1", "/", "") || len(l.Bans().List()) != 0 {
		t.Error("the network is refused after the end")
	}
}

// Each ban counts what it refused: not peeks, and anew once it is set again.
func TestBanCountsRefusals(t *testing.T) {
	c := newClock()
	l, _ := banLimiter(t, c, scopeRules)
	end := time.UnixMicro(c.read()).Add(time.Hour)
	set := func(key string, scope weir.BanScope) {
		t.Helper()
		c.now.Add(1)
		if _, err := l.Bans().Set(t.Context(), "shop", "login", []string{key}, end, "", scope); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(key string) uint64 {
		t.Helper()
		b, err := l.Bans().Of("shop", "login", []string{key})
		if err != nil {
			t.Fatal(err)
		}
		return b.Refused
	}
	set("192.0.2.1", weir.BanInDomain)
	set("192.0.2.0/24", weir.BanInDomain)
	passes(t, l, "192.0.2.1", "/login", "")
	passes(t, l, "192.0.2.1", "/", "")
	passes(t, l, "192.0.2.2", "/", "")
	peek := from("192.0.2.2", "/")
	peek.Domain, peek.Peek = "shop", true
	decide(t, l, peek)
	if own, net := refused("192.0.2.1"), refused("192.0.2.0/24"); own+net != 3 || net < 1 {
		t.Errorf("the key's ban refused %d, the network's %d", own, net)
	}
	set("192.0.2.1", weir.BanInRule)
	if n := refused("192.0.2.1"); n != 0 {
		t.Errorf("a ban that was set anew has refused %d", n)
	}
	for _, b := range l.Bans().List() {
		if b.Key[0] == "ip=192.0.2.0/24" && b.Refused == 0 {
			t.Error("the list does not say what a ban refused")
		}
	}
}

// Networks and scopes hold on all nodes, also where one sets a ban anew with another scope.
func TestBanScopeOnNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &flaky{Store: wallStore(t, memory.Options{})}
		t.Cleanup(func() { _ = store.Close() })
		nodes := followers(t, store, 2, scopeRules)
		a, b := nodes[0], nodes[1]
		end := time.Now().Add(time.Hour)
		set := func(l *weir.Limiter, key string, scope weir.BanScope) {
			t.Helper()
			time.Sleep(time.Millisecond)
			if _, err := l.Bans().Set(t.Context(), "shop", "login", []string{key}, end, "", scope); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		set(a, "198.51.100.0/24", weir.BanInDomain)
		set(a, "2001:db8:7::/48", weir.BanInRule)
		if passes(t, b, "198.51.100.1", "/", "") || !passes(t, b, "2001:db8:7::1", "/", "") ||
			passes(t, b, "2001:db8:7::1", "/login", "") {
			t.Error("the other node has other bans")
		}
		set(b, "198.51.100.0/24", weir.BanInRule) // with the same end
		if !passes(t, a, "198.51.100.1", "/", "") || passes(t, a, "198.51.100.1", "/login", "") {
			t.Error("the other node keeps the scope that was before")
		}
		passes(t, a, "198.51.100.2", "/login", "")
		if x, err := a.Bans().Of("shop", "login", []string{"198.51.100.0/24"}); err != nil || x.Refused != 2 || x.DomainWide {
			t.Errorf("%+v, %v", x, err)
		}
		if _, err := a.Bans().Lift(t.Context(), "shop", "login", []string{"198.51.100.0/24"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !passes(t, b, "198.51.100.1", "/login", "") {
			t.Error("lifted on one node, and not on the other")
		}
		// A node that starts later reads them.
		late := followers(t, store, 1, scopeRules)[0]
		synctest.Wait()
		if passes(t, late, "2001:db8:7:8::1", "/login", "") {
			t.Error("a node that starts later does not refuse the network")
		}
	})
}
