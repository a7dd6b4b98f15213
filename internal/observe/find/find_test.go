package find

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

var now = time.Date(2026, 1, 5, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *time.Time { t := now.Add(-d); return &t }

func keys(f *Found) (text string) {
	for i := range f.Hits {
		text += " " + f.Hits[i].Domain + "/" + f.Hits[i].Key
	}
	return strings.TrimPrefix(text, " ")
}

// TestOrder: what is named in full comes first, then what was refused most in the last minute, then
// what was refused last.
func TestOrder(t *testing.T) {
	f := Found{Hits: []Hit{
		{Domain: "a", Key: "user=canada", SeenAt: now},
		{Domain: "a", Key: "user=adam", SeenAt: now},
		{Domain: "a", Key: "user=ada-2", RefusedAt: ago(time.Hour), SeenAt: now},
		{Domain: "b", Key: "user=ada", SeenAt: now},
		{Domain: "c", Key: "user=adair", Refused: 9, RefusedAt: ago(0), SeenAt: now},
		{Domain: "a", Key: "user=ada", Refused: 1, RefusedAt: ago(0), SeenAt: now},
		{Domain: "a", Key: "user=ada-3", RefusedAt: ago(time.Minute), SeenAt: now},
	}}
	for range 10 {
		f.Finish(query("ada"))
		const want = "a/user=ada b/user=ada c/user=adair a/user=ada-3 a/user=ada-2 a/user=adam a/user=canada"
		if got := keys(&f); got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
		slices.Reverse(f.Hits)
	}
}

// TestAdd: nodes add up to the same, in whatever order they are heard.
func TestAdd(t *testing.T) {
	node := func(n uint64, rules ...string) Found {
		h := Hit{Domain: "shop", Key: "user=ada", Refused: n, Allowed: 10 * n, SeenAt: now.Add(time.Duration(n)),
			RefusedAt: ago(time.Duration(n)), AtLeast: n == 2, Counter: n == 3}
		for _, r := range rules {
			h.By = append(h.By, insight.Count{Value: r, Count: n})
		}
		own := Hit{Domain: "shop", Key: fmt.Sprintf("user=ada-%d", n), SeenAt: now}
		return Found{Hits: []Hit{h, own}}
	}
	all := []Found{node(1, "a", "b"), node(2, "b"), node(3, "c", "d")}
	var first *Found
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		var f Found
		for _, i := range order {
			f.Add(&all[i])
		}
		f.Finish(query("ada"))
		if first == nil {
			first = &f
		}
		if !reflect.DeepEqual(f, *first) {
			t.Errorf("%v: %+v\nand %+v", order, f, *first)
		}
	}
	h := first.Hits[0]
	if len(first.Hits) != 4 || h.Refused != 6 || h.Allowed != 60 || !h.AtLeast || !h.Counter || len(h.By) != 3 ||
		!h.RefusedAt.Equal(now.Add(-1)) || !h.SeenAt.Equal(now.Add(3)) {
		t.Errorf("%+v", first)
	}
}

// TestBounds: a Book and an answer hold so many hits, and say that there are more.
func TestBounds(t *testing.T) {
	b := NewBook(query(""), 0)
	for i := range mostHeld + 5 {
		b.Listed("shop", fmt.Appendf(nil, "user=%d", i), now.UnixMicro(), 0, false)
	}
	f := b.Found()
	if len(b.hits) != mostHeld || len(f.Hits) != MostHits || f.LeftOut != mostHeld+5-MostHits {
		t.Errorf("%d held, %d hits, %d left out", len(b.hits), len(f.Hits), f.LeftOut)
	}
	// What a node has left out may have been refused, too.
	f.Hits[0].Refused = 1
	f.Finish(query(""))
	if !f.Hits[0].AtLeast || f.Hits[1].AtLeast {
		t.Errorf("%+v", f.Hits[:2])
	}
}
