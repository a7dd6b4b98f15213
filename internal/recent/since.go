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

// Since returns up to most of the decisions that were remembered behind a place and that q asks
// for, but for q.N: oldest first, and if there are more, the newest of them. fit is how many there
// were, and next the place behind all that were looked at. It costs a look at each slot, and at the
// decisions that are new.
func (b *Buffer) Since(after Cursor, q Query, most int) (found []Entry, fit int, next Cursor) {
	next = b.Cursor()
	if next == after {
		return nil, 0, next
	}
	b.each(func(s *slot) bool {
		s.mu.Lock()
		at := Cursor(s.seq)
		var e Entry
		ok := at > after && at <= next // a later one is for the next call
		if ok {
			e, ok = s.entry()
		}
		s.mu.Unlock()
		if ok && q.fits(&e) {
			found = append(found, e)
		}
		return true
	})
	slices.SortFunc(found, func(x, y Entry) int { return cmp.Compare(x.seq, y.seq) })
	fit = len(found)
	if fit > most {
		found = slices.Clone(found[fit-most:])
	}
	return found, fit, next
}

// fits reports whether q asks for e; N is not looked at.
func (q *Query) fits(e *Entry) bool {
	return (q.Domain == "" || e.Domain == q.Domain) &&
		(q.Door == "" || e.Door == q.Door) &&
		(q.Outcome == "" || e.Outcome == q.Outcome || slices.Contains(e.Marks, q.Outcome)) &&
		(q.After.IsZero() || !e.Time.Before(q.After) && (q.AfterID == 0 || e.ID != q.AfterID)) &&
		(q.Before.IsZero() || e.Time.Before(q.Before)) &&
		(q.Limit == "" || slices.ContainsFunc(e.Limits, func(l Limit) bool { return named(e, &l, q.Limit, q.Domain == "") })) &&
		(q.Key == "" || e.has(q.Key))
}

// named reports whether a name means l: that of the limit, of its rule, or where no domain is given
// either of them behind the domain.
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
