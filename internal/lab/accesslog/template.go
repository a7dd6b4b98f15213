package accesslog

import (
	"bytes"
	"fmt"
	"strings"
)

// template is the shape of a line: values, and the text before each of them. It is compiled from
// the words of a server's own configuration (words.go). Immutable.
type template struct {
	text   string
	pieces []piece
	tail   []byte // the text after the last value
	dated  bool   // a value is the time
}

// piece is a value of a template.
type piece struct {
	before []byte // the text before the value
	to     target // no name: the value is passed over
	quoted bool   // it stands in quotation marks
	spaces int    // how many spaces it holds: of a time
	slash  bool   // it ends at the first slash: a host right before a path
}

var quote = []byte{'"'}

// mustTemplate compiles a template of ours.
func mustTemplate(text string) *template {
	t, err := newTemplate(text)
	if err != nil {
		panic(err)
	}
	return t
}

// templateMaker puts a template together from literals and values.
type templateMaker struct {
	pieces  []piece
	literal strings.Builder
	err     error
}

// text adds literal text.
func (m *templateMaker) text(s string) { m.literal.WriteString(s) }

// value adds a value; spaces is how many it holds.
func (m *templateMaker) value(name string, to target, spaces int) {
	before := m.literal.String()
	m.literal.Reset()
	if len(m.pieces) > 0 {
		last := &m.pieces[len(m.pieces)-1]
		switch {
		case last.to.kind == kindTime && to.kind == kindTime && isWithinTime(before):
			last.spaces += spaces + strings.Count(before, " ")
			return
		case before != "":
		case last.to.kind == kindPath && (to.kind == kindQuery || to.kind == kindNone):
			return // as in $uri$is_args$args and %U%q
		case to.kind == kindPath:
			last.slash = true
		case m.err == nil:
			m.err = fmt.Errorf("--format: nothing parts %s from the value before it", name)
		}
	}
	if len(m.pieces) == maxFields && m.err == nil {
		m.err = fmt.Errorf("--format holds more than %d values", maxFields)
	}
	m.pieces = append(m.pieces, piece{before: []byte(before), to: to, spaces: spaces})
}

// isWithinTime reports whether a literal between two parts of a time belongs to it.
func isWithinTime(s string) bool { return len(s) <= 2 && strings.Trim(s, " .,:T-+/") == "" }

// finish returns the template.
func (m *templateMaker) finish(text string) (*template, error) {
	if m.err != nil {
		return nil, m.err
	}
	t := &template{text: text, pieces: m.pieces, tail: []byte(m.literal.String())}
	client := false
	for i := range t.pieces {
		p := &t.pieces[i]
		p.quoted = bytes.HasSuffix(p.before, quote) && bytes.HasPrefix(t.after(i), quote)
		t.dated = t.dated || p.to.kind == kindTime
		client = client || p.to.kind != kindNone && p.to.kind != kindTime
	}
	if !client {
		return nil, fmt.Errorf("--format %q has no value that is known, such as $remote_addr or %%h",
			text)
	}
	return t, nil
}

// after returns the text after the i-th value.
func (t *template) after(i int) []byte {
	if i+1 < len(t.pieces) {
		return t.pieces[i+1].before
	}
	return t.tail
}

// templateScanner scans lines of a template.
type templateScanner struct {
	*template
	clocked
	unescaper
	own []target // in place of the template's own, from Options.Fields; may be nil
}

// newTemplateScanner returns a scanner in which specs stand for the values that they name.
func newTemplateScanner(t *template, specs []fieldSpec) (*templateScanner, error) {
	s := &templateScanner{template: t}
	if len(specs) == 0 {
		return s, nil
	}
	for i := range t.pieces {
		s.own = append(s.own, t.pieces[i].to)
	}
	for _, spec := range specs {
		found := false
		for i := range t.pieces {
			if p := &t.pieces[i]; p.to.said != "" && strings.EqualFold(p.to.said, spec.key) {
				s.own[i], found = spec.to, true
			}
		}
		if !found {
			return nil, fmt.Errorf("--fields %s: the format has no value %q", spec.text, spec.key)
		}
	}
	return s, nil
}

func (s *templateScanner) scan(line []byte, e *Entry) bool {
	s.scratch = s.scratch[:0]
	g := gather{scratch: &s.scratch}
	rest := line
	for i := range s.pieces {
		p := &s.pieces[i]
		if !bytes.HasPrefix(rest, p.before) {
			return false
		}
		rest = rest[len(p.before):]
		end := s.end(i, rest)
		if end < 0 {
			return false
		}
		value := rest[:end]
		rest = rest[end:]
		to := &p.to
		if s.own != nil {
			to = &s.own[i]
		}
		if to.name == "" {
			continue
		}
		if p.quoted {
			value = s.unescape(value)
		}
		g.add(e, to, value)
	}
	if len(s.tail) == 0 && len(rest) > 0 && rest[0] != ' ' || !bytes.HasPrefix(rest, s.tail) {
		return false
	}
	return g.finish(e, &s.time)
}

// end returns the end of the i-th value, with which b begins; below 0 if the line does not match
// the template.
func (s *templateScanner) end(i int, b []byte) int {
	p, next := &s.pieces[i], s.after(i)
	switch {
	case p.quoted:
		return s.endQuoted(i, b, next)
	case p.slash:
		return bytes.IndexByte(b, '/')
	case len(next) == 0:
		if end := endOfWords(b, p.spaces); end >= 0 {
			return end
		}
		return len(b)
	case s.beforePort(i):
		// An address of IPv6 has colons, too.
		limit := wordEnd(b)
		if after := s.after(i + 1); len(after) > 0 {
			limit = bytes.Index(b, after)
		}
		if limit < 0 {
			return -1
		}
		return bytes.LastIndexByte(b[:limit], ':')
	case next[0] != ' ':
		return bytes.Index(b, next)
	}
	for from, skip := 0, p.spaces; ; {
		end := bytes.IndexByte(b[from:], ' ')
		if end < 0 {
			return -1
		}
		end += from
		from = end + 1
		switch {
		case skip > 0:
			skip--
		case end > 0 && b[end-1] == ',': // lists hold a space after each comma
		case p.to.kind == kindRequest && len(next) == 1:
			if bytes.Contains(b[:end], []byte(" HTTP/")) {
				return end
			}
		case bytes.HasPrefix(b[end:], next):
			return end
		case !p.mayHoldSpaces():
			return -1
		}
	}
}

// mayHoldSpaces reports whether the value may hold spaces even where no quotation marks stand
// around it.
func (p *piece) mayHoldSpaces() bool {
	switch p.to.kind {
	case kindNone:
		return p.to.name != ""
	case kindUser, kindUserAgent, kindReferer, kindRequest:
		return true
	}
	return false
}

// beforePort reports whether the i-th value is an address or a host, with its port after it.
func (t *template) beforePort(i int) bool {
	k := t.pieces[i].to.kind
	return (k == kindIP || k == kindHost) && i+1 < len(t.pieces) && string(t.after(i)) == ":" &&
		t.pieces[i+1].to.kind == kindNone
}

// endQuoted returns the end of a value in quotation marks. A stray mark in it does no harm, unless
// the same text follows it as follows the true one.
func (s *templateScanner) endQuoted(i int, b, next []byte) int {
	status := i+1 < len(s.pieces) && s.pieces[i+1].to.kind == kindStatus &&
		string(next) == `" `
	for from := 0; ; {
		end := closingQuote(b[from:])
		if end < 0 {
			return -1
		}
		end += from
		if bytes.HasPrefix(b[end:], next) && (!status || isStatus(b[end+1:])) {
			return end
		}
		from = end + 1
	}
}

// endOfWords returns the place of the space after so many others; below 0 if there is none.
func endOfWords(b []byte, spaces int) int {
	for from := 0; ; spaces-- {
		end := bytes.IndexByte(b[from:], ' ')
		if end < 0 || spaces == 0 {
			if end >= 0 {
				end += from
			}
			return end
		}
		from += end + 1
	}
}
