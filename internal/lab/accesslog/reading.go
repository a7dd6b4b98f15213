package accesslog

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Reading says how a log is read, for a user who must judge whether that is right.
type Reading struct {
	Log    string // its name; "" from a Reader
	Format string // how its lines are read, in words
	// Told says that the meaning of the columns was guessed from their contents alone.
	Told bool
	// Text is the beginning of a line, and Fields what was read from it. It is the first line whose
	// client is doubtful, or else the first line that was read, or else, without Fields, the first
	// line.
	Text, Fields string
	// Clients counts the lines looked at that have a client. Doubtful counts those whose client is
	// neither an address nor a host name or, if the user has named the field, cannot be a client at
	// all.
	Clients, Doubtful int64
	Client            string // the first doubtful one

	named bool // --fields names the client
}

// judged is how many lines there are for each that is looked at, after the first ones: a power of
// two.
const judged = 64

// judge looks at the client of a line.
func (r *Reading) judge(line []byte, e *Entry) {
	ip := e.Get(FieldIP)
	doubtful := ip != nil && !isClient(ip) && (!r.named || isNoClient(ip))
	if !doubtful && ip != nil && !isAddr(ip) && isAddr(e.Get(FieldIdent)) {
		doubtful = true // the name of the requested host, and the client after it
	}
	if ip != nil {
		r.Clients++
	}
	if doubtful {
		r.Doubtful++
	}
	if doubtful && r.Doubtful == 1 || r.Fields == "" {
		r.Text, r.Fields = begin(line, 300), describe(e)
	}
	if doubtful && r.Doubtful == 1 {
		r.Client = begin(ip, 100)
	}
}

// Wrong reports whether most values read as the client are something else.
func (r *Reading) Wrong() bool { return 2*r.Doubtful > r.Clients }

// Said describes the line, and how it was read.
func (r *Reading) Said() string {
	fields := r.Fields
	if fields == "" {
		fields = "nothing"
	}
	return fmt.Sprintf("  line:    %s\n  read as: %s\n  found:   %s", r.Text, r.Format, fields)
}

// begin returns the beginning of a text in printable characters.
func begin(b []byte, most int) string {
	cut := len(b) > most
	if cut {
		b = b[:most]
	}
	q := fmt.Sprintf("%q", b)
	if q = strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`); cut {
		q += "…"
	}
	return q
}

// describe returns the time and the fields of a line, at most twelve.
func describe(e *Entry) string {
	var b strings.Builder
	b.WriteString("time=" + time.UnixMicro(e.Time).UTC().Format(time.RFC3339Nano))
	for i, f := range e.Fields {
		if i == 12 {
			b.WriteString(" …")
			break
		}
		if f.Name != "time" {
			fmt.Fprintf(&b, ` %s="%s"`, f.Name, begin(f.Value, 80))
		}
	}
	return b.String()
}

// look reads the sample first: to judge how the log is read, and to find out whether there are
// lines of JSON without a request between those with one.
func (r *Reader) look(sample, inner [][]byte, dated bool, o *Options) {
	specs, _, _ := parseFields(o.Fields)
	r.reading = Reading{Format: r.plan.String(), Told: r.plan.format == columns,
		named: slices.ContainsFunc(specs, func(f fieldSpec) bool { return f.to.kind == kindIP })}
	// Another reader of the same lines: r begins with them, too.
	x := &Reader{plan: r.plan, wraps: r.plan.wrappings(), clients: clients{find: o.Client}}
	var err error
	if x.scan, x.asked, _, err = build(r.plan.format, o.Fields, dated, inner); err != nil {
		return
	}
	requests := 0
	var e Entry
	for _, line := range sample {
		e.Fields = e.Fields[:0]
		rest := x.unwrap(line)
		if !x.scan.scan(rest, &e) {
			x.directive(rest)
			continue
		}
		if e.Get(FieldPath) != nil || e.Get(FieldMethod) != nil {
			requests++
		}
		x.clients.settle(&e)
		r.reading.judge(line, &e)
	}
	r.requests = r.plan.format == JSON && len(o.Fields) == 0 && requests > 0
	if r.reading.Fields == "" && len(sample) > 0 {
		r.reading.Text = begin(sample[0], 300)
	}
}

// Reading returns how the log is read.
func (r *Reader) Reading() Reading { return r.reading }
