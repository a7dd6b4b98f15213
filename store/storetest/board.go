package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
)

// Board tests the contract of store.Board, on a store that is made with a virtual clock.
func Board(t *testing.T, open func(t *testing.T, clock func() int64) store.Board) {
	const begin = int64(1767225600) * 1e6
	var now atomic.Int64
	now.Store(begin)
	board := open(t, now.Load)
	ctx := t.Context()
	post := func(kind string, facts ...store.Fact) {
		t.Helper()
		if err := board.Post(ctx, kind, facts); err != nil {
			t.Fatal(err)
		}
	}
	list := func(kind string) string {
		t.Helper()
		facts, err := board.List(ctx, kind)
		if err != nil {
			t.Fatal(err)
		}
		return factsText(facts)
	}
	same := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	same(list("a"), "")
	odd := "\x00\xff id{}"
	post("a", store.Fact{ID: "x", Data: []byte("1"), TTL: 10 * time.Second},
		store.Fact{ID: odd, Data: []byte{0, 1, 255}, TTL: time.Minute})
	post("b", store.Fact{ID: "x", TTL: time.Hour})
	now.Add(3e6)
	same(list("a"), `"\x00\xff id{}"="\x00\x01\xff" 57s 3s; "x"="1" 7s 3s`)
	same(list("b"), `"x"="" 59m57s 3s`)
	// replaces the previous fact
	post("a", store.Fact{ID: "x", Data: []byte("2"), TTL: 2 * time.Second})
	same(list("a"), `"\x00\xff id{}"="\x00\x01\xff" 57s 3s; "x"="2" 2s 0s`)
	now.Add(2e6 - 1)
	same(list("a"), `"\x00\xff id{}"="\x00\x01\xff" 55.000001s 5s; "x"="2" 1µs 2s`)
	now.Add(1)
	same(list("a"), `"\x00\xff id{}"="\x00\x01\xff" 55s 5s`)
	if err := board.Remove(ctx, "a", []string{odd, "nobody"}); err != nil {
		t.Fatal(err)
	}
	same(list("a"), "")
	for name, bad := range map[string]store.Fact{
		"no id":    {TTL: 1e9},
		"long id":  {ID: strings.Repeat("x", store.MaxFactID+1), TTL: 1e9},
		"data":     {ID: "x", Data: make([]byte, store.MaxFactData+1), TTL: 1e9},
		"no time":  {ID: "x"},
		"was over": {ID: "x", TTL: -1e9},
		"removed":  {ID: "x", TTL: 1e9, Removed: true},
	} {
		if board.Post(ctx, "a", []store.Fact{bad}) == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	largest := store.Fact{ID: strings.Repeat("\xff", store.MaxFactID), Data: make([]byte, store.MaxFactData),
		TTL: time.Second}
	post("c", largest)
	if facts, err := board.List(ctx, "c"); err != nil || len(facts) != 1 || facts[0].ID != largest.ID ||
		!slices.Equal(facts[0].Data, largest.Data) {
		t.Errorf("the largest fact: %d facts, %v", len(facts), err)
	}
	var many []store.Fact
	for i := range 1234 {
		many = append(many, store.Fact{ID: fmt.Sprint(i), TTL: time.Duration(1+i) * time.Minute})
	}
	post("d", many...)
	if facts, err := board.List(ctx, "d"); err != nil || len(facts) != len(many) {
		t.Errorf("%d facts of %d: %v", len(facts), len(many), err)
	}

	// Watch reports the existing facts, including removed ones, and then each change. If the steps
	// below take long, it tells some again.
	watching, cancel := context.WithCancel(ctx)
	told := make(chan string, 100)
	ended := make(chan error)
	before := make(map[string]bool)
	go func() {
		ended <- board.Watch(watching, "a", func(facts []store.Fact, anew bool) {
			news := slices.DeleteFunc(factTexts(facts), func(text string) bool { return before[text] })
			for _, text := range news {
				before[text] = true
			}
			if anew || len(news) > 0 {
				told <- fmt.Sprintf("%v %s", anew, strings.Join(news, "; "))
			}
		})
	}()
	next := func() string {
		t.Helper()
		return patience.Receive(t, "a report of Watch", told)
	}
	same(next(), `true "\x00\xff id{}"- 55s 0s`)
	post("a", store.Fact{ID: "y", Data: []byte("3"), TTL: time.Hour})
	same(next(), `false "y"="3" 1h0m0s 0s`)
	post("d", store.Fact{ID: "elsewhere", TTL: time.Hour})
	if err := board.Remove(ctx, "a", []string{"y"}); err != nil {
		t.Fatal(err)
	}
	same(next(), `false "y"- 1h0m0s 0s`)
	post("a", store.Fact{ID: "y", Data: []byte("4"), TTL: time.Minute})
	same(next(), `false "y"="4" 1m0s 0s`)
	cancel()
	if err := <-ended; err != context.Canceled {
		t.Errorf("Watch ended with %v", err)
	}
}

// factsText writes facts by id.
func factsText(facts []store.Fact) string { return strings.Join(factTexts(facts), "; ") }

// factTexts writes each of the facts, by id. An age may be a few microseconds off.
func factTexts(facts []store.Fact) (list []string) {
	for _, f := range facts {
		text := fmt.Sprintf("%q=%q", f.ID, f.Data)
		if f.Removed {
			text = fmt.Sprintf("%q-", f.ID)
		}
		list = append(list, fmt.Sprintf("%s %s %s", text, f.TTL, f.Age.Round(time.Millisecond)))
	}
	slices.Sort(list)
	return list
}
