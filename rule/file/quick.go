package file

import "strings"

// quickReader reads the YAML that most rule files are made of, in one pass over the text, where the
// library takes ten times as long and a few hundred bytes for each word. It reads mappings and
// lists in block style, mappings and lists in flow style that end in their line, plain and quoted
// words that do so too, and comments; all in ASCII, except comments. It gives up on everything
// else, and on every error: the library then reads the file, and reports the error. Its result
// equals the library's, to the column.
type quickReader struct {
	text     string
	at       int // the next byte
	line     int
	start    int // where the line begins
	column   int // of the first word of the line, once nextLine has found it; 0 at the end of the text
	words    int // and signs
	depth    int
	comments []comment

	pairs    []pair // of the mappings that are open
	items    []*element
	elements []element // room for some
}

// Bounds below the library reader's, so that nothing it refuses gets by.
const (
	maxQuickKeys  = 500
	maxQuickDepth = maxDepth / 4
)

// readQuick returns the only document of a file, and the comments that speak to lint; it is not
// ok if the text is to be read in the general way.
func readQuick(text string) (document *element, comments []comment, ok bool) {
	q := quickReader{text: text, line: 1}
	if !q.nextLine() || q.column == 0 {
		return nil, nil, false
	}
	v, ok := q.block()
	if !ok || q.at < len(q.text) || v.kind != mapKind || q.words > maxTokens-16 {
		return nil, nil, false
	}
	return v, q.comments, true
}

// element returns a new element at the next byte.
func (q *quickReader) element(kind kind) *element {
	if len(q.elements) == 0 {
		q.elements = make([]element, 64)
	}
	v := &q.elements[0]
	q.elements = q.elements[1:]
	v.kind, v.line, v.column, v.size, v.depth = kind, q.line, q.at-q.start+1, 1, 1
	return v
}

// holdQuick is hold within the bounds of the quick way.
func (v *element) holdQuick(child *element) {
	v.size += child.size
	v.depth = max(v.depth, child.depth+1)
}

// peek returns the byte that is n bytes ahead; 0 behind the end.
func (q *quickReader) peek(n int) byte {
	if q.at+n < len(q.text) {
		return q.text[q.at+n]
	}
	return 0
}

// ends reports whether the byte n ahead is a space, or ends a line.
func (q *quickReader) ends(n int) bool {
	c := q.peek(n)
	return c == ' ' || c == '\n' || c == 0 && q.at+n >= len(q.text)
}

func (q *quickReader) spaces() {
	for q.peek(0) == ' ' {
		q.at++
	}
}

// nextLine ends the line, behind which nothing but a comment may stand, and goes to the first
// word of the next one that has any.
func (q *quickReader) nextLine() (ok bool) {
	for {
		from := q.at
		q.spaces()
		switch {
		case q.at == len(q.text):
			q.column = 0
			return true
		case q.peek(0) == '#':
			if q.at == from && q.at != q.start || !q.comment() {
				return false
			}
		case q.peek(0) == '\n':
			q.at++
			q.line, q.start = q.line+1, q.at
		case from == q.start:
			q.column = q.at - q.start + 1
			return true
		default:
			return false
		}
	}
}

// comment reads a comment up to the end of its line.
func (q *quickReader) comment() (ok bool) {
	text, _, _ := strings.Cut(q.text[q.at+1:], "\n")
	for i := range len(text) {
		if c := text[i]; c < ' ' || c == 0x7f {
			return false
		}
	}
	q.words++
	if said := strings.TrimSpace(text); strings.HasPrefix(said, "lint:") {
		q.comments = append(q.comments, comment{line: q.line, column: q.at - q.start + 1, text: said})
	}
	q.at += 1 + len(text)
	return true
}

// block reads what begins with the first word of a line, or behind the sign of a list's entry, and
// goes on to the line behind.
func (q *quickReader) block() (v *element, ok bool) {
	if q.depth++; q.depth > maxQuickDepth {
		return nil, false
	}
	switch n := q.key(); {
	case q.peek(0) == '-' && q.ends(1):
		v, ok = q.list()
	case n > 0 && q.peek(n) == ':' && q.ends(n+1):
		v, ok = q.mapping()
	default:
		v, ok = q.value()
	}
	q.depth--
	return v, ok
}

// key returns the length of the word that may be a key.
func (q *quickReader) key() int {
	n := 0
	for ; q.at+n < len(q.text); n++ {
		c := q.text[q.at+n]
		if !isWord(c) && (n == 0 || c != '.' && c != '-' && c != '/') {
			break
		}
	}
	return n
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// mapping reads a mapping whose keys begin where this one does.
func (q *quickReader) mapping() (v *element, ok bool) {
	v = q.element(mapKind)
	column, begin := v.column, len(q.pairs)
	for {
		n := q.key()
		if n == 0 || q.peek(n) != ':' || !q.ends(n+1) || len(q.pairs)-begin == maxQuickKeys {
			return nil, false
		}
		key, ok := q.word(n)
		if !ok {
			return nil, false
		}
		q.at, q.words = q.at+1, q.words+1
		value, ok := q.under(column)
		if !ok {
			return nil, false
		}
		v.holdQuick(value)
		q.pairs = append(q.pairs, pair{key: key, value: value})
		if q.column != column || q.peek(0) == '-' {
			break
		}
	}
	if q.column > column {
		return nil, false
	}
	v.pairs = append([]pair(nil), q.pairs[begin:]...)
	q.pairs = q.pairs[:begin]
	return v, true
}

// under reads the value of a key in that column: behind it, or on the lines below.
func (q *quickReader) under(column int) (*element, bool) {
	from := q.at
	q.spaces()
	if c := q.peek(0); q.at < len(q.text) && c != '\n' && c != '#' {
		return q.value()
	}
	q.at = from
	if !q.nextLine() || q.column < column || q.column == column && (q.peek(0) != '-' || !q.ends(1)) {
		return nil, false
	}
	return q.block()
}

// list reads a list whose entries begin where this one does.
func (q *quickReader) list() (v *element, ok bool) {
	v = q.element(listKind)
	column, begin := v.column, len(q.items)
	for q.column == column && q.peek(0) == '-' && q.ends(1) {
		q.at, q.words = q.at+1, q.words+1
		q.spaces()
		if c := q.peek(0); c == '\n' || c == '#' || c == '-' {
			return nil, false
		}
		q.column = q.at - q.start + 1
		item, ok := q.block()
		if !ok {
			return nil, false
		}
		v.holdQuick(item)
		q.items = append(q.items, item)
	}
	if q.column > column {
		return nil, false
	}
	v.items = append([]*element(nil), q.items[begin:]...)
	q.items = q.items[:begin]
	return v, true
}

// value reads what stands on one line, and goes on to the line behind.
func (q *quickReader) value() (v *element, ok bool) {
	switch q.peek(0) {
	case '{', '[':
		v, ok = q.flow()
	case '"', '\'':
		v, ok = q.quoted()
	default:
		v, ok = q.plain()
	}
	return v, ok && q.nextLine()
}

// word reads a plain word of n bytes.
func (q *quickReader) word(n int) (*element, bool) {
	v := q.element(scalarKind)
	v.text = q.text[q.at : q.at+n]
	switch v.text {
	case "null", "Null", "NULL", "~", "":
		return nil, false
	}
	q.at, q.words = q.at+n, q.words+1
	return v, true
}

// begins reports whether a plain word may begin here.
func (q *quickReader) begins() bool {
	c := q.peek(0)
	return isWord(c) || strings.IndexByte("/.~^($+\\", c) >= 0 && c != 0 || c == '-' && isWord(q.peek(1))
}

// plain reads a plain word up to the end of the line, or a comment.
func (q *quickReader) plain() (*element, bool) {
	if !q.begins() || strings.HasPrefix(q.text[q.at:], "...") {
		return nil, false
	}
	n := 0
	for ; q.at+n < len(q.text); n++ {
		c := q.text[q.at+n]
		if c == '\n' {
			break
		}
		if c == '#' {
			if q.text[q.at+n-1] != ' ' {
				return nil, false
			}
			break
		}
		if c < ' ' || c >= 0x7f || c == ':' && q.ends(n+1) {
			return nil, false
		}
	}
	length := len(strings.TrimRight(q.text[q.at:q.at+n], " "))
	if length < n && q.peek(n) != '#' {
		return nil, false // the library counts the spaces at the end to the column
	}
	return q.word(length)
}

// quoted reads a word in quotes.
func (q *quickReader) quoted() (*element, bool) {
	v := q.element(scalarKind)
	v.quoted = true
	quote := q.text[q.at]
	var changed []byte // the result, once it differs from the text
	begin := q.at + 1
	for i := begin; i < len(q.text); i++ {
		c := q.text[i]
		switch {
		case c < ' ' || c >= 0x7f:
			return nil, false
		case c == '\\' && quote == '"':
			if next := q.text[i+1:]; next == "" || next[0] != '\\' && next[0] != '"' {
				return nil, false
			}
			changed = append(changed, q.text[begin:i]...)
			begin, i = i+1, i+1
		case c == quote && quote == '\'' && i+1 < len(q.text) && q.text[i+1] == quote:
			changed = append(changed, q.text[begin:i]...)
			begin, i = i+1, i+1
		case c == quote:
			if v.text = q.text[begin:i]; changed != nil {
				v.text = string(append(changed, v.text...))
			}
			q.at, q.words = i+1, q.words+1
			return v, true
		}
	}
	return nil, false
}

// flow reads a mapping or a list in brackets.
func (q *quickReader) flow() (v *element, ok bool) {
	if q.depth++; q.depth > maxQuickDepth {
		return nil, false
	}
	open := q.text[q.at]
	pairs, items := len(q.pairs), len(q.items)
	v, closing := q.element(mapKind), byte('}')
	if open == '[' {
		v.kind, closing = listKind, ']'
	}
	q.at, q.words = q.at+1, q.words+1
	for {
		q.spaces()
		if q.peek(0) == closing && (len(q.pairs) == pairs && len(q.items) == items) {
			break
		}
		var key *element
		if open == '{' {
			n := q.key()
			if n == 0 || q.peek(n) != ':' || q.peek(n+1) != ' ' || len(q.pairs)-pairs == maxQuickKeys {
				return nil, false
			}
			if key, ok = q.word(n); !ok {
				return nil, false
			}
			q.at, q.words = q.at+1, q.words+1
			q.spaces()
		}
		value, ok := q.flowValue()
		if !ok {
			return nil, false
		}
		v.holdQuick(value)
		if key != nil {
			q.pairs = append(q.pairs, pair{key: key, value: value})
		} else {
			q.items = append(q.items, value)
		}
		q.spaces()
		if q.peek(0) != ',' {
			break
		}
		q.at, q.words = q.at+1, q.words+1
	}
	if q.peek(0) != closing {
		return nil, false
	}
	q.at, q.words, q.depth = q.at+1, q.words+1, q.depth-1
	if len(q.pairs) > pairs {
		v.pairs = append([]pair(nil), q.pairs[pairs:]...)
	}
	if len(q.items) > items {
		v.items = append([]*element(nil), q.items[items:]...)
	}
	q.pairs, q.items = q.pairs[:pairs], q.items[:items]
	return v, true
}

// flowValue reads a value within brackets.
func (q *quickReader) flowValue() (*element, bool) {
	switch q.peek(0) {
	case '{', '[':
		return q.flow()
	case '"', '\'':
		return q.quoted()
	}
	if !q.begins() {
		return nil, false
	}
	n := 0
	for ; ; n++ {
		c := q.peek(n)
		if c == ',' || c == ']' || c == '}' {
			break
		}
		if c < ' ' || c >= 0x7f || strings.IndexByte("[{:#\"'", c) >= 0 {
			return nil, false
		}
	}
	return q.word(len(strings.TrimRight(q.text[q.at:q.at+n], " ")))
}
