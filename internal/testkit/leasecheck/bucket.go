package leasecheck

import (
	"cmp"
	"math"
	"slices"
)

// inBucket checks all spans [from, to] for more than most + floor((to − from) × n/w) units. Times n
// and units w, such a span has
//
//	units × w − to × n + from × n > most × w
//
// It lets to go through the admissions by their Hi. Those that have come lie in a tree by their Lo,
// which knows from which of them on the left side is the most.
func inBucket(w, n, most, origin int64, admissions []Admission) *Violation {
	byLo, byHi := make([]int, len(admissions)), make([]int, len(admissions))
	for i := range admissions {
		byLo[i], byHi[i] = i, i
	}
	slices.SortFunc(byLo, func(a, b int) int { return cmp.Compare(admissions[a].Lo, admissions[b].Lo) })
	slices.SortFunc(byHi, func(a, b int) int { return cmp.Compare(admissions[a].Hi, admissions[b].Hi) })
	place := make([]int, len(admissions)) // in byLo
	for p, i := range byLo {
		place[i] = p
	}
	tree := newSuffixes(len(admissions))
	var worst *Violation
	var excess int64
	for _, i := range byHi {
		a := &admissions[i]
		tree.set(place[i], a.Cost*w, (a.Lo-origin)*n)
		best, at := tree.best()
		over := best - (a.Hi-origin)*n - most*w
		if over > excess {
			excess = over
			worst = &Violation{From: admissions[byLo[at]].Lo, To: a.Hi}
		}
	}
	if worst == nil {
		return nil
	}
	worst.fill(admissions, func(a *Admission) bool { return a.Lo >= worst.From && a.Hi <= worst.To })
	for _, i := range worst.Of {
		worst.Admitted += admissions[i].Cost
	}
	worst.Allowed = most + (worst.To-worst.From)*n/w
	return worst
}

// suffixes is a list of places that are empty or hold a weight and a start. It knows for which
// place the start, and the sum of the weights from there to the end, are the most together.
type suffixes struct {
	size int
	sums []int64 // of a node's weights
	most []int64 // of its places; math.MinInt64: all are empty
	at   []int   // which place that is
}

func newSuffixes(n int) *suffixes {
	size := 1
	for size < n {
		size *= 2
	}
	t := &suffixes{size: size, sums: make([]int64, 2*size), most: make([]int64, 2*size), at: make([]int, 2*size)}
	for i := range t.most {
		t.most[i] = math.MinInt64
	}
	return t
}

func (t *suffixes) set(place int, weight, start int64) {
	i := place + t.size
	t.sums[i], t.most[i], t.at[i] = weight, weight+start, place
	for i /= 2; i > 0; i /= 2 {
		left, right := 2*i, 2*i+1
		t.sums[i], t.most[i], t.at[i] = t.sums[left]+t.sums[right], t.most[right], t.at[right]
		if t.most[left] != math.MinInt64 && t.most[left]+t.sums[right] >= t.most[i] {
			t.most[i], t.at[i] = t.most[left]+t.sums[right], t.at[left]
		}
	}
}

func (t *suffixes) best() (most int64, place int) { return t.most[1], t.at[1] }
