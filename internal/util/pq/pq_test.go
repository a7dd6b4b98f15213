package pq

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type item struct {
	value, at int
}

func newHeap() *Heap[*item] {
	h := New(func(a, b *item) bool { return a.value < b.value }, func(x *item, at int) { x.at = at })
	return &h
}

// A heap does what a sorted slice does, and reports where each of its items is.
func TestHeapAgainstSortedSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, sorted := newHeap(), []*item{}
		draw := func() int { return rapid.IntRange(0, 9).Draw(t, "value") }
		some := func() (i int, x *item) {
			if len(sorted) == 0 {
				t.Skip("empty")
			}
			i = rapid.IntRange(0, len(sorted)-1).Draw(t, "item")
			return i, sorted[i]
		}
		sort := func() {
			slices.SortStableFunc(sorted, func(a, b *item) int { return cmp.Compare(a.value, b.value) })
		}
		least := func(x *item) {
			if len(sorted) == 0 || x.value != sorted[0].value {
				t.Fatalf("least is %d", x.value)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(*rapid.T) {
				x := &item{value: draw(), at: -1}
				h.Push(x)
				sorted = append(sorted, x)
			},
			"pop": func(t *rapid.T) {
				if h.Len() == 0 {
					t.Skip("empty")
				}
				x := h.Pop()
				least(x)
				sorted = slices.DeleteFunc(sorted, func(y *item) bool { return y == x })
			},
			"remove": func(*rapid.T) {
				i, x := some()
				if got := h.Remove(x.at); got != x {
					t.Fatalf("removed %v, not %v", got, x)
				}
				sorted = slices.Delete(sorted, i, i+1)
			},
			"replace": func(t *rapid.T) {
				if h.Len() == 0 {
					t.Skip("empty")
				}
				old, x := h.Min(), &item{value: draw(), at: -1}
				h.Replace(x)
				sorted[slices.Index(sorted, old)] = x
			},
			"fix": func(*rapid.T) {
				_, x := some()
				x.value = draw()
				h.Fix(x.at)
			},
			"": func(t *rapid.T) {
				sort()
				if h.Len() != len(sorted) || len(h.Items()) != len(sorted) {
					t.Fatalf("%d items, not %d", h.Len(), len(sorted))
				}
				for i, x := range h.Items() {
					if x.at != i || !slices.Contains(sorted, x) {
						t.Fatalf("item %v is at %d", *x, i)
					}
				}
				if h.Len() > 0 {
					least(h.Min())
				}
			},
		})
		for h.Len() > 0 {
			x := h.Pop()
			least(x)
			sorted = slices.DeleteFunc(sorted, func(y *item) bool { return y == x })
			sort()
		}
	})
}

// Without moved a heap sorts values.
func TestHeapSorts(t *testing.T) {
	h := New(func(a, b string) bool { return a < b }, nil)
	for _, x := range []string{"river", "weir", "dam", "lock", "mill", "dam"} {
		h.Push(x)
	}
	var got []string
	for h.Len() > 0 {
		got = append(got, h.Pop())
	}
	if want := []string{"dam", "dam", "lock", "mill", "river", "weir"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What has left a heap is not kept alive by it.
func TestHeapForgets(t *testing.T) {
	h := newHeap()
	for i := range 4 {
		h.Push(&item{value: i})
	}
	h.Pop()
	h.Remove(h.Items()[2].at)
	for i, x := range h.items[:cap(h.items)][h.Len():] {
		if x != nil {
			t.Errorf("item %d past the end is still there", i)
		}
	}
}
