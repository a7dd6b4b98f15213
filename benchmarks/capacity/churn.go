package capacity

// node is a node as it is now.
type node struct {
	life    int32 // how often a node began in this place
	down    bool
	offset  int64   // of its clock, in ns
	drift   float64 // of its clock: it runs faster by that share
	store   int64   // what to add to its clock for the store's, by the last answer, in ns
	leased  []int32 // entries
	visited bool
	// how many requests came, and were admitted, while the scenario was measured
	offered, admitted float64
}

// die ends a node. Decisions that wait in it are lost, and so are all answers under way. Calls that
// it has sent are decided.
func (w *world) die() {
	up := w.s.Nodes - w.down
	if up < 2 {
		return
	}
	number := int32(w.rng.IntN(w.s.Nodes))
	for w.nodes[number].down {
		number = (number + 1) % int32(w.s.Nodes)
	}
	n := &w.nodes[number]
	n.life++
	n.down = true
	w.down++
	for len(n.leased) > 0 {
		w.unlease(n.leased[len(n.leased)-1])
	}
	n.visited = false
	for p := range w.s.Partitions {
		l := &w.links[int(number)*w.s.Partitions+p]
		for _, b := range l.waiting {
			for i := range b.ops {
				w.lose(&b.ops[i])
			}
			w.spare = append(w.spare, b)
		}
		l.waiting, l.busy = l.waiting[:0], false
	}
	w.agenda.add(event{at: w.now + int64(w.s.Down), what: starts, who: number})
}

// start begins a node in the place of one that died.
func (w *world) start(number int32) {
	w.nodes[number].down = false
	w.down--
}

// lose counts decisions whose callers are gone.
func (w *world) lose(op *operation) {
	t := w.tally(op.place)
	if op.n > 0 && op.first >= int64(w.s.Warm) {
		t.Lost++
	}
	for _, at := range op.more {
		if at >= int64(w.s.Warm) {
			t.Lost++
		}
	}
}

// nodeFor chooses the node that a request of a key reaches.
func (w *world) nodeFor(key int32) int32 {
	number, n := int32(0), int32(w.s.Nodes)
	switch b := &w.s.Balance; {
	case b.Home:
		number = int32(mix(w.keys[key].name, w.s.Seed) % uint64(n))
	case b.Skew > 0:
		favoured := int32(mix(w.keys[key].name+uint64(w.now/int64(b.Move))<<20, w.s.Seed) % uint64(n))
		if number = favoured; n > 1 && w.rng.Float64() >= b.Skew {
			number = (favoured + 1 + w.rng.Int32N(n-1)) % n
		}
	default:
		number = w.rng.Int32N(n)
	}
	for w.nodes[number].down {
		number = (number + 1) % n
	}
	return number
}

// mix returns a hash (splitmix64).
func mix(a, b uint64) uint64 {
	x := a*0x9E3779B97F4A7C15 + b + 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
