// Package find searches what was seen: the keys of counters and the attributes of requests, by a
// part of a value. It holds the question, what a text matches (match.go), and the hits that a node
// or all nodes have. Packages recent and gather look into what they keep, and give it to a Book.
package find

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// Bounds of a question and of its answer.
const (
	// MostText bounds the text of a question, in bytes.
	MostText = 128
	// MostHits bounds the hits of an answer, and MostDecisions its decisions.
	MostHits      = 200
	MostDecisions = 20
	// Lately is the time in which refusals are counted.
	Lately = time.Minute

	mostHeld = 10_000 // hits in a Book
	mostBy   = 8      // rules that are counted of one hit
	shownBy  = 3      // of these, those that are shown
)

// Query is a question. Its names in JSON are short, because nodes ask each other in few bytes.
type Query struct {
	// Text is a part of a value (batch), or of a value of one attribute (user=ba). Case does not
	// matter.
	Text   []byte `json:"t"`
	Domain string `json:"d,omitempty"` // "" for all
	// Since is the instant from which on refusals are counted, in µs by the store's clock.
	Since int64 `json:"s"`
	// Whole finds only values that Text names in full, and no decisions by a part of their id.
	Whole bool `json:"w,omitempty"`
}

// Hit is a key of a counter, or an attribute, that was seen in a domain.
type Hit struct {
	Domain string `json:"domain"`
	Key    string `json:"key"` // for people: user=ada, ip=192.0.2.1
	// Counter says that a rule counts by this key. Otherwise it is an attribute that a rule read.
	Counter bool `json:"counter"`
	// Refused counts the refusals of the last minute that are kept, and Banned those by a ban.
	Refused uint64 `json:"refused"`
	Banned  uint64 `json:"banned,omitempty"`
	// AtLeast says that more may have been refused, since not all refusals of that minute are kept.
	AtLeast bool `json:"at_least,omitempty"`
	// By are the rules that refused it in the last minute, the one that refused most first. Of a
	// request that several rules refused, the first counts.
	By []insight.Count `json:"by,omitempty"`
	// Allowed is about how many requests a rule let pass in the last minute or two; 0 where that is
	// not known.
	Allowed uint64 `json:"allowed,omitempty"`
	// RefusedAt is when it was refused last, as far as is known.
	RefusedAt *time.Time `json:"refused_at,omitempty"`
	SeenAt    time.Time  `json:"seen_at"`
}

// held is a hit in a Book.
type held struct {
	Hit
	entry uint64 // the decision that was counted last
	by    []refuser
}

// refuser is a rule that refused a hit, by the counter of a key.
type refuser struct {
	rule  string
	key   uint64 // a hash
	count uint64
}

// Decision is a decision whose id begins with the text.
type Decision struct {
	ID      weir.DecisionID `json:"decision"`
	Time    time.Time       `json:"time"`
	Domain  string          `json:"domain"`
	Outcome string          `json:"outcome"`
	Key     string          `json:"key,omitempty"` // of the limit that made the outcome
}

// Found is what was found on one node, or on all of them.
type Found struct {
	Hits      []Hit      `json:"hits,omitempty"`
	Decisions []Decision `json:"decisions,omitempty"`
	// LeftOut counts hits beyond the bound.
	LeftOut int `json:"left_out,omitempty"`
	// Since is Query.Since of the question that was answered; Finish sets it.
	Since int64 `json:"-"`
}

// Book collects what one node has seen. It is bounded: what is given to it first is kept. Not
// safe for concurrent use.
type Book struct {
	Query
	Matcher
	hits      map[string]*held
	decisions []Decision
	leftOut   int
	scratch   []byte
	stop      <-chan struct{}
}

// NewBook returns an empty Book for a question.
func NewBook(q *Query, seed uint64) *Book {
	return &Book{Query: *q, Matcher: newMatcher(q, seed), hits: map[string]*held{}}
}

// StopWhen makes Stopped report whether done is closed.
func (b *Book) StopWhen(done <-chan struct{}) { b.stop = done }

// Stopped reports whether nobody waits for the answer any more, so that the search may end early.
func (b *Book) Stopped() bool {
	select {
	case <-b.stop:
		return true
	default:
		return false
	}
}

// hit returns the hit of a key or attribute; nil if there are too many.
func (b *Book) hit(domain, key []byte, at int64) *held {
	if b.Domain != "" && b.Domain != string(domain) {
		return nil
	}
	b.scratch = append(append(append(b.scratch[:0], domain...), 0), key...)
	h := b.hits[string(b.scratch)]
	if h == nil {
		if len(b.hits) >= mostHeld {
			b.leftOut++
			return nil
		}
		// As JSON does it: what other nodes answer is merged by these.
		h = &held{Hit: Hit{Domain: string([]rune(string(domain))), Key: string([]rune(string(key)))}}
		b.hits[string(b.scratch)] = h
	}
	if t := time.UnixMicro(at).UTC(); t.After(h.SeenAt) {
		h.SeenAt = t
	}
	return h
}

// refused notes that a hit was refused at an instant.
func (h *held) refused(at int64) {
	if t := time.UnixMicro(at).UTC(); h.RefusedAt == nil || t.After(*h.RefusedAt) {
		h.RefusedAt = &t
	}
}

// Seen is one kept decision, as a Book takes it in.
type Seen struct {
	Number  uint64 // no other decision has it
	Domain  []byte
	At      int64 // µs, by the store's clock
	Refused bool
	Banned  bool
	Rule    []byte // that refused it
	RuleKey uint64 // a hash of the counter by which it did
}

// Key takes in a key of a counter that a decision met, if it matches.
func (b *Book) Key(s *Seen, key []byte) {
	if len(key) > 0 && b.matchKey(key) > 0 {
		b.decided(s, key, true)
	}
}

// Attribute takes in an attribute that a rule read, such as user=ada, if it matches.
func (b *Book) Attribute(s *Seen, attribute []byte) {
	if b.matchAttribute(attribute) > 0 {
		b.decided(s, attribute, false)
	}
}

func (b *Book) decided(s *Seen, key []byte, counter bool) {
	h := b.hit(s.Domain, key, s.At)
	if h == nil {
		return
	}
	h.Counter = h.Counter || counter
	if !s.Refused || h.entry == s.Number {
		return
	}
	h.entry = s.Number
	h.refused(s.At)
	if s.At < b.Since {
		return
	}
	h.Refused++
	if s.Banned {
		h.Banned++
	}
	at := slices.IndexFunc(h.by, func(r refuser) bool { return r.key == s.RuleKey && r.rule == string(s.Rule) })
	switch {
	case at >= 0:
		h.by[at].count++
	case len(h.by) < mostBy:
		h.by = append(h.by, refuser{string(s.Rule), s.RuleKey, 1})
	}
}

// Incomplete marks the hits that were refused by one of some counters, or all that were refused:
// not all of their refusals are kept.
func (b *Book) Incomplete(counters map[uint64]bool, all bool) {
	for _, h := range b.hits {
		h.AtLeast = h.AtLeast || h.Refused > 0 &&
			(all || slices.ContainsFunc(h.by, func(r refuser) bool { return counters[r.key] }))
	}
}

// Listed takes in a key from a list of busy keys: when it came, how many requests of it passed
// lately, and whether it was refused then.
func (b *Book) Listed(domain string, key []byte, at int64, allowed uint64, refused bool) {
	if len(key) == 0 || b.matchKey(key) == 0 {
		return
	}
	h := b.hit([]byte(domain), key, at)
	if h == nil {
		return
	}
	h.Counter = true
	h.Allowed = max(h.Allowed, allowed)
	if refused {
		h.refused(at)
	}
}

// Decided takes in a decision whose id begins with the text.
func (b *Book) Decided(d Decision) { b.decisions = append(b.decisions, d) }

// Found returns what was taken in, the best first.
func (b *Book) Found() Found {
	f := Found{Decisions: b.decisions, LeftOut: b.leftOut}
	for _, h := range b.hits {
		for _, r := range h.by {
			h.By = addCount(h.By, insight.Count{Value: r.rule, Count: r.count})
		}
		f.Hits = append(f.Hits, h.Hit)
	}
	f.sort(&b.Query)
	return f
}

func addCount(list []insight.Count, c insight.Count) []insight.Count {
	if at := slices.IndexFunc(list, func(x insight.Count) bool { return x.Value == c.Value }); at >= 0 {
		list[at].Count += c.Count
		return list
	}
	return append(list, c)
}

// Add adds what another node found.
func (f *Found) Add(more *Found) {
	at := make(map[[2]string]int, len(f.Hits))
	for i := range f.Hits {
		at[[2]string{f.Hits[i].Domain, f.Hits[i].Key}] = i
	}
	for i := range more.Hits {
		m := &more.Hits[i]
		k, ok := at[[2]string{m.Domain, m.Key}]
		if !ok {
			f.Hits = append(f.Hits, *m)
			continue
		}
		h := &f.Hits[k]
		h.Counter, h.AtLeast = h.Counter || m.Counter, h.AtLeast || m.AtLeast
		h.Refused, h.Banned, h.Allowed = h.Refused+m.Refused, h.Banned+m.Banned, h.Allowed+m.Allowed
		h.By = slices.Clone(h.By)
		for _, c := range m.By {
			h.By = addCount(h.By, c)
		}
		if m.RefusedAt != nil && (h.RefusedAt == nil || m.RefusedAt.After(*h.RefusedAt)) {
			h.RefusedAt = m.RefusedAt
		}
		if m.SeenAt.After(h.SeenAt) {
			h.SeenAt = m.SeenAt
		}
	}
	f.Decisions = append(f.Decisions, more.Decisions...)
	f.LeftOut += more.LeftOut
}

// Finish brings what several nodes found into order.
func (f *Found) Finish(q *Query) {
	f.Since = q.Since
	if f.LeftOut > 0 { // a node may have left out refusals of a hit that another one has
		for i := range f.Hits {
			f.Hits[i].AtLeast = f.Hits[i].AtLeast || f.Hits[i].Refused > 0
		}
	}
	f.sort(q)
	for i := range f.Hits {
		f.Hits[i].By = f.Hits[i].By[:min(len(f.Hits[i].By), shownBy)]
	}
}

// sort puts what the text names in full first, then what was refused most in the last minute, then
// what was refused last, then what begins with the text; and cuts what is beyond the bounds.
func (f *Found) sort(q *Query) {
	m := newMatcher(q, 0)
	how := make(map[string]match, len(f.Hits))
	for i := range f.Hits {
		h := &f.Hits[i]
		slices.SortFunc(h.By, insight.CompareCounts)
		how[h.Key] = m.matchKey([]byte(h.Key))
	}
	slices.SortFunc(f.Hits, func(x, y Hit) int {
		return cmp.Or(first(how[x.Key] == whole, how[y.Key] == whole), cmp.Compare(y.Refused, x.Refused),
			compareInstants(y.RefusedAt, x.RefusedAt), cmp.Compare(how[y.Key], how[x.Key]),
			first(x.Counter, y.Counter), y.SeenAt.Compare(x.SeenAt), strings.Compare(x.Domain, y.Domain),
			strings.Compare(x.Key, y.Key))
	})
	if n := len(f.Hits) - MostHits; n > 0 {
		f.Hits, f.LeftOut = f.Hits[:MostHits], f.LeftOut+n
	}
	slices.SortFunc(f.Decisions, func(x, y Decision) int {
		return cmp.Or(y.Time.Compare(x.Time), cmp.Compare(x.ID, y.ID))
	})
	f.Decisions = f.Decisions[:min(len(f.Decisions), MostDecisions)]
}

// compareInstants orders instants; no instant comes first.
func compareInstants(x, y *time.Time) int {
	switch {
	case x == nil && y == nil:
		return 0
	case x == nil:
		return -1
	case y == nil:
		return 1
	}
	return x.Compare(*y)
}

// first orders what is so before what is not.
func first(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return -1
	}
	return 1
}
