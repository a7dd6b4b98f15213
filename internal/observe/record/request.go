package record

import (
	"iter"
	"slices"
	"strings"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// Request is a recorded request, or the answer to one. Reader.Next returns it, and says how long it
// is valid. As rule.Attributes it has the attributes of the request's first reading.
type Request struct {
	Time   int64  // µs since the Unix epoch
	Client uint64 // hash of the client's name or address; random if it has none
	Hits   int64  // the cost; of an answer its status

	turn        uint64 // of two at the same instant the one with the smaller turn came first
	flags, kind byte
	delay       int64
	shape       *shape
	values      []string
	also        string
	descriptors string
}

// Answer reports whether this is the answer to an earlier request of the client. Only Time, Client
// and Hits are set then.
func (e *Request) Answer() bool { return e.flags&flagAnswer != 0 }

// Allowed reports whether the request was admitted when it came.
func (e *Request) Allowed() bool { return e.flags&flagAllowed != 0 }

// Banned reports whether a ban refused the request when it came.
func (e *Request) Banned() bool { return e.flags&flagBanned != 0 }

// Cut reports whether the record holds less than the request had: a value was longer than MaxValue,
// or there were too many attributes.
func (e *Request) Cut() bool { return e.flags&flagCut != 0 }

// HasUser reports whether the client was known by its user.
func (e *Request) HasUser() bool { return e.kind == byUser }

// Anonymous reports whether the client had no name and no address.
func (e *Request) Anonymous() bool { return e.kind == byNobody }

// Fill makes q ask what the recorded request asked. q shares memory with e.
func (e *Request) Fill(q *weir.Request) {
	*q = weir.Request{Domain: e.shape.domain, Attributes: e, Also: e.readings(), Hits: e.Hits}
	setDelay(q, e.delay)
	if e.descriptors != "" {
		q.Descriptors = readDescriptors([]byte(e.descriptors))
		if len(e.shape.names) == 0 {
			q.Attributes = nil
		}
	}
}

// shape is shared by many requests: the domain, and the names of their attributes.
type shape struct {
	domain string
	names  []string
}

// shapes holds each shape once.
type shapes struct{ m map[string]*shape }

// of returns the shape for a text; nil if the text is none.
func (s *shapes) of(text string) *shape {
	if found := s.m[text]; found != nil {
		return found
	}
	if !strings.HasSuffix(text, "\x00") {
		return nil
	}
	text = strings.Clone(text) // it shares the memory of a chunk
	parts := strings.Split(text[:len(text)-1], "\x00")
	found := &shape{domain: parts[0], names: parts[1:]}
	if s.m == nil {
		s.m = map[string]*shape{}
	}
	s.m[text] = found
	return found
}

// Attribute implements rule.Attributes.
func (e *Request) Attribute(name string) (string, bool) {
	for i, n := range e.shape.names {
		if n == name {
			return e.values[i], true
		}
	}
	return "", false
}

// All implements rule.Attributes.
func (e *Request) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for i, n := range e.shape.names {
			if !yield(n, e.values[i]) {
				return
			}
		}
	}
}

// readings returns the further readings of a recorded request (Recorder.appendAlso); nil for none.
func (e *Request) readings() (all []rule.Attributes) {
	r := reader{b: []byte(e.also), ok: true}
	for len(r.b) > 0 {
		other := *e
		other.values = slices.Clone(e.values)
		for range r.byte() {
			i, v := r.byte(), string(r.take(r.uvarint()))
			if int(i) < len(other.values) {
				other.values[i] = v
			}
		}
		all = append(all, &other)
	}
	return all
}

// ClientText names the client of a request for people. It returns a copy; "" if nothing names it.
func (e *Request) ClientText() string {
	for _, name := range [...]string{"user", "ip"} {
		if v, ok := e.Attribute(name); ok && v != "" {
			return name + "=" + strings.ToValidUTF8(v, "?")
		}
	}
	if e.descriptors != "" {
		var parts []string
		for _, d := range readDescriptors([]byte(e.descriptors)) {
			for _, entry := range d.Entries {
				parts = append(parts, entry.Key+"="+entry.Value)
			}
		}
		return strings.ToValidUTF8(strings.Join(parts, ", "), "?")
	}
	return ""
}

// query returns the request as rules see it, with memory of its own.
func (e *Request) query() rule.Query {
	q := rule.Query{Domain: e.shape.domain}
	if e.descriptors != "" {
		q.Descriptors = readDescriptors([]byte(e.descriptors))
	}
	pairs := make(rule.Pairs, len(e.shape.names))
	for i, name := range e.shape.names {
		pairs[i] = rule.Pair{Name: name, Value: strings.Clone(e.values[i])}
	}
	if len(pairs) > 0 {
		q.Attributes = pairs
	}
	return q
}
