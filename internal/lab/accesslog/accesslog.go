// Package accesslog reads access logs as a stream: gzipped, zstd-compressed or plain. It knows the
// formats of Apache, nginx, Envoy, HAProxy, IIS, CloudFront and the AWS load balancers, any format
// given in the words of a server's configuration, JSON lines, CSV and TSV. It also takes off
// whatever syslog, a container runtime or a collector has put around the lines.
//
// A Reader yields the lines of one log in file order. A Log opens several, sorts the lines of each
// by time, and merges them. Neither allocates for each line, and both use bounded memory, whatever
// the log holds. A line that does not parse is skipped and counted.
//
// Begin with Open (log.go) and NewReader (accesslog.go). guess.go finds out how to read a log. Each
// format has a scanner: common.go, template.go, json.go, w3c.go and delimited.go. wrapping.go takes
// off what stands around the lines, and client.go finds the client.
package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// Names of the fields that every format yields under the same name. Other fields of a log keep
// their own.
const (
	FieldIP        = "ip"     // the client: an address or a host name
	FieldUser      = "user"   // the authenticated user
	FieldMethod    = "method" // as written in the log
	FieldPath      = "path"   // the request's target in origin form, with its query
	FieldHost      = "host"   // the host that was asked
	FieldStatus    = "status"
	FieldBytes     = "bytes" // size of the answer
	FieldProtocol  = "protocol"
	FieldReferer   = "header.referer"
	FieldUserAgent = "header.user-agent"
	FieldForwarded = "header.x-forwarded-for"
	FieldIdent     = "ident" // RFC 1413 identity of the common log format
)

// Field is one field of a log line.
type Field struct {
	Name  string
	Value []byte
}

// Entry is one request of a log. The zero value is ready; reuse it to save allocations.
type Entry struct {
	Time   int64   // µs since the Unix epoch
	Fields []Field // present fields only: an empty value or the log's "-" is left out
}

// Get returns the value of the first field with a name; nil if there is none.
func (e *Entry) Get(name string) []byte {
	for i := range e.Fields {
		if e.Fields[i].Name == name {
			return e.Fields[i].Value
		}
	}
	return nil
}

func (e *Entry) add(name string, value []byte) {
	if len(value) == 0 || len(value) == 1 && value[0] == '-' {
		return
	}
	e.Fields = append(e.Fields, Field{name, value})
}

// Options configure how a log is read. The zero value guesses everything.
type Options struct {
	Format Format
	// Fields names columns or JSON keys. Entries without "=" name the columns of CSV and TSV in
	// order ("-" or "" skips one), and JSON keys by their own name. Entries "field=key" take the
	// field from a JSON key (dots reach into nested objects), from the column with that name in the
	// header, from the column with that number (from 1), or from a template's value with that name.
	Fields []string
	// Client finds the client of a line from the connection's peer and the list in X-Forwarded-For.
	// peer is "" if the log has only the list. A zero Addr leaves the peer as the client. Both
	// texts are valid during the call. If Client is nil, no list is believed.
	Client func(peer, list string) netip.Addr
	// Kept is the path of a file that holds a copy of standard input, for error messages; "" if
	// there is none. Used by Log only.
	Kept string
	// MaxLine is the length in bytes from which a line is skipped; 0 means 65,536.
	MaxLine int
	// Reorder is how far out of order lines may be, in µs. Used by Log only; below 0 counts as 0.
	Reorder int64
}

const (
	defaultMaxLine = 64 << 10
	fewLines       = 100 // from which the format is guessed
	manyLines      = 2000
	maxFields      = 256 // of one line; further ones are dropped
	maxNames       = 1000
)

// errLine says that a line does not parse.
var errLine = errors.New("accesslog: line does not parse")

// scanner parses one line into e; it returns false if the line does not parse. The values in e
// point into line or into the scanner's own memory, and are valid until the next call.
type scanner interface {
	scan(line []byte, e *Entry) bool
	clock() *timeParser
}

// Reader reads one log in file order. Not safe for concurrent use. Make one with NewReader.
type Reader struct {
	lines    lineReader
	plan     plan
	wraps    wrappings
	scan     scanner
	clients  clients
	entries  int64
	skipped  int64
	header   bool // the next line is a header
	requests bool // lines without a request are none
	asked    []fieldSpec
	faults   []Fault
	reading  Reading
}

// Fault is a line that did not parse.
type Fault struct {
	Log  string `json:"log,omitempty"` // the log's name; "" from a Reader
	Line int64  `json:"line"`          // its number, from 1
	Text string `json:"text"`          // its beginning
	Why  string `json:"why"`
}

// maxFaults bounds the lines kept that do not parse.
const maxFaults = 3

// Faults returns the first lines that did not parse.
func (r *Reader) Faults() []Fault { return r.faults }

// fault counts a line that does not parse, or that did and holds no request.
func (r *Reader) fault(line []byte, parsed bool) {
	r.skipped++
	if len(r.faults) >= maxFaults {
		return
	}
	f := Fault{Line: r.lines.line, Text: strings.ToValidUTF8(string(line[:min(len(line), 100)]), "\ufffd")}
	switch style := r.plan.format.style; {
	case line == nil:
		f.Why = "it is too long, or holds a NUL byte"
	case parsed:
		f.Why = "it holds no request: neither a method nor a path"
	case style == styleJSON && !json.Valid(line):
		f.Why = "it is no JSON object"
	case style == styleJSON:
		f.Why = "none of its keys is known to be the time, or that is no time"
	case style == styleCommon:
		f.Why = "it is not of the common or combined format"
	case style == styleCSV || style == styleTSV:
		f.Why = "it has too few columns, or no time where one is expected"
		if d, ok := r.scan.(*delimited); ok {
			f.Why = fmt.Sprintf("its column %d is no time, or is not there", d.last+1)
		}
	default:
		f.Why = "it is not of this format: " + r.plan.format.String()
	}
	r.faults = append(r.faults, f)
}

// NewReader returns a reader of the uncompressed log r. It reads the first lines to guess the
// settings that o leaves out. It fails if it cannot find one of them, or with the error of r. An
// empty log is not an error.
func NewReader(r io.Reader, o Options) (*Reader, error) {
	max := o.MaxLine
	if max <= 0 {
		max = defaultMaxLine
	}
	if _, _, err := parseFields(o.Fields); err != nil {
		return nil, err
	}
	x := &Reader{lines: newLineReader(r, max), clients: clients{find: o.Client}}
	var sample [][]byte
	// A program's first lines may not be requests: then more lines are looked at.
	for _, most := range []int{fewLines, manyLines} {
		lines, skipped, err := x.lines.sample(most)
		if err != nil {
			return nil, err
		}
		x.skipped += skipped
		more, sure := len(lines) > len(sample), false
		if sample = lines; !more {
			break
		}
		if x.plan, sure = makePlan(sample, &o); sure {
			break
		}
	}
	if len(sample) == 0 {
		x.plan, _ = makePlan(nil, &o)
	}
	if x.plan.format == Guess {
		return nil, fmt.Errorf("cannot tell the format of the log from its first line %q: name it with --format %s",
			clip(sample), expectedFormats)
	}
	x.wraps = x.plan.wrappings()
	inner, dated := unwrapAll(sample, x.plan)
	var err error
	if x.scan, x.asked, x.header, err = build(x.plan.format, o.Fields, dated, inner); err != nil {
		return nil, err
	}
	x.look(sample, inner, dated, &o)
	return x, nil
}

// unwrapAll removes the wrappings from the lines of a sample. dated says that most of them hold a
// time.
func unwrapAll(sample [][]byte, p plan) (inner [][]byte, dated bool) {
	if len(p.wraps) == 0 {
		return sample, false
	}
	w, times := p.wrappings(), 0
	for _, line := range sample {
		rest, when := w.unwrap(line)
		if inner = append(inner, bytes.Clone(rest)); when != nil {
			times++
		}
	}
	return inner, 2*times > len(sample)
}

func clip(sample [][]byte) string {
	if len(sample) == 0 {
		return ""
	}
	return string(sample[0][:min(len(sample[0]), 80)])
}

// Format returns the format of the log.
func (r *Reader) Format() Format { return r.plan.format }

// Skipped returns how many lines did not parse so far. Empty lines do not count.
func (r *Reader) Skipped() int64 { return r.skipped }

// Entries returns how many lines did parse so far.
func (r *Reader) Entries() int64 { return r.entries }

// Missing returns the entries of Options.Fields, as given, whose column or key no line has had so
// far. A field may still have a value, from another known name.
func (r *Reader) Missing() []string { return missing(r.asked) }

// Next reads the next line that parses into e; its values are valid until the next call. The error
// is io.EOF at the end, or an error of the underlying reader.
func (r *Reader) Next(e *Entry) error {
	for {
		whole, err := r.lines.next()
		if err == errLine {
			r.fault(nil, false)
			r.header = false
			continue
		}
		if err != nil {
			return err
		}
		if r.header {
			r.header = false
			continue
		}
		line := whole
		if r.wraps != nil {
			line = r.unwrap(whole)
		}
		e.Fields = e.Fields[:0]
		if !r.scan.scan(line, e) {
			if !r.directive(line) {
				r.fault(whole, false)
			}
			continue
		}
		if r.requests && e.Get(FieldPath) == nil && e.Get(FieldMethod) == nil {
			r.fault(whole, true)
			continue
		}
		r.clients.settle(e)
		if r.entries++; r.entries&(judged-1) == 0 {
			r.reading.judge(whole, e)
		}
		return nil
	}
}

// unwrap removes the wrapping of a line, and keeps its time.
func (r *Reader) unwrap(line []byte) []byte {
	rest, when := r.wraps.unwrap(line)
	c := r.scan.clock()
	c.hasBefore = false
	if when != nil {
		c.before, c.hasBefore = c.parse(when)
	}
	return rest
}

// directive reads a line about the log itself; false if the line is a request.
func (r *Reader) directive(line []byte) bool {
	w, ok := r.scan.(*w3cScanner)
	if ok = ok && line[0] == '#'; ok {
		w.directive(line, r.asked)
	}
	return ok
}
