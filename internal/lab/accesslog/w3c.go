package accesslog

import (
	"bytes"
	"strings"
)

// w3cScanner scans the extended log format of the W3C, in which a line #Fields names the columns of
// the lines after it. They are separated by spaces, as in IIS, or by tabs, as in CloudFront.
type w3cScanner struct {
	clocked
	comma   byte
	columns []w3cColumn
	unescaper
}

type w3cColumn struct {
	target
	text bool // a text with escaped characters
}

var w3cFields = []byte("#Fields:")

// directive reads a line that begins with #.
func (s *w3cScanner) directive(line []byte, specs []fieldSpec) {
	names, ok := bytes.CutPrefix(line, w3cFields)
	if !ok {
		return
	}
	s.columns, s.comma = nil, 0
	for name := range strings.FieldsSeq(string(names)) {
		c := w3cColumn{target: lookup(name)}
		switch lower := strings.ToLower(name); lower {
		case "date":
			c.kind = kindDate
		case "time":
			c.kind = kindClock
		default:
			c.text = strings.HasPrefix(lower, "cs(")
		}
		for _, spec := range specs {
			if strings.EqualFold(spec.key, name) {
				c.target = spec.to
			}
		}
		s.columns = append(s.columns, c)
	}
}

func (s *w3cScanner) scan(line []byte, e *Entry) bool {
	if line[0] == '#' {
		return false
	}
	if s.comma == 0 {
		if s.comma = ' '; bytes.IndexByte(line, '\t') >= 0 {
			s.comma = '\t'
		}
	}
	s.scratch = s.scratch[:0]
	g := gather{scratch: &s.scratch}
	n := 0
	for rest, more := line, true; more; n++ {
		var cell []byte
		i := bytes.IndexByte(rest, s.comma)
		if more = i >= 0; more {
			cell, rest = rest[:i], rest[i+1:]
		} else {
			cell = rest
		}
		if n == len(s.columns) {
			return false
		}
		c := &s.columns[n]
		if c.text {
			cell = s.decode(cell)
		}
		g.add(e, &c.target, cell)
	}
	return n == len(s.columns) && g.finish(e, &s.time)
}

// decode resolves a text: IIS writes + for a space, CloudFront escapes as in a URL, once or twice.
func (s *w3cScanner) decode(b []byte) []byte {
	if s.comma == ' ' {
		if bytes.IndexByte(b, '+') < 0 {
			return b
		}
		from := len(s.scratch)
		for _, c := range b {
			if c == '+' {
				c = ' '
			}
			s.scratch = append(s.scratch, c)
		}
		return s.scratch[from:len(s.scratch):len(s.scratch)]
	}
	for range 2 {
		if bytes.IndexByte(b, '%') < 0 {
			break
		}
		from := len(s.scratch)
		for i := 0; i < len(b); i++ {
			c := b[i]
			if c == '%' && i+2 < len(b) && hex(b[i+1]) >= 0 && hex(b[i+2]) >= 0 {
				c = byte(hex(b[i+1])<<4 | hex(b[i+2]))
				i += 2
			}
			s.scratch = append(s.scratch, c)
		}
		b = s.scratch[from:len(s.scratch):len(s.scratch)]
	}
	return b
}
