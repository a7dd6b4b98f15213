package recent

import (
	"cmp"
	"slices"
	"strings"
)

// Cursor is a place in the order in which decisions were remembered. The zero value is before all
// of them.
type Cursor uint64

// Cursor returns the place behind the decision that was remembered last.
func (b *Buffer) Cursor() Cursor { return Cursor(b.seq.Load()) }

// Since returns the decisions that were remembered behind a place and that fit q, without regard to
// q.N: oldest first, and only the newest if there are more than most. fit is how many there were,
// and next is the place behind everything that was looked at. Since looks at the number of each
// slot, and reads the new decisions: only those that it returns, unless q is selective.
func (b *Buffer) Since(after Cursor, q Query, most int) (found []Entry, fit int, next Cursor) {
	next = b.Cursor()
	if next == after {
		return nil, 0, next
	}
	type fresh struct {
		seq uint64
		*slot
	}
	var list []fresh
	b.each(func(s *slot) bool {
		seq := s.seq.Load()
		if seq <= uint64(after) {
			return true
		}
		if seq == writing { // whoever writes holds the lock
			s.mu.Lock()
			seq = s.seq.Load()
			s.mu.Unlock()
		}
		if seq > uint64(after) && seq <= uint64(next) { // a later one is for the next call
			list = append(list, fresh{seq, s})
		}
		return true
	})
	slices.SortFunc(list, func(x, y fresh) int { return cmp.Compare(y.seq, x.seq) })
	for i, f := range list {
		if len(found) >= most && q.asksForAll() {
			fit += len(list) - i
			break
		}
		f.mu.Lock()
		e, ok := Entry{}, false
		if f.slot.seq.Load() == f.seq { // else it was written over
			e, ok = f.entry()
		}
		f.mu.Unlock()
		if !ok || !q.fits(&e) {
			continue
		}
		if fit++; len(found) < most {
			found = append(found, e)
		}
	}
	slices.Reverse(found)
	return found, fit, next
}

// asksForAll reports whether q selects all decisions, without regard to N.
func (q *Query) asksForAll() bool {
	all := Query{N: q.N}
	return *q == all
}

// fits reports whether q selects e, without regard to N.
func (q *Query) fits(e *Entry) bool {
	return (q.Domain == "" || e.Domain == q.Domain) &&
		(q.Door == "" || e.Door == q.Door) &&
		(q.Outcome == "" || e.Outcome == q.Outcome || slices.Contains(e.Marks, q.Outcome)) &&
		(q.After.IsZero() || !e.Time.Before(q.After) && (q.AfterID == 0 || e.ID != q.AfterID)) &&
		(q.Before.IsZero() || e.Time.Before(q.Before)) &&
		(q.Limit == "" || slices.ContainsFunc(e.Limits,
			func(l Limit) bool { return named(e, &l, q.Limit, q.Domain == "") })) &&
		(q.Key == "" || e.has(q.Key))
}

// named reports whether name means l. It is the name of the limit or of its rule or, if no domain
// is given, one of these behind the domain.
func named(e *Entry, l *Limit, name string, anyDomain bool) bool {
	if name == l.Name || name == l.Rule {
		return true
	}
	rest, ok := strings.CutPrefix(name, e.Domain+"/")
	return anyDomain && ok && (rest == l.Name || rest == l.Rule)
}

// has reports whether a key is about e.
func (e *Entry) has(key string) bool {
	for i := range e.Limits {
		if e.Limits[i].Key == key || slices.Contains(strings.Split(e.Limits[i].Key, ","), key) {
			return true
		}
	}
	name, value, ok := strings.Cut(key, "=")
	have, is := e.Attributes[name]
	return ok && is && have == value
}
