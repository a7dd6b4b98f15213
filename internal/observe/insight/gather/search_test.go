package gather

import (
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/rule"
)

// TestSearch: the keys that come often are found, with about how many of their requests passed
// lately, and when they were refused. What a rule in shadow would have done is neither.
func TestSearch(t *testing.T) {
	b := newBench(t, Options{}, `
domain: shop
limits:
  - { name: search, per: [user], allow: 10/day, algorithm: sliding_log }
  - { name: trial, per: [ip], allow: 1/day, algorithm: sliding_log, on_limit: shadow }
`)
	ask := func(n int, user, ip string) {
		for range n {
			b.send(weir.Request{Domain: "shop", Attributes: rule.Pairs{{Name: "user", Value: user}, {Name: "ip", Value: ip}}})
		}
	}
	find := func(text string) (list []find.Hit) {
		q := find.Query{Text: []byte(text), Since: b.time().Add(-find.Lately).UnixMicro()}
		book := find.NewBook(&q, b.Seed())
		b.Search(book)
		found := book.Found()
		return found.Hits
	}
	ask(4, "Ada", "192.0.2.1")
	ask(13, "adam", "192.0.2.2")
	refused := b.time()
	list := find("ada")
	if len(list) != 2 || list[0].Key != "user=Ada" || list[0].Allowed != 4 || list[0].RefusedAt != nil ||
		list[1].Key != "user=adam" || list[1].Allowed != 10 || list[1].RefusedAt == nil ||
		!list[1].RefusedAt.Equal(refused) || !list[1].Counter || list[1].Domain != "shop" {
		t.Errorf("%+v", list)
	}
	if list := find("192.0.2.2"); len(list) != 1 || list[0].Allowed != 0 || list[0].RefusedAt != nil {
		t.Errorf("of a rule in shadow: %+v", list)
	}
	b.pass(2 * time.Minute)
	if list := find("user=ada"); len(list) != 2 || list[0].Allowed != 0 || !list[0].SeenAt.Equal(refused) {
		t.Errorf("two minutes later: %+v", list)
	}
}
