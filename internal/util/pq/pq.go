// Package pq is a priority queue whose items can be moved and removed while they wait.
//
// It does what container/heap does, for one type of item, without an interface to implement and
// without boxing an item as any. Begin at Heap.
package pq

// Heap is a binary heap: Min is the least of its items. The zero value is empty, and cannot take an
// item; make one with New. Not safe for concurrent use.
type Heap[T any] struct {
	less  func(a, b T) bool
	moved func(x T, at int)
	items []T
}

// New returns an empty heap. less reports whether a comes before b. moved is called with each item
// that is put at an index, which Fix and Remove take; an item that leaves the heap is not reported.
// It is nil if nobody needs the indexes.
func New[T any](less func(a, b T) bool, moved func(x T, at int)) Heap[T] {
	return Heap[T]{less: less, moved: moved}
}

// Len returns the number of items.
func (h *Heap[T]) Len() int { return len(h.items) }

// Items returns all items, the least one first and the others in no order. The slice belongs to the
// heap: it must not be changed, and is valid until the heap is.
func (h *Heap[T]) Items() []T { return h.items }

// Min returns the least item. The heap must not be empty.
func (h *Heap[T]) Min() T { return h.items[0] }

// Push adds an item.
func (h *Heap[T]) Push(x T) {
	h.items = append(h.items, x)
	h.up(len(h.items)-1, x)
}

// Pop removes the least item and returns it. The heap must not be empty.
func (h *Heap[T]) Pop() T { return h.Remove(0) }

// Remove removes the item at an index and returns it.
func (h *Heap[T]) Remove(at int) T {
	x := h.items[at]
	last := len(h.items) - 1
	moved := h.items[last]
	var zero T
	h.items[last] = zero // so that the garbage collector can have it
	h.items = h.items[:last]
	if at < last {
		h.place(at, moved)
	}
	return x
}

// Replace puts x in place of the least item. The heap must not be empty.
func (h *Heap[T]) Replace(x T) { h.down(0, x) }

// Fix restores the order after the item at an index has changed.
func (h *Heap[T]) Fix(at int) { h.place(at, h.items[at]) }

// place puts x where it belongs, beginning at a free index.
func (h *Heap[T]) place(at int, x T) {
	if at > 0 && h.less(x, h.items[(at-1)/2]) {
		h.up(at, x)
	} else {
		h.down(at, x)
	}
}

// up moves the items above a free index down until x can stand there.
func (h *Heap[T]) up(at int, x T) {
	for at > 0 {
		parent := (at - 1) / 2
		if !h.less(x, h.items[parent]) {
			break
		}
		h.set(at, h.items[parent])
		at = parent
	}
	h.set(at, x)
}

// down moves the items below a free index up until x can stand there.
func (h *Heap[T]) down(at int, x T) {
	for {
		child := 2*at + 1
		if child >= len(h.items) {
			break
		}
		if right := child + 1; right < len(h.items) && h.less(h.items[right], h.items[child]) {
			child = right
		}
		if !h.less(h.items[child], x) {
			break
		}
		h.set(at, h.items[child])
		at = child
	}
	h.set(at, x)
}

func (h *Heap[T]) set(at int, x T) {
	h.items[at] = x
	if h.moved != nil {
		h.moved(x, at)
	}
}
