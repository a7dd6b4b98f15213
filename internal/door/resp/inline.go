package resp

import (
	"bytes"

	"github.com/weir-rl/weir/internal/util/chars"
)

// What line found.
const (
	lineMore  = iota // it has not come whole
	lineEmpty        // nothing: it is consumed
	lineFull         // a command
)

// line looks for a command that is a line of text, as people type it.
func (p *parser) line() (found int, err error) {
	b := p.buf[p.r:p.w]
	n := bytes.IndexByte(b[p.at:], '\n')
	if n < 0 {
		if holdsControls(b[p.at:max(p.at, min(len(b), p.most))]) {
			return 0, errBinary
		}
		if p.at = len(b); len(b) >= p.most {
			return 0, errInline
		}
		return lineMore, nil
	}
	n += p.at
	if holdsControls(b[p.at:min(n, p.most)]) {
		return 0, errBinary
	}
	if n >= p.most {
		return 0, errInline
	}
	p.end, p.spans = n+1, p.spans[:0]
	if err := p.split(b[:n]); err != nil {
		return 0, err
	}
	if len(p.spans) == 0 {
		p.consume()
		return lineEmpty, nil
	}
	p.views()
	if isOtherProtocol(p.args) {
		return 0, errOther
	}
	return lineFull, nil
}

// holdsControls reports whether b holds what no line of text does, as the beginning of a TLS
// connection.
func holdsControls(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' && c != '\r' || c == 0x7f {
			return true
		}
	}
	return false
}

// isOtherProtocol reports whether a line is of an HTTP request. A web page can have a browser send
// one here, whose body is lines that the page chose.
func isOtherProtocol(args [][]byte) bool {
	first, last := args[0], args[len(args)-1]
	return bytes.EqualFold(first, []byte("post")) || bytes.EqualFold(first, []byte("host:")) ||
		bytes.HasPrefix(last, []byte("HTTP/"))
}

// split cuts a line into arguments, as Redis does: at spaces outside quotes. The contents of quotes
// are written over the line, where they never take more room.
func (p *parser) split(line []byte) error {
	for i := 0; ; {
		for i < len(line) && isSpace(line[i]) {
			i++
		}
		if i == len(line) {
			return nil
		}
		if len(p.spans) == p.mostArgs {
			return p.tooLarge()
		}
		from := i
		to, next, ok := unquote(line, i)
		if !ok {
			return errQuotes
		}
		p.spans = append(p.spans, span{int32(from), int32(to)})
		i = next
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

// unquote reads the argument at from and writes its value over it; next is where the line goes on.
func unquote(line []byte, from int) (to, next int, ok bool) {
	to = from
	quote := byte(0)
	for i := from; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == 0 && isSpace(c):
			return to, i, true
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
			continue
		case c == quote && quote != 0:
			if i+1 < len(line) && !isSpace(line[i+1]) {
				return 0, 0, false
			}
			return to, i + 1, true
		case c == '\\' && quote == '"' && i+1 < len(line):
			i++
			if c = line[i]; c == 'x' && i+2 < len(line) && chars.IsHex(line[i+1]) && chars.IsHex(line[i+2]) {
				c = chars.HexDigit(line[i+1])<<4 | chars.HexDigit(line[i+2])
				i += 2
			} else {
				c = escaped(c)
			}
		case c == '\\' && quote == '\'' && i+1 < len(line) && line[i+1] == '\'':
			i++
			c = '\''
		}
		line[to] = c
		to++
	}
	return to, len(line), quote == 0
}

// escaped is what stands for a letter after a backslash.
func escaped(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'a':
		return '\a'
	}
	return c
}
