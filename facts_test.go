package weir_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// What nodes write on the board is read by nodes of other versions, and after a restart: every byte
// of a fact's name and text is as it was, and so is how long it holds.
func TestFactsOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := wallStore(t, memory.Options{})
		t.Cleanup(func() { _ = s.Close() })
		const rules = `
limits:
  - {name: login, per: [ip], allow: 2/day, algorithm: fixed_window, ban: {after: 1, within: 10m, for: 15m, scope: domain, at: [http, nftables]}}
  - {name: api, per: [user], allow: 2/min}
`
		l := followers(t, s, 1, rules)[0]
		until := time.Now().Add(time.Hour)
		for range 3 {
			decide(t, l, from("192.0.2.1", "/")) // the window ends long after the ban
		}
		if _, err := l.Bans().Set(t.Context(), "", "api", []string{`"ada" <é>`}, until, "by hand"); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Grants().Set(t.Context(), "", "api", []string{"bob"}, " 7/min ", until, ""); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var got []string
		for _, kind := range []string{"ban", "grant"} {
			facts, err := s.List(t.Context(), kind)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range facts {
				got = append(got, fmt.Sprintf("%s %x %s %s", kind, f.ID, f.Data, f.TTL))
			}
		}
		slices.Sort(got)
		if text := strings.Join(got, "\n"); text != wantFacts {
			t.Errorf("got\n%s\nwant\n%s", text, wantFacts)
		}
	})
}

// An order that was taken over from another region has been in force since it was made there.
func TestFactsOfOtherRegions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rules = `{limits: [{name: api, per: [user], allow: 2/min}]}`
		s := wallStore(t, memory.Options{})
		t.Cleanup(func() { _ = s.Close() })
		l := followers(t, s, 1, rules)[0]
		if _, err := l.Bans().Set(t.Context(), "", "api", []string{"ada"}, time.Now().Add(time.Hour), "by hand"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		facts, err := s.List(t.Context(), "ban")
		if err != nil || len(facts) != 1 {
			t.Fatalf("%+v, %v", facts, err)
		}
		other := wallStore(t, memory.Options{})
		t.Cleanup(func() { _ = other.Close() })
		in := followers(t, other, 1, rules)[0]
		f := facts[0]
		f.Data = slices.Concat(f.Data[:len(f.Data)-1], []byte(`,"before":600000000}`))
		if err := other.Post(t.Context(), "ban", []store.Fact{f}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		ban, err := in.Bans().Of("", "api", []string{"ada"})
		if err != nil || !ban.Since.Equal(time.Now().Add(-10*time.Minute)) ||
			!ban.Until.Equal(time.Now().Add(time.Hour)) {
			t.Errorf("%+v, %v", ban, err)
		}
	})
}

const wantFacts = `ban 13f09ed31fd7f98c02c0000201 {"v":1,"domain":"default","limit":"login","key":["ip=192.0.2.1"],"reason":"1 denial within 10m0s","wide":true,"nftables":true,"beyond":85500000000,"at":946684800000000} 15m0s
ban 6debe82145b72ace000a2261646122203cc3a93e {"v":1,"domain":"default","limit":"api","key":["user=\"ada\" \u003cé\u003e"],"reason":"by hand","set":true,"at":946684800000000} 1h0m0s
grant 6debe82145b72ace0003626f62 {"v":1,"domain":"default","limit":"api","key":["user=bob"],"allow":"7/min","at":946684800000000} 1h0m0s`
