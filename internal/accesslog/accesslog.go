// Package accesslog reads access logs as a stream: Apache and nginx common and combined, JSON
// lines, CSV and TSV, gzipped, zstd-compressed or plain.
//
// A Reader yields the lines of one log in file order. A Log opens several, puts the lines of each
// in order of time, and merges them. Neither allocates for each line, and the memory of both is
// bounded whatever the log holds: a line that does not parse is skipped and counted.
//
// Begin with Open (log.go) and NewReader (accesslog.go). Each format has a scanner: common.go,
// json.go and delimited.go.
package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// Format is a log format. The zero value, Guess, finds it out from the first lines.
type Format uint8

// The formats.
const (
	Guess  Format = iota
	Common        // Apache and nginx common and combined
	JSON          // one object a line
	CSV
	TSV
)

var formatNames = [...]string{"guess", "common", "json", "csv", "tsv"}

// String returns the name that ParseFormat takes.
func (f Format) String() string {
	if int(f) < len(formatNames) {
		return formatNames[f]
	}
	return fmt.Sprintf("format(%d)", uint8(f))
}

// ParseFormat finds a format by name: common, combined (the same), json, csv, tsv; "" and "guess"
// are Guess.
func ParseFormat(name string) (Format, error) {
	switch strings.ToLower(name) {
	case "", "guess", "auto":
		return Guess, nil
	case "common", "combined", "apache", "nginx", "clf":
		return Common, nil
	case "json", "jsonl", "ndjson":
		return JSON, nil
	case "csv":
		return CSV, nil
	case "tsv":
		return TSV, nil
	}
	return Guess, fmt.Errorf("unknown log format %q: expected common, combined, json, csv or tsv", name)
}

// Options configure how a log is read. The zero value guesses everything.
type Options struct {
	Format Format
	// Fields names columns or JSON keys. Entries without "=" name the columns of CSV and TSV in
	// order ("-" or "" skips one), and JSON keys by their own name. Entries "field=key" take the
	// field from the JSON key (dots reach into nested objects), the header's column of that name,
	// or the column of that number (from 1).
	Fields []string
	// MaxLine is the length in bytes from which a line is skipped; 0 means 65,536.
	MaxLine int
	// Reorder is how far out of order lines may be, in µs. Used by Log only; below 0 counts as 0.
	Reorder int64
}

const (
	defaultMaxLine = 64 << 10
	maxFields      = 256 // of one line; further ones are dropped
	maxNames       = 1000
)

// errLine says that a line does not parse.
var errLine = errors.New("accesslog: line does not parse")

// scanner parses one line into e; it returns false if the line does not parse. The values in e
// point into line or into the scanner's own memory, and are valid until the next call.
type scanner interface {
	scan(line []byte, e *Entry) bool
}

// Reader reads one log in file order. Not safe for concurrent use. Make one with NewReader.
type Reader struct {
	lines   lineReader
	format  Format
	scan    scanner
	entries int64
	skipped int64
	header  bool // the next line is a header
	asked   []fieldSpec
	faults  []Fault
}

// Fault is a line that did not parse.
type Fault struct {
	Log  string `json:"log,omitempty"` // the log's name; "" from a Reader
	Line int64  `json:"line"`          // its number, from 1
	Text string `json:"text"`          // its beginning
	Why  string `json:"why"`
}

// maxFaults is how many of the lines that do not parse are kept.
const maxFaults = 3

// Faults returns the first lines that did not parse.
func (r *Reader) Faults() []Fault { return r.faults }

// fault counts a line that does not parse.
func (r *Reader) fault(line []byte) {
	r.skipped++
	if len(r.faults) >= maxFaults {
		return
	}
	f := Fault{Line: r.lines.line, Text: strings.ToValidUTF8(string(line[:min(len(line), 100)]), "\ufffd")}
	switch {
	case line == nil:
		f.Why = "it is too long, or holds a NUL byte"
	case r.format == JSON && !json.Valid(line):
		f.Why = "it is no JSON object"
	case r.format == JSON:
		f.Why = "none of its keys is known to be the time, or that is no time"
	case r.format == Common:
		f.Why = "it is not of the common or combined format"
	default:
		f.Why = "it has too few columns, or no time where one is expected"
		if d, ok := r.scan.(*delimited); ok {
			f.Why = fmt.Sprintf("its column %d is no time, or is not there", d.last+1)
		}
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
	specs, mapped, err := parseFields(o.Fields)
	if err != nil {
		return nil, err
	}
	x := &Reader{lines: newLineReader(r, max), format: o.Format, asked: specs}
	sample, skipped, err := x.lines.sample()
	if err != nil {
		return nil, err
	}
	x.skipped = skipped
	if x.format == Guess {
		if x.format = guessFormat(sample, o.Fields); x.format == Guess {
			return nil, fmt.Errorf("cannot tell the format of the log from its first line %q: name it with --format common, json, csv or tsv", clip(sample))
		}
	}
	switch x.format {
	case Common:
		if len(o.Fields) > 0 {
			return nil, errors.New("--fields names columns or JSON keys: it does not fit the common and combined formats, whose fields are fixed")
		}
		x.scan = &commonScanner{}
	case JSON:
		x.scan = newJSONScanner(specs, mapped)
	default:
		d, header, err := newDelimited(x.format, specs, mapped, sample)
		if err != nil {
			return nil, err
		}
		x.scan, x.header = d, header
	}
	return x, nil
}

func clip(sample [][]byte) string {
	if len(sample) == 0 {
		return ""
	}
	return string(sample[0][:min(len(sample[0]), 80)])
}

// Format returns the format that is read.
func (r *Reader) Format() Format { return r.format }

// Skipped returns how many lines did not parse so far. Empty lines do not count.
func (r *Reader) Skipped() int64 { return r.skipped }

// Entries returns how many lines did parse so far.
func (r *Reader) Entries() int64 { return r.entries }

// Missing returns the entries of Options.Fields, as they were given, whose column or key no line
// has had so far. A field may still have a value, from another name that is known for it.
func (r *Reader) Missing() []string { return missing(r.asked) }

// Next reads the next line that parses into e; its values are valid until the next call. The error
// is io.EOF at the end, or an error of the underlying reader.
func (r *Reader) Next(e *Entry) error {
	for {
		line, err := r.lines.next()
		if err == errLine {
			r.fault(nil)
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
		e.Fields = e.Fields[:0]
		if !r.scan.scan(line, e) {
			r.fault(line)
			continue
		}
		r.entries++
		return nil
	}
}

// guessFormat finds the format that most lines of the sample have.
func guessFormat(sample [][]byte, fields []string) Format {
	switch {
	case len(sample) > 0:
	case len(fields) > 0: // nothing to read: any format will do that fits them
		return JSON
	default:
		return Common
	}
	var votes [len(formatNames)]int
	var c commonScanner
	var e Entry
	for _, line := range sample {
		e.Fields = e.Fields[:0]
		switch {
		case bytes.TrimLeft(line, " \t")[0] == '{':
			votes[JSON]++
		case c.scan(line, &e):
			votes[Common]++
		case bytes.IndexByte(line, '\t') >= 0:
			votes[TSV]++
		case bytes.IndexByte(line, ',') >= 0:
			votes[CSV]++
		}
	}
	best := Guess
	for f, n := range votes {
		if n > votes[best] {
			best = Format(f)
		}
	}
	if best == Guess && len(fields) == 1 {
		return CSV // a single column
	}
	if best == Common && len(fields) > 0 {
		return Common // NewReader explains why fields do not fit
	}
	return best
}
