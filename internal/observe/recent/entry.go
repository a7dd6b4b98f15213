package recent

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Entry is a remembered decision, and its form in JSON.
type Entry struct {
	ID         weir.DecisionID `json:"decision"`
	Time       time.Time       `json:"time"` // by the store's clock
	Domain     string          `json:"domain"`
	Door       string          `json:"door,omitempty"`
	Node       string          `json:"node,omitempty"` // which made it; a Buffer leaves it empty
	Allowed    bool            `json:"allowed"`
	Banned     bool            `json:"banned,omitempty"` // the key was refused outright
	Outcome    string          `json:"outcome"`          // the first of Marks
	Marks      []string        `json:"marks"`            // one or more of Outcomes
	Hits       int64           `json:"hits"`
	RetryAfter Seconds         `json:"retry_after"`
	Delay      Seconds         `json:"delay"`
	Generation uint64          `json:"generation"` // of the rules
	// Attributes are the attributes that were read by the rules that the request met. Values may be
	// cut, and secret ones are hidden.
	Attributes map[string]string `json:"attributes"`
	// Limits are the limits that were met. The first one made the outcome (Main); those that refuse
	// come before the others.
	Limits []Limit `json:"limits"`
	// LimitsLeftOut counts limits that were met but did not fit.
	LimitsLeftOut int `json:"limits_left_out,omitempty"`

	seq uint64 // of the slot: the order in which entries were written
}

// Limit is a limit that a request met.
type Limit struct {
	Name string `json:"name"`
	Rule string `json:"rule"`
	// rate_limit.name, which Envoy's headers use as the name of a rule of the Lyft form
	GivenName  string  `json:"given_name,omitempty"`
	File       string  `json:"file,omitempty"`
	Line       int     `json:"line,omitempty"`
	Key        string  `json:"key"`  // for people: user=ada, ip=192.0.2.1
	Mode       string  `json:"mode"` // enforce, shadow or quota
	Allowed    bool    `json:"allowed"`
	Refuses    bool    `json:"refuses"` // the decision is a refusal because of it
	NearLimit  bool    `json:"near_limit"`
	Soft       bool    `json:"soft_exceeded"`
	Algorithm  string  `json:"algorithm"`
	Allows     string  `json:"allows"` // the numbers in force, in words: 10 per minute, burst 20
	Limit      int64   `json:"limit"`
	SoftLimit  int64   `json:"soft_limit"`
	Window     Seconds `json:"window"`
	Asked      int64   `json:"asked"` // units
	Remaining  int64   `json:"remaining"`
	RetryAfter Seconds `json:"retry_after"`
	ResetAfter Seconds `json:"reset_after"`
	Delay      Seconds `json:"delay"`
	Descriptor *int    `json:"descriptor,omitempty"` // of an RLS request
}

// Seconds is a time in µs. In JSON it is in seconds, and algo.Never is null.
type Seconds int64

// MarshalJSON implements json.Marshaler.
func (s Seconds) MarshalJSON() ([]byte, error) {
	if s == algo.Never {
		return []byte("null"), nil
	}
	var b []byte
	us := uint64(s)
	if s < 0 {
		b, us = append(b, '-'), -us
	}
	b = strconv.AppendUint(b, us/1e6, 10)
	if frac := us % 1e6; frac != 0 {
		b = fmt.Appendf(b, ".%06d", frac)
		for b[len(b)-1] == '0' {
			b = b[:len(b)-1]
		}
	}
	return b, nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*s = algo.Never
		return nil
	}
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return err
	}
	*s = Seconds(math.Round(f * 1e6))
	return nil
}

var modeNames = [...]string{rule.Enforce: "enforce", rule.Shadow: "shadow", rule.Quota: "quota"}

// reader reads an entry written by encoder. After an error it returns only zeros.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.b, r.ok = nil, false
		return make([]byte, max(0, min(n, 8)))
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) byte() byte { return r.take(1)[0] }

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	r.skip(n)
	return v
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	r.skip(n)
	return v
}

func (r *reader) skip(n int) {
	if n <= 0 {
		n = len(r.b) + 1
	}
	r.take(n)
}

func (r *reader) text() string { return string(r.bytes()) }

// bytes returns a text without a copy.
func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.ok = false
		return nil
	}
	return r.take(int(n))
}

// madeAt reads only the time of an entry.
func madeAt(data []byte) time.Time {
	r := reader{b: data, ok: true}
	r.take(8 + 1) // the id and the marks
	return time.UnixMicro(r.varint()).UTC()
}

// decode reads an entry; ok is false if there is none.
func decode(data []byte) (e Entry, ok bool) {
	r := reader{b: data, ok: true}
	e.ID = weir.DecisionID(binary.LittleEndian.Uint64(r.take(8)))
	m := marks(r.byte())
	e.Time = time.UnixMicro(r.varint()).UTC()
	e.Generation = r.uvarint()
	e.Hits = r.varint()
	e.RetryAfter, e.Delay = Seconds(r.varint()), Seconds(r.varint())
	e.Domain, e.Door = r.text(), r.text()
	e.Allowed, e.Banned = m&markDenied == 0, m&markBanned != 0
	for _, n := range markNames {
		if m&n.mark != 0 {
			e.Marks = append(e.Marks, n.name)
		}
	}
	if len(e.Marks) == 0 {
		e.Marks = []string{"allowed"}
	}
	e.Outcome = e.Marks[0]
	limits := int(r.byte())
	e.LimitsLeftOut = int(binary.LittleEndian.Uint16(r.take(2)))
	e.Limits = make([]Limit, 0, limits)
	for range limits {
		e.Limits = append(e.Limits, r.limit())
	}
	e.putMainFirst()
	e.Attributes = map[string]string{}
	for range r.byte() {
		name := r.text()
		e.Attributes[name] = r.text()
	}
	return e, r.ok
}

// Main is the limit that made the outcome, or came nearest to making one; nil if none was met.
func (e *Entry) Main() *Limit {
	if len(e.Limits) == 0 {
		return nil
	}
	return &e.Limits[0]
}

// putMainFirst moves the limit that made the outcome to the front. Among several of an admission,
// and if there is none, that is the fullest. The first that refuses is in front already.
func (e *Entry) putMainFirst() {
	made := func(l *Limit) bool { return true }
	switch e.Outcome {
	case "denied":
		return
	case "shadow_denied":
		made = func(l *Limit) bool { return l.Mode == modeNames[rule.Shadow] && !l.Allowed }
	case "soft":
		made = func(l *Limit) bool { return l.Mode != modeNames[rule.Shadow] && l.Soft }
	case "near_limit":
		made = func(l *Limit) bool { return l.Mode != modeNames[rule.Shadow] && l.NearLimit }
	}
	main := -1
	for i := range e.Limits {
		if l := &e.Limits[i]; made(l) && (main < 0 || l.left() < e.Limits[main].left()) {
			main = i
		}
	}
	if main > 0 {
		l := e.Limits[main]
		copy(e.Limits[1:main+1], e.Limits[:main])
		e.Limits[0] = l
	}
}

// left is the share of the limit that was left.
func (l *Limit) left() float64 { return float64(l.Remaining) / float64(max(l.Limit, 1)) }

func (r *reader) limit() (l Limit) {
	flags, mode, algorithm, calendar := r.byte(), r.byte(), r.byte(), r.byte()
	l.Allowed, l.Refuses, l.NearLimit, l.Soft = flags&limitAllowed != 0, flags&limitRefuses != 0, flags&limitNear != 0,
		flags&limitSoft != 0
	l.Mode = modeNames[min(int(mode), len(modeNames)-1)]
	l.Name, l.Rule, l.GivenName, l.File = r.text(), r.text(), r.text(), r.text()
	l.Line = int(r.uvarint())
	c := algo.Config{Algorithm: algo.Algorithm(algorithm), Calendar: algo.Calendar(calendar)}
	c.N, c.Burst = r.varint(), r.varint()
	l.Window = Seconds(r.varint())
	c.Window = time.Duration(l.Window) * time.Microsecond
	l.Limit, l.SoftLimit, l.Remaining = r.varint(), r.varint(), r.varint()
	l.RetryAfter, l.ResetAfter, l.Delay = Seconds(r.varint()), Seconds(r.varint()), Seconds(r.varint())
	l.Asked = r.varint()
	if at := int(r.varint()); at >= 0 {
		l.Descriptor = &at
	}
	l.Algorithm, l.Allows = c.Algorithm.String(), allows(&c)
	l.Key = string(r.take(int(binary.LittleEndian.Uint16(r.take(2)))))
	return l
}

// allows describes a limit in words.
func allows(c *algo.Config) string {
	if c.Algorithm.HasSlots() {
		return fmt.Sprintf("%d at a time", c.N)
	}
	text := fmt.Sprintf("%d per %s", c.N, c.Period())
	if c.Algorithm.HasBurst() {
		text += fmt.Sprintf(", burst %d", max(c.Burst, 0))
	}
	return text
}
