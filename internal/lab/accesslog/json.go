package accesslog

import (
	"unicode/utf16"
	"unicode/utf8"
)

// jsonScanner scans one JSON object (RFC 8259). Keys of nested objects are joined by dots. In an
// array only the first element counts, if it is a scalar; in an array of clients all do. Literals
// and numbers are taken as written, null as absent.
type jsonScanner struct {
	clocked
	asked   map[string]*target // by key, from Options.Fields
	targets map[string]*target // by key as the log writes it; bounded by maxNames
	gather  gather
	e       *Entry
	b       []byte
	i       int
	key     []byte // dotted name of where the scanner is
	scratch []byte // unescaped strings of the line
	inner   int    // how many objects inside arrays the scanner is in: they are checked, not kept
}

const maxDepth = 64

func newJSONScanner(specs []fieldSpec, mapped bool) *jsonScanner {
	s := &jsonScanner{asked: make(map[string]*target), targets: make(map[string]*target)}
	for _, f := range specs {
		if f.skip {
			continue
		}
		key := f.to.name
		if mapped {
			key = f.key
		}
		s.asked[key] = &f.to
	}
	return s
}

func (s *jsonScanner) scan(line []byte, e *Entry) bool {
	return s.parse(line, e) && s.gather.finish(e, &s.time)
}

// parse gathers the fields of a line.
func (s *jsonScanner) parse(line []byte, e *Entry) bool {
	s.b, s.i, s.e = line, 0, e
	s.key, s.scratch = s.key[:0], s.scratch[:0]
	s.gather, s.inner = gather{scratch: &s.scratch}, 0
	s.space()
	if !s.object(0) {
		return false
	}
	s.space()
	return s.i == len(s.b)
}

func (s *jsonScanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// take consumes c, and the space after it.
func (s *jsonScanner) take(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		s.space()
		return true
	}
	return false
}

// object scans an object; its fields are added under s.key.
func (s *jsonScanner) object(depth int) bool {
	if depth == maxDepth || !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	base := len(s.key)
	for {
		name, ok := s.string()
		if !ok {
			return false
		}
		if base > 0 {
			s.key = append(s.key, '.')
		}
		s.key = append(s.key, name...)
		s.space()
		if !s.take(':') || !s.value(depth, true) {
			return false
		}
		s.key = s.key[:base]
		s.space()
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
	}
}

// value scans any value, and adds a scalar under s.key if keep says so.
func (s *jsonScanner) value(depth int, keep bool) bool {
	if s.i == len(s.b) {
		return false
	}
	switch c := s.b[s.i]; c {
	case '"':
		v, ok := s.string()
		if ok && keep {
			s.add(v)
		}
		return ok
	case '{':
		if keep {
			return s.object(depth + 1)
		}
		s.inner++
		ok := s.object(depth + 1)
		s.inner--
		return ok
	case '[':
		if depth+1 == maxDepth {
			return false
		}
		s.take('[')
		if s.take(']') {
			return true
		}
		for first := true; ; first = false {
			scalar := s.i < len(s.b) && s.b[s.i] != '{' && s.b[s.i] != '['
			if keep && !first && scalar && s.b[s.i] == '"' {
				v, ok := s.string()
				if !ok {
					return false
				}
				s.more(v)
			} else if !s.value(depth+1, keep && first && scalar) {
				return false
			}
			s.space()
			if s.take(']') {
				return true
			}
			if !s.take(',') {
				return false
			}
		}
	case 't':
		return s.literal("true", keep)
	case 'f':
		return s.literal("false", keep)
	case 'n':
		if !s.literal("null", false) {
			return false
		}
		if keep {
			s.add(nil) // the key is there, its value is not
		}
		return true
	default:
		start := s.i
		if !s.number() {
			return false
		}
		if keep {
			s.add(s.b[start:s.i])
		}
		return true
	}
}

func (s *jsonScanner) literal(word string, keep bool) bool {
	end := s.i + len(word)
	if end > len(s.b) || string(s.b[s.i:end]) != word {
		return false
	}
	if keep {
		s.add(s.b[s.i:end])
	}
	s.i = end
	return true
}

func (s *jsonScanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		s.i++
	}
	return s.i > start
}

func (s *jsonScanner) number() bool {
	if s.b[s.i] == '-' {
		s.i++
	}
	zero := s.i < len(s.b) && s.b[s.i] == '0'
	start := s.i
	if !s.digits() || zero && s.i > start+1 {
		return false
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return false
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		return s.digits()
	}
	return true
}

// string scans a string and returns its value: a slice of the line where it holds no escape.
func (s *jsonScanner) string() ([]byte, bool) {
	if s.i == len(s.b) || s.b[s.i] != '"' {
		return nil, false
	}
	s.i++
	start := s.i
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			v := s.b[start:s.i]
			s.i++
			return v, true
		case c == '\\':
			return s.escaped(start)
		case c < ' ':
			return nil, false
		}
		s.i++
	}
	return nil, false
}

func (s *jsonScanner) escaped(start int) ([]byte, bool) {
	from := len(s.scratch)
	s.scratch = append(s.scratch, s.b[start:s.i]...)
	for s.i < len(s.b) {
		c := s.b[s.i]
		s.i++
		if c == '"' {
			return s.scratch[from:len(s.scratch):len(s.scratch)], true
		}
		if c < ' ' {
			return nil, false
		}
		if c != '\\' {
			s.scratch = append(s.scratch, c)
			continue
		}
		if s.i == len(s.b) {
			return nil, false
		}
		c = s.b[s.i]
		s.i++
		switch c {
		case '"', '\\', '/':
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r, ok := s.hex4()
			if !ok {
				return nil, false
			}
			if utf16.IsSurrogate(r) {
				if s.i+1 < len(s.b) && s.b[s.i] == '\\' && s.b[s.i+1] == 'u' {
					back := s.i
					s.i += 2
					low, ok := s.hex4()
					if !ok {
						return nil, false
					}
					if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
						r = pair
					} else {
						s.i, r = back, utf8.RuneError
					}
				} else {
					r = utf8.RuneError
				}
			}
			s.scratch = utf8.AppendRune(s.scratch, r)
			continue
		default:
			return nil, false
		}
		s.scratch = append(s.scratch, c)
	}
	return nil, false
}

func (s *jsonScanner) hex4() (rune, bool) {
	if s.i+4 > len(s.b) {
		return 0, false
	}
	var r rune
	for _, c := range s.b[s.i : s.i+4] {
		h := hex(c)
		if h < 0 {
			return 0, false
		}
		r = r<<4 | rune(h)
	}
	s.i += 4
	return r, true
}

func (s *jsonScanner) add(value []byte) {
	if s.inner > 0 {
		return
	}
	if t := s.target(); t != nil {
		s.gather.add(s.e, t, value)
	}
}

// more adds a further element of an array to the value of the first, if they name clients.
func (s *jsonScanner) more(value []byte) {
	if s.inner > 0 || len(value) == 0 || len(s.e.Fields) == 0 {
		return
	}
	t, last := s.target(), &s.e.Fields[len(s.e.Fields)-1]
	if t != nil && (t.kind == kindIP || t.kind == kindForwarded) && last.Name == t.name {
		last.Value = s.gather.join(last.Value, ',', value)
	}
}

// target returns the target of the value under s.key; nil if the value is not kept.
func (s *jsonScanner) target() *target {
	t := s.asked[string(s.key)]
	if t == nil {
		t = s.targets[string(s.key)]
	}
	if t == nil {
		if len(s.targets) == maxNames {
			return nil
		}
		name := string(s.key)
		found := lookup(name)
		t = &found
		s.targets[name] = t
	}
	return t
}
