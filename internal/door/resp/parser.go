package resp

// Bounds of a client's input. A command of the maximum length fits the larger of a connection's two
// buffers.
const (
	maxCommand = 64 << 10 // bytes of one command, its framing included
	maxArgs    = 1024     // of one command
	// Of a client that has to authenticate first, and has not.
	maxStrangerCommand = 4 << 10
	maxStrangerArgs    = 16
	// A line that holds a number: its sign and digits.
	maxNumber = 20
)

// protocolError is a client's violation of the protocol. It ends the connection.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

const (
	errArgs       protocolError = "invalid multibulk length"
	errBulk       protocolError = "invalid bulk length"
	errTooLarge   protocolError = "too large: a command is of at most 65536 bytes and 1024 arguments"
	errStranger   protocolError = "too large before authentication"
	errExpected   protocolError = "expected '$'"
	errTerminator protocolError = "expected a line that ends in CRLF"
	errNumber     protocolError = "invalid number"
	errInline     protocolError = "too big inline request"
	errQuotes     protocolError = "unbalanced quotes in request"
	errBinary     protocolError = "neither a command in the Redis protocol nor a line of text"
	// errOther is a client that speaks another protocol, through which somebody may put words into
	// its mouth. It gets no answer.
	errOther protocolError = "this is no HTTP server"
)

// span is an argument's place, counted from the start of its command.
type span struct{ from, to int32 }

// parser finds commands in a buffer: arrays of bulk strings (or of numbers, which some clients
// send), and lines of text. It goes on where it stopped when more bytes have come, so that what
// comes in small pieces costs no more. Nothing that a client declares makes it take memory: that is
// taken as the bytes come.
type parser struct {
	buf  []byte // buf[r:w] has come and is not consumed
	r, w int

	most     int // bytes of one command
	mostArgs int

	args  [][]byte // of the command that parse found; views of buf, until consume
	end   int      // where that command ends, counted from r
	at    int      // where parsing goes on, counted from r
	left  int      // arguments that are still to come; below 0: the command has not begun
	spans []span
}

func (p *parser) reset(buf []byte) { p.buf, p.r, p.w, p.at, p.left = buf, 0, 0, 0, -1 }

// parse looks for the next command. It reports false if that has not come whole.
func (p *parser) parse() (bool, error) {
	for p.left < 0 {
		if p.r == p.w {
			return false, nil
		}
		if p.buf[p.r] != '*' {
			switch found, err := p.line(); {
			case err != nil || found == lineMore:
				return false, err
			case found == lineFull:
				return true, nil
			}
			continue
		}
		n, next, err := p.number(1, errArgs)
		if err != nil || next == 0 {
			return false, err
		}
		if n > int64(p.mostArgs) {
			return false, p.tooLarge()
		}
		if n <= 0 { // Redis takes no notice of it
			p.r += next
			continue
		}
		p.at, p.left, p.spans = next, int(n), p.spans[:0]
	}
	for p.left > 0 {
		if p.r+p.at == p.w {
			return false, p.overdue()
		}
		kind := p.buf[p.r+p.at]
		switch kind {
		case '$':
			n, next, err := p.number(p.at+1, errBulk)
			if err != nil || next == 0 {
				return false, firstError(err, p.overdue)
			}
			if n < 0 {
				return false, errBulk
			}
			if n > int64(p.most-next-2) {
				return false, p.tooLarge()
			}
			after := next + int(n)
			if p.r+after+2 > p.w {
				return false, nil
			}
			if p.buf[p.r+after] != '\r' || p.buf[p.r+after+1] != '\n' {
				return false, errTerminator
			}
			p.spans = append(p.spans, span{int32(next), int32(after)})
			p.at = after + 2
		case ':':
			_, next, err := p.number(p.at+1, errNumber)
			if err != nil || next == 0 {
				return false, firstError(err, p.overdue)
			}
			p.spans = append(p.spans, span{int32(p.at + 1), int32(next - 2)})
			p.at = next
		default:
			return false, errExpected
		}
		p.left--
	}
	p.end = p.at
	p.views()
	return true, nil
}

func firstError(err error, other func() error) error {
	if err != nil {
		return err
	}
	return other()
}

// overdue is the error of a command that has as many bytes as it may have and is not whole.
func (p *parser) overdue() error {
	if p.w-p.r >= p.most {
		return p.tooLarge()
	}
	return nil
}

func (p *parser) tooLarge() error {
	if p.most < maxCommand {
		return errStranger
	}
	return errTooLarge
}

// views makes args of spans.
func (p *parser) views() {
	p.args = p.args[:0]
	for _, s := range p.spans {
		p.args = append(p.args, p.buf[p.r+int(s.from):p.r+int(s.to):p.r+int(s.to)])
	}
}

// consume forgets the command that parse found.
func (p *parser) consume() {
	p.r += p.end
	p.at, p.left = 0, -1
	if p.r == p.w {
		p.r, p.w = 0, 0
	}
}

// number reads the number of the line at an offset, and returns where the line after it begins; 0
// if the line has not come whole.
func (p *parser) number(at int, bad error) (n int64, next int, err error) {
	b := p.buf[p.r+at : p.w]
	i, negative := 0, false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		negative = b[0] == '-'
		i++
	}
	digits := i
	for ; i < len(b) && b[i]-'0' <= 9; i++ {
		if i == maxNumber {
			return 0, 0, bad
		}
		d := int64(b[i] - '0')
		if n > (1<<63-1-d)/10 {
			return 0, 0, bad
		}
		n = n*10 + d
	}
	switch {
	case i == len(b):
		return 0, 0, nil
	case b[i] != '\r' || i == digits:
		return 0, 0, bad
	case i+1 == len(b):
		return 0, 0, nil
	case b[i+1] != '\n':
		return 0, 0, bad
	}
	if negative {
		n = -n
	}
	return n, at + i + 2, nil
}
