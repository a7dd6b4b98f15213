package accesslog

import "io"

// ordered yields the entries of a Reader in order of time, ties in file order. A line may be up to
// window older than the newest line before it. A line that is older still gets the time of the
// newest, and counts as late.
//
// Lines wait until no earlier one can come. Lines that came in order wait in a queue, the others in
// a heap. Each is kept as a compact copy, and the middle of a long queue is in a temporary file.
type ordered struct {
	r       *Reader
	window  int64
	newest  int64 // newest time read so far
	any     bool  // a line has been read
	ended   bool
	late    int64
	queue   queue
	heap    heap
	names   names
	current []byte // memory of the entry that was handed out last, to be reused
}

// next reads the next entry in order; its values are valid until the next call.
func (o *ordered) next(e *Entry) error {
	if cap(o.current) > 0 && cap(o.current) <= 4096 {
		o.heap.free = append(o.heap.free, o.current)
	}
	o.current = nil
	for {
		floor := o.newest - o.window
		t, fromHeap, ok := o.peek()
		if ok && (o.ended || t <= floor) {
			return o.pop(e, fromHeap)
		}
		if o.ended {
			return io.EOF
		}
		if err := o.r.Next(e); err == io.EOF {
			o.ended = true
			continue
		} else if err != nil {
			return err
		}
		if !o.any || e.Time > o.newest {
			o.any = true
			o.newest = e.Time
		} else if e.Time < o.newest-o.window {
			o.late++
			e.Time = o.newest
		}
		if !ok && e.Time <= o.newest-o.window {
			return nil // nothing waits, and nothing earlier can come
		}
		if err := o.push(e); err != nil {
			return err
		}
	}
}

// peek returns the time of the next entry in order. On a tie the queue's entry goes first: entries
// of the heap came after a later one had been queued.
func (o *ordered) peek() (t int64, fromHeap, ok bool) {
	q, inQueue := o.queue.peek()
	if len(o.heap.items) > 0 && (!inQueue || o.heap.items[0].time < q) {
		return o.heap.items[0].time, true, true
	}
	return q, false, inQueue
}

func (o *ordered) push(e *Entry) error {
	if e.Time >= o.queue.newest {
		o.queue.newest = e.Time
		return o.queue.push(e.Time, o.names.encode(o.queue.room(), e))
	}
	o.heap.push(e.Time, o.names.encode(o.heap.buffer(), e))
	return nil
}

func (o *ordered) pop(e *Entry, fromHeap bool) error {
	if fromHeap {
		e.Time, o.current = o.heap.pop()
		o.names.decode(o.current, e)
		return nil
	}
	t, b, err := o.queue.pop()
	if err != nil {
		return err
	}
	e.Time = t
	o.names.decode(b, e)
	return nil
}

func (o *ordered) close() { o.queue.close() }

// names turns entries into bytes and back. Field names are numbered: they are few, and their
// strings live on.
type names struct {
	list []string
	ids  map[string]uint32
	last []uint32 // ids of the entry before, which mostly has the same names in the same places
}

func (n *names) id(i int, name string) uint32 {
	if i < len(n.last) && n.list[n.last[i]] == name {
		return n.last[i]
	}
	id, ok := n.ids[name]
	if !ok {
		if n.ids == nil {
			n.ids = make(map[string]uint32)
		}
		id = uint32(len(n.list))
		n.ids[name] = id
		n.list = append(n.list, name)
	}
	if i == len(n.last) {
		n.last = append(n.last, id)
	} else {
		n.last[i] = id
	}
	return id
}

// encode appends e, without its time, to b.
func (n *names) encode(b []byte, e *Entry) []byte {
	for i := range e.Fields {
		id, l := n.id(i, e.Fields[i].Name), len(e.Fields[i].Value)
		b = append(b, byte(id), byte(id>>8), byte(l), byte(l>>8), byte(l>>16), byte(l>>24))
		b = append(b, e.Fields[i].Value...)
	}
	return b
}

func (n *names) decode(b []byte, e *Entry) {
	e.Fields = e.Fields[:0]
	for len(b) > 0 {
		id := int(b[0]) | int(b[1])<<8
		l := int(b[2]) | int(b[3])<<8 | int(b[4])<<16 | int(b[5])<<24
		e.Fields = append(e.Fields, Field{n.list[id], b[6 : 6+l : 6+l]})
		b = b[6+l:]
	}
}

// heap holds the lines that came out of order, by time and then by arrival.
type heap struct {
	items []heapItem
	seq   uint64
	free  [][]byte
}

type heapItem struct {
	time int64
	seq  uint64
	data []byte
}

func (a *heapItem) before(b *heapItem) bool {
	return a.time < b.time || a.time == b.time && a.seq < b.seq
}

// buffer returns an empty slice to encode into.
func (h *heap) buffer() []byte {
	if n := len(h.free); n > 0 {
		b := h.free[n-1]
		h.free = h.free[:n-1]
		return b[:0]
	}
	return make([]byte, 0, 256)
}

func (h *heap) push(t int64, data []byte) {
	h.seq++
	h.items = append(h.items, heapItem{t, h.seq, data})
	i := len(h.items) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !h.items[i].before(&h.items[parent]) {
			break
		}
		h.items[i], h.items[parent] = h.items[parent], h.items[i]
		i = parent
	}
}

func (h *heap) pop() (int64, []byte) {
	top := h.items[0]
	last := len(h.items) - 1
	h.items[0] = h.items[last]
	h.items[last] = heapItem{}
	h.items = h.items[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h.items[child+1].before(&h.items[child]) {
			child++
		}
		if !h.items[child].before(&h.items[i]) {
			break
		}
		h.items[i], h.items[child] = h.items[child], h.items[i]
		i = child
	}
	return top.time, top.data
}
