package orders

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

const scopeRules = `
domain: shop
limits:
  - {name: login, per: [ip], allow: 9/min}
  - {name: api, per: [ip], allow: 9/min}
  - {name: own, per: [ip], allow: 9/min, ban: {after: 9, within: 1m, for: 1m, scope: domain}}
`

type scopeBed struct {
	*Orders
	t   *testing.T
	now int64
	set *rule.Set
}

func newScopeBed(t *testing.T) *scopeBed {
	t.Helper()
	s, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b := &scopeBed{t: t, now: time.Now().UnixMicro(), set: loadSet(t)}
	b.Orders = New(Config{Store: s, Rules: func() *rule.Set { return b.set }, Clock: func() int64 { return b.now }, MaxBans: 1000, MaxPending: 1})
	return b
}

func loadSet(t *testing.T) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(scopeRules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func (b *scopeBed) rule(name string) *rule.Rule {
	return b.set.Rules()[slices.IndexFunc(b.set.Rules(), func(r *rule.Rule) bool { return r.Name == name })]
}

func (b *scopeBed) ban(limit, key string, lasts time.Duration, scope Scope) {
	b.t.Helper()
	// Other nodes cannot be told: nobody follows the board.
	_, _ = b.Bans.Set(b.t.Context(), b.rule(limit), []string{key}, time.UnixMicro(b.now).Add(lasts), "", scope)
	if _, err := b.Bans.Of(b.rule(limit), []string{key}); err != nil {
		b.t.Fatal(err)
	}
}

// looked is what requests look at beside their own keys: sizes of networks under each rule, and the
// rules whose bans hold in the whole domain.
func (b *scopeBed) looked() string {
	b.t.Helper()
	for i := range 2000 { // requests of other clients
		for _, name := range []string{"login", "api", "own"} {
			w := b.rule(name).Windows[0]
			key, err := w.AppendKey(nil, []string{fmt.Sprintf("10.0.%d.%d", i/250, i%250)})
			if err != nil {
				b.t.Fatal(err)
			}
			if _, ok := b.Bans.Find(w.Counter.Keys, key, b.now, true); ok {
				b.t.Fatalf("a key that nobody banned is banned by %s", name)
			}
		}
	}
	text := ""
	for _, name := range []string{"login", "api"} {
		text += fmt.Sprint(len(b.Bans.networks.of(b.rule(name).Windows[0].Counter.Keys)), " ")
	}
	if !b.Bans.AnyDomainWide() {
		return text + "none"
	}
	for _, r := range b.Bans.WideRules(b.set, "shop") {
		text += r.Name + " "
	}
	return text + "wide"
}

// TestPruned: once bans are over, by their end or since they were lifted, requests look no further
// for them, and nothing of them is kept.
func TestPruned(t *testing.T) {
	b := newScopeBed(t)
	is := func(when, want string) {
		t.Helper()
		if got := b.looked(); got != want {
			t.Errorf("%s: %s, want %s", when, got, want)
		}
	}
	is("before", "0 0 none")
	b.ban("login", "192.0.2.0/24", time.Minute, ScopeRule)
	b.ban("login", "198.51.100.0/24", time.Hour, ScopeRule)
	b.ban("login", "2001:db8::/48", time.Minute, ScopeRule)
	b.ban("api", "203.0.113.0/28", time.Minute, ScopeDomain)
	b.ban("own", "192.0.2.1", time.Hour, ScopeAsRule)
	is("with bans", "2 1 api wide")
	b.now += time.Minute.Microseconds()
	is("after some ended", "1 0 wide")
	// A ban that is replaced counts once.
	b.ban("login", "198.51.100.0/24", time.Minute, ScopeDomain)
	b.ban("login", "198.51.100.0/24", 2*time.Minute, ScopeDomain)
	is("with one in place of another", "1 0 login wide")
	for limit, key := range map[string]string{"login": "198.51.100.0/24", "own": "192.0.2.1"} {
		_, _ = b.Bans.Lift(t.Context(), b.rule(limit), []string{key}) // nor of this
	}
	is("after the others were lifted", "0 0 none")
	if n := len(b.Bans.wide.bans) + len(b.Bans.networks.bans); n != 0 {
		t.Errorf("%d entries are kept", n)
	}
	// And anew.
	b.ban("api", "192.0.2.0/25", time.Minute, ScopeDomain)
	is("with a new one", "0 1 api wide")
}

// TestWideRulesOnce: of those who ask for the rules of another set at one time, one looks for them.
func TestWideRulesOnce(t *testing.T) {
	b := newScopeBed(t)
	b.ban("login", "192.0.2.1", time.Hour, ScopeDomain)
	for range 20 {
		old, next := b.set, loadSet(t)
		var found [16][]*rule.Rule
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range found {
			wg.Go(func() {
				<-begin
				found[i] = b.Bans.WideRules(next, "shop")
			})
		}
		close(begin)
		wg.Wait()
		for i := range found {
			if len(found[i]) != 1 || &found[i][0] != &found[0][0] {
				t.Fatalf("%d asked, and found %p and %p", i, found[i], found[0])
			}
		}
		// Requests of the set before are not looked up anew, as they end.
		if before, again := b.Bans.WideRules(old, "shop"), b.Bans.WideRules(next, "shop"); &again[0] != &found[0][0] || before[0] != b.rule("login") {
			t.Fatal("the sets before and after displace each other")
		}
		b.set = next
	}
}
