package capacity

// kind is the kind of an event.
type kind uint8

const (
	serves  kind = iota // a store decides a call
	arrives             // a call reaches a store
	answers             // an answer reaches a node
	visits              // a node looks after its leases
	dies
	starts
)

// event is something that will happen at an instant, in ns. Among events at one instant, the one
// that was scheduled first comes first.
type event struct {
	at   int64
	turn uint64
	what kind
	who  int32 // a node
	life int32 // of the node: events of one that died differ from its successor's
	call *call
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.turn < o.turn }

// agenda holds the events to come. It is a heap in which each event has four below it: it is
// shallower than one with two, and reads neighbours in memory together.
type agenda struct {
	heap []event
	turn uint64
}

func (a *agenda) add(e event) {
	a.turn++
	e.turn = a.turn
	a.heap = append(a.heap, e)
	i := len(a.heap) - 1
	for i > 0 {
		above := (i - 1) / 4
		if !e.before(&a.heap[above]) {
			break
		}
		a.heap[i] = a.heap[above]
		i = above
	}
	a.heap[i] = e
}

// pop removes and returns the first event; there must be one.
func (a *agenda) pop() event {
	first, n := a.heap[0], len(a.heap)-1
	e := a.heap[n]
	a.heap[n].call = nil
	a.heap = a.heap[:n]
	if n == 0 {
		return first
	}
	i := 0
	for {
		below := 4*i + 1
		if below >= n {
			break
		}
		for j := below + 1; j < min(below+4, n); j++ {
			if a.heap[j].before(&a.heap[below]) {
				below = j
			}
		}
		if !a.heap[below].before(&e) {
			break
		}
		a.heap[i] = a.heap[below]
		i = below
	}
	a.heap[i] = e
	return first
}
