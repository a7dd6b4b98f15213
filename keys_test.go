package weir_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// Whoever asks for the hottest keys again and again gets to know them all, at a price for each call
// that is bounded.
func TestHottestKeysBounded(t *testing.T) {
	store, err := memory.New(memory.Options{Clock: newClock().read})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(`
limits: [{ name: a, per: [user], allow: 1000/day, algorithm: fixed_window }, { name: b, per: [user], allow: 500/day }]`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(store, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	const users = 6000
	for i := range users {
		hits := int64(1)
		if i%600 == 0 {
			hits = int64(100 + i/600)
		}
		var d weir.Decision
		r := weir.Request{Attributes: rule.Map{"user": fmt.Sprint(i)}, Hits: hits, Peek: hits == 0,
			MaxDelay: weir.AnyDelay}
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := l.Keys().Hottest(t.Context(), "", "b", weir.HottestOptions{Keys: 3, Look: -1})
	if err != nil || !whole.Complete || len(whole.Keys) != 3 || whole.Looked != whole.Of {
		t.Fatalf("a look at all: %+v, %v", whole, err)
	}
	before, calls := int64(1000), 0
	for looked := 0; ; calls++ {
		h, err := l.Keys().Hottest(t.Context(), "default", "a", weir.HottestOptions{Keys: 10, Look: 1000})
		if err != nil || h.Complete || h.Looked > 2000 || len(h.Keys) != 10 {
			t.Fatalf("%+v, %v", h, err)
		}
		// What was found stays, unless something hotter was.
		if least := h.Keys[9].Result.Remaining; least > before {
			t.Errorf("call %d lost a key: %d left of the tenth, %d before", calls, least, before)
		}
		before = h.Keys[9].Result.Remaining
		if looked += h.Looked; looked >= h.Of {
			for i, k := range h.Keys {
				if want := int64(1000 - 109 + i); k.Result.Remaining != want || len(k.Parts) != 1 {
					t.Errorf("place %d: %v with %d left, want %d", i, k.Parts, k.Result.Remaining, want)
				}
			}
			break
		}
	}
	if calls < 3 {
		t.Errorf("%d calls did for %d keys", calls, whole.Of)
	}
	for _, c := range []struct {
		domain, limit string
		key           []string
		want          error
	}{
		{"", "none", []string{"1"}, weir.ErrNoSuchLimit}, {"other", "a", []string{"1"}, weir.ErrNoSuchLimit},
		{"", "a", []string{"1", "2"}, weir.ErrBadKey}, {"", "a", []string{"usr=1"}, weir.ErrBadKey}, {"", "a", []string{"nobody"}, weir.ErrNotFound},
	} {
		if _, err := l.Keys().Get(t.Context(), c.domain, c.limit, c.key); !errors.Is(err, c.want) {
			t.Errorf("Key %q %q %q: %v, want %v", c.domain, c.limit, c.key, err, c.want)
		}
		if _, err := l.Keys().Reset(t.Context(), c.domain, c.limit, c.key); !errors.Is(err, c.want) {
			t.Errorf("ResetKey %q %q %q: %v, want %v", c.domain, c.limit, c.key, err, c.want)
		}
	}
	if _, err := l.Keys().Hottest(t.Context(), "other", "a", weir.HottestOptions{}); !errors.Is(err,
		weir.ErrNoSuchLimit) {
		t.Error(err)
	}
	if k, err := l.Keys().Reset(t.Context(), "", "default/a", []string{"user=0"}); err != nil ||
		k.Parts[0] != "user=0" {
		t.Errorf("%+v, %v", k, err)
	}
}

// inspected is a store whose inspections a test holds or fails.
type inspected struct {
	*memory.Store
	scanning chan struct{} // gets a value at each scan
	held     chan struct{} // a scan waits for it
	fails    uint64        // the counter under which a reset fails
}

func (s *inspected) Scan(ctx context.Context, v *store.View, from string, most int,
	visit func(store.KeyState)) (store.Scanned, error) {
	s.scanning <- struct{}{}
	<-s.held
	return s.Store.Scan(ctx, v, from, most, visit)
}

var errAway = errors.New("away")

func (s *inspected) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	if s.fails == c.ID {
		return false, errAway
	}
	return s.Store.Reset(ctx, c, key)
}

func inspectedLimiter(t *testing.T, rules ...string) (*weir.Limiter, *inspected) {
	t.Helper()
	store, err := memory.New(memory.Options{Clock: newClock().read})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	var files []file.Source
	for i, text := range rules {
		files = append(files, file.Source{Name: fmt.Sprint(i, ".yaml"), Data: []byte(text)})
	}
	set, _, err := file.Load(files, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &inspected{Store: store, scanning: make(chan struct{}, 1), held: make(chan struct{})}
	l, err := weir.New(s, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	return l, s
}

// A listing that waits for another one says so, and blames no store.
func TestHottestKeysOneAtATime(t *testing.T) {
	l, store := inspectedLimiter(t, "limits: [{ name: a, per: [user], allow: 9/day }]")
	ended := make(chan error, 1)
	go func() {
		_, err := l.Keys().Hottest(context.Background(), "", "a", weir.HottestOptions{Look: -1})
		ended <- err
	}()
	<-store.scanning
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := l.Keys().Hottest(ctx, "", "a", weir.HottestOptions{}); !errors.Is(err, weir.ErrListing) {
		t.Errorf("while another one looks: %v", err)
	}
	close(store.held)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if found, err := l.Keys().Hottest(t.Context(), "", "a", weir.HottestOptions{}); err != nil ||
		len(found.Rules) != 1 || found.Rules[0].Name != "a" {
		t.Errorf("after it: %+v, %v", found, err)
	}
}

// A name that means no limit is told with the domain that was looked in, and what may have been
// meant.
func TestNoSuchLimit(t *testing.T) {
	shop := "domain: shop\nlimits: [{ name: login, per: [user], allow: 9/day }]"
	blog := "domain: blog\nlimits: [{ name: comment, per: [user], allow: 9/day }]"
	one, _ := inspectedLimiter(t, shop)
	two, _ := inspectedLimiter(t, shop, blog)
	const none = "no rule in force has a limit of this name"
	for _, c := range []struct {
		l                   *weir.Limiter
		domain, limit, want string
	}{
		{one, "", "logn", none + ` in the domain "shop"; did you mean "login"?`},
		{one, "shop", "zzzz", none + ` in the domain "shop"; /api/v1/rules lists them`},
		{one, "shp", "login", none + ` in the domain "shp", which no rule file declares; there are shop; /api/v1/rules lists them`},
		{two, "blog", "coment", none + ` in the domain "blog"; did you mean "comment"?`},
		{two, "blog", "login", none + ` in the domain "blog"; /api/v1/rules lists them`},
		{two, "", "logn", none + `; name one with domain; there are shop, blog; did you mean "shop/login"?`},
		{two, "", "zzzz", none + `; name one with domain; there are shop, blog; /api/v1/rules lists them`},
	} {
		_, err1 := c.l.Keys().Get(t.Context(), c.domain, c.limit, []string{"1"})
		_, err2 := c.l.Keys().Reset(t.Context(), c.domain, c.limit, []string{"1"})
		_, err3 := c.l.Keys().Hottest(t.Context(), c.domain, c.limit, weir.HottestOptions{})
		for _, err := range []error{err1, err2, err3} {
			if !errors.Is(err, weir.ErrNoSuchLimit) || err.Error() != c.want {
				t.Errorf("%q, %q: %v\nwant %s", c.domain, c.limit, err, c.want)
			}
		}
	}
}

// A reset that fails under one window goes on with the others, and reports both.
func TestResetKeyGoesOn(t *testing.T) {
	l, store := inspectedLimiter(t, "limits: [{ name: a, per: [user], allow: [9/min, 90/hour] }]")
	set, _ := l.Rules()
	for _, w := range set.Rules()[0].Windows {
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Attributes: rule.Map{"user": "ada"}, Hits: 1}, &d); err != nil {
			t.Fatal(err)
		}
		store.fails = w.Counter.ID
		k, err := l.Keys().Reset(t.Context(), "", "a", []string{"ada"})
		if !errors.Is(err, errAway) || !k.Counted || len(k.Parts) != 1 {
			t.Errorf("%s fails: %+v, %v", w.Name, k, err)
		}
	}
	store.fails = 0
	if k, err := l.Keys().Reset(t.Context(), "", "a:60s", []string{"ada"}); !errors.Is(err, weir.ErrNotFound) ||
		k.Counted {
		t.Errorf("the window that was reset: %+v, %v", k, err)
	}
	if k, err := l.Keys().Reset(t.Context(), "", "a", []string{"ada"}); err != nil || !k.Counted {
		t.Errorf("the window that failed last: %+v, %v", k, err)
	}
}

// TestKeyInfoIsACopy: who changes what Keys has returned changes no ban and no grant in force.
func TestKeyInfoIsACopy(t *testing.T) {
	c := newClock()
	l := newLimiter(t, c, weir.WithRules(load(t, grantRules)), weir.WithClock(c.read))
	end := time.UnixMicro(c.read()).Add(time.Hour)
	if _, err := l.Bans().Set(t.Context(), "", "api", []string{"ada"}, end, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Grants().Set(t.Context(), "", "api", []string{"ada"}, "[10/min, 50/hour]", end, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		list, err := l.Keys().Get(t.Context(), "", "api", []string{"ada"})
		if err != nil || len(list) == 0 {
			t.Fatalf("%v, %v", list, err)
		}
		for _, k := range list {
			if k.Ban == nil || k.Ban.Key[0] != "user=ada" || !k.Ban.Until.Equal(end) {
				t.Fatalf("the ban is %+v", k.Ban)
			}
			if k.Grant == nil || k.Grant.Key[0] != "user=ada" || k.Grant.Allow != "[10/min, 50/hour]" {
				t.Fatalf("the grant is %+v", k.Grant)
			}
			k.Ban.Until, k.Ban.Key[0] = time.Time{}, "changed"
			k.Grant.Allow, k.Grant.Key[0] = "1/min", "changed"
		}
	}
}
