package leasecheck

import (
	"cmp"
	"maps"
	"slices"
)

// inFixed checks windows that lie where end says.
func inFixed(end func(at int64) int64, most int64, admissions []Admission) *Violation {
	type window struct{ sum, first int64 }
	windows := map[int64]window{}
	var worst *Violation
	for i := range admissions {
		a := &admissions[i]
		e := end(a.Lo)
		if a.Hi >= e {
			continue
		}
		w, ok := windows[e]
		if w.sum += a.Cost; !ok || a.Lo < w.first {
			w.first = a.Lo
		}
		windows[e] = w
		if w.sum > most {
			worst = worse(worst, &Violation{From: w.first, To: e, Admitted: w.sum, Allowed: most})
		}
	}
	return worst.fill(admissions, func(a *Admission) bool { return end(a.Lo) == worst.To && a.Hi < worst.To })
}

// inFirst checks windows that begin with a first request, and whose ends are known. One that begins
// before the last one has ended is taken for the same.
func inFirst(w, most int64, admissions []Admission) *Violation {
	known := map[int64]struct{}{}
	for i := range admissions {
		if e := admissions[i].Ends; e != 0 {
			known[e] = struct{}{}
		}
	}
	type window struct{ from, to, sum int64 }
	var windows []window
	for _, e := range slices.Sorted(maps.Keys(known)) {
		if n := len(windows); n > 0 && e-w < windows[n-1].to {
			windows[n-1].to = e
			continue
		}
		windows = append(windows, window{from: e - w, to: e})
	}
	var worst *Violation
	for i := range admissions {
		a := &admissions[i]
		at, _ := slices.BinarySearchFunc(windows, a.Lo, func(v window, lo int64) int { return cmp.Compare(v.to, lo+1) })
		if at == len(windows) || a.Lo < windows[at].from || a.Hi >= windows[at].to {
			continue
		}
		v := &windows[at]
		if v.sum += a.Cost; v.sum > most {
			worst = worse(worst, &Violation{From: v.from, To: v.to, Admitted: v.sum, Allowed: most})
		}
	}
	return worst.fill(admissions, func(a *Admission) bool { return a.Lo >= worst.From && a.Hi < worst.To })
}

// inLog checks all spans (x − w, x]. It lets x go through the admissions: each comes in at its Hi,
// and goes at Lo + w.
func inLog(w, most int64, admissions []Admission) *Violation {
	type change struct{ at, cost int64 }
	changes := make([]change, 0, 2*len(admissions))
	for _, a := range admissions {
		if a.Hi < a.Lo+w {
			changes = append(changes, change{a.Hi, a.Cost}, change{a.Lo + w, -a.Cost})
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.cost, b.cost)) // what goes, goes first
	})
	var worst *Violation
	sum := int64(0)
	for _, c := range changes {
		if sum += c.cost; sum > most {
			worst = worse(worst, &Violation{From: c.at - w + 1, To: c.at, Admitted: sum, Allowed: most})
		}
	}
	return worst.fill(admissions, func(a *Admission) bool { return a.Lo >= worst.From && a.Hi <= worst.To })
}

// inWindow checks the estimates of a sliding window with k sub-windows of length sub. A unit's
// weight only falls with its age, so at x its least weight is the weight at Lo; and it counts only
// from Hi on.
func inWindow(sub int64, k int, most int64, admissions []Admission) *Violation {
	order := make([]*Admission, len(admissions))
	for i := range admissions {
		order[i] = &admissions[i]
	}
	slices.SortFunc(order, func(a, b *Admission) int { return cmp.Compare(a.Hi, b.Hi) })
	counts := map[int64]int64{} // by sub-window
	whole := int64(0)           // of those after cut
	cut := order[0].Hi/sub - int64(k)
	var worst *Violation
	for _, a := range order {
		x := a.Hi
		for now := x/sub - int64(k); cut < now; {
			if now-cut > int64(k) {
				cut, whole = now, 0
				break
			}
			cut++
			whole -= counts[cut]
		}
		at := a.Lo / sub
		counts[at] += a.Cost
		if at > cut {
			whole += a.Cost
		}
		estimate := whole + counts[cut]*(sub-x%sub)/sub
		if estimate > most {
			worst = worse(worst, &Violation{From: cut * sub, To: x, Admitted: estimate, Allowed: most})
		}
	}
	return worst.fill(admissions, func(a *Admission) bool { return a.Lo >= worst.From && a.Hi <= worst.To })
}
