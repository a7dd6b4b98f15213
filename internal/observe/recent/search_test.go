package recent

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/rule"
)

const searched = `
domain: shop
limits:
  - { name: api, when: { path: "/api/**", header.x-api-key: "*" }, per: [user], allow: 1/day, algorithm: sliding_log }
  - { name: all, per: [ip, tenant], allow: 100/day, algorithm: sliding_log }
`

// search searches at the time of a clock.
func search(b *Buffer, c *clock, q find.Query) map[string]find.Hit {
	q.Since = time.UnixMicro(c.now).Add(-find.Lately).UnixMicro()
	book := find.NewBook(&q, b.Seed())
	b.Search(book)
	f := book.Found()
	hits := map[string]find.Hit{}
	for _, h := range f.Hits {
		hits[h.Key] = h
	}
	return hits
}

// TestSearch: a search says of a key what the list of its decisions says.
func TestSearch(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: 1}), new(clock)
	l := newLimiter(t, b, c, searched)
	r := rand.New(rand.NewPCG(1, 2))
	for range 1500 {
		c.now += int64(r.IntN(200_000))
		a := rule.Map{"ip": fmt.Sprintf("192.0.2.%d", r.IntN(9)), "tenant": fmt.Sprint("t-", r.IntN(3)),
			"path": "/api/x", "header.x-api-key": fmt.Sprint("secret-", r.IntN(4))}
		if r.IntN(3) > 0 {
			a["user"] = fmt.Sprint("u-", r.IntN(20))
		}
		ask(t, l, a)
	}
	since := time.UnixMicro(c.now).Add(-find.Lately)
	hits := search(b, c, find.Query{})
	for key := range hits {
		want := find.Hit{Domain: "shop", Key: key}
		for _, e := range b.List(Query{}) {
			if !e.has(key) {
				continue
			}
			if e.Time.After(want.SeenAt) {
				want.SeenAt = e.Time
			}
			for _, l := range e.Limits {
				want.Counter = want.Counter || l.Key == key
			}
			if e.Allowed {
				continue
			}
			if want.RefusedAt == nil {
				want.RefusedAt = &e.Time
			}
			if !e.Time.Before(since) {
				want.Refused++
			}
		}
		got := hits[key]
		if got.RefusedAt == nil || want.RefusedAt == nil {
			t.Fatalf("%s: %+v, want %+v", key, got, want)
		}
		if got.Counter != want.Counter || got.Refused != want.Refused || !got.SeenAt.Equal(want.SeenAt) ||
			!got.RefusedAt.Equal(*want.RefusedAt) {
			t.Errorf("%s: %+v, want %+v", key, got, want)
		}
		by := uint64(0)
		for _, c := range got.By {
			by += c.Count
		}
		// The rules that a hit counts are bounded by their counters.
		if by > got.Refused || got.Counter && len(got.By) == 1 && by == 0 {
			t.Errorf("%s: %+v", key, got)
		}
	}
	// 20 users, 9 addresses and 3 tenants alone and together, 4 hidden values.
	if len(hits) != 20+9+3+27+4 {
		t.Errorf("%d hits", len(hits))
	}
	if got := search(b, c, find.Query{Text: []byte("SECRET-1")}); len(got) != 0 {
		t.Errorf("a secret in another spelling: %v", got)
	}
	if got := search(b, c, find.Query{Text: []byte("secret-1")}); len(got) != 1 {
		t.Errorf("a secret that is named in full: %v", got)
	}
	if got := search(b, c, find.Query{Domain: "other"}); len(got) != 0 {
		t.Errorf("in another domain: %v", got)
	}
}

// TestSearchAtLeast: where not all refusals of the last minute are kept, a search says so.
func TestSearchAtLeast(t *testing.T) {
	for name, send := range map[string]func(refuse func(n int, user string)){
		"a flood of the key": func(refuse func(int, string)) { refuse(perKey+2, "ada"); refuse(3, "eve") },
		"a flood of many": func(refuse func(int, string)) {
			for i := range 3 * refusalsPerSecond {
				refuse(2, fmt.Sprint("u-", i))
			}
			refuse(2, "ada")
		},
		"a small buffer": func(refuse func(int, string)) {
			for i := range 200 {
				refuse(3, fmt.Sprint("u-", i))
			}
			refuse(3, "ada")
		},
	} {
		for _, calm := range []bool{true, false} {
			o := Options{Sample: -1}
			if name == "a small buffer" && !calm {
				o.Entries = 64
			}
			b, c := newBuffer(t, o), new(clock)
			l := newLimiter(t, b, c, searched)
			send(func(n int, user string) {
				for range n {
					if calm {
						c.now += 200_000
					}
					ask(t, l, rule.Map{"user": user, "path": "/api/x", "header.x-api-key": "k"})
				}
			})
			refused := 0
			for _, h := range search(b, c, find.Query{Text: []byte("user=")}) {
				if h.Refused == 0 {
					continue
				}
				refused++
				if name == "a flood of the key" && h.Key != "user=ada" {
					if h.AtLeast {
						t.Errorf("beside %s, calm %v: %+v", name, calm, h)
					}
				} else if h.AtLeast == calm {
					t.Errorf("%s, calm %v: %+v", name, calm, h)
				}
			}
			if refused == 0 {
				t.Errorf("%s, calm %v: none", name, calm)
			}
		}
	}
}

// TestSearchIDs: a decision is found by the beginning of its id.
func TestSearchIDs(t *testing.T) {
	b, c := newBuffer(t, Options{Sample: -1}), new(clock)
	l := newLimiter(t, b, c, searched)
	ada := rule.Map{"user": "ada", "path": "/api/x", "header.x-api-key": "k"}
	for range 20 {
		ask(t, l, ada)
		c.now += 1e6
	}
	d := ask(t, l, ada)
	for _, q := range []find.Query{{Text: []byte(d.ID.String()[:9])}, {Text: []byte(d.ID.String()[:9]), Domain: "none"},
		{Text: []byte(d.ID.String()[:9]), Whole: true}} {
		book := find.NewBook(&q, 0)
		b.Search(book)
		f := book.Found()
		if q.Domain != "" || q.Whole {
			if len(f.Decisions) != 0 {
				t.Errorf("%+v: %+v", q, f)
			}
			continue
		}
		want := find.Decision{ID: d.ID, Time: time.UnixMicro(c.now).UTC(), Domain: "shop", Outcome: "denied",
			Key: "user=ada"}
		if len(f.Decisions) != 1 || f.Decisions[0] != want {
			t.Errorf("%+v, want %+v", f.Decisions, want)
		}
	}
}
