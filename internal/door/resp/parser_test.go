package resp

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/util/chars"
)

// naive reads commands as the protocol's description has it, from all that has come: the slow way,
// to compare with.
func naive(in string, most, mostArgs int) (commands [][]string, err error) {
	for {
		begun := in
		head, rest, whole := strings.Cut(in, "\n")
		switch {
		case in == "":
			return commands, nil
		case in[0] != '*':
			if holdsControls([]byte(head[:min(len(head), most)])) {
				return commands, errBinary
			}
			if !whole {
				if len(in) >= most {
					return commands, errInline
				}
				return commands, nil
			}
			if len(head) >= most {
				return commands, errInline
			}
			args, err := naiveSplit(head, mostArgs)
			if err != nil {
				return commands, err
			}
			in = rest
			if len(args) == 0 {
				continue
			}
			if first := strings.ToLower(args[0]); first == "post" || first == "host:" ||
				strings.HasPrefix(args[len(args)-1], "HTTP/") {
				return commands, errOther
			}
			commands = append(commands, args)
			continue
		}
		n, rest, state := naiveNumber(in[1:], errArgs)
		if state != nil || rest == in[1:] {
			return commands, state
		}
		if n > int64(mostArgs) {
			return commands, errTooLarge
		}
		in = rest
		var args []string
		for range n {
			used := len(begun) - len(in)
			if in == "" {
				if used >= most {
					return commands, errTooLarge
				}
				return commands, nil
			}
			if in[0] != '$' && in[0] != ':' {
				return commands, errExpected
			}
			bad := errBulk
			if in[0] == ':' {
				bad = errNumber
			}
			size, rest, err := naiveNumber(in[1:], bad)
			if err != nil {
				return commands, err
			}
			if rest == in[1:] {
				if len(begun) >= most {
					return commands, errTooLarge
				}
				return commands, nil
			}
			if in[0] == ':' {
				args = append(args, strings.TrimSuffix(in[1:len(in)-len(rest)], "\r\n"))
				in = rest
				continue
			}
			if size < 0 {
				return commands, errBulk
			}
			if int64(len(begun)-len(rest))+size+2 > int64(most) {
				return commands, errTooLarge
			}
			if int64(len(rest)) < size+2 {
				return commands, nil
			}
			if rest[size:size+2] != "\r\n" {
				return commands, errTerminator
			}
			args, in = append(args, rest[:size]), rest[size+2:]
		}
		if n > 0 {
			commands = append(commands, args)
		}
	}
}

// naiveNumber returns text itself as rest if the line has not come whole.
func naiveNumber(text string, bad protocolError) (n int64, rest string, err error) {
	i := 0
	if text != "" && (text[0] == '-' || text[0] == '+') {
		i++
	}
	digits := i
	for i < len(text) && text[i] >= '0' && text[i] <= '9' {
		i++
		if n, err = strconv.ParseInt(text[:i], 10, 64); i > maxNumber || err != nil || n == math.MinInt64 {
			return 0, "", bad
		}
	}
	after := text[i:]
	switch {
	case after == "":
		return 0, text, nil
	case i == digits || after[0] != '\r':
		return 0, "", bad
	case len(after) == 1:
		return 0, text, nil
	case after[1] != '\n':
		return 0, "", bad
	}
	return n, after[2:], nil
}

// naiveSplit is sdssplitargs of Redis.
func naiveSplit(line string, most int) (args []string, err error) {
	for {
		line = strings.TrimLeft(line, " \t\r")
		if line == "" {
			return args, nil
		}
		if len(args) == most {
			return nil, errTooLarge
		}
		var arg []byte
		quote, done := byte(0), false
		for line != "" && !done {
			c := line[0]
			line = line[1:]
			switch {
			case quote == 0 && strings.IndexByte(" \t\r", c) >= 0:
				done = true
			case quote == 0 && (c == '"' || c == '\''):
				quote = c
			case quote != 0 && c == quote:
				if line != "" && strings.IndexByte(" \t\r", line[0]) < 0 {
					return nil, errQuotes
				}
				quote, done = 0, true
			case quote == '"' && c == '\\' && len(line) >= 3 && line[0] == 'x' && chars.IsHex(line[1]) &&
				chars.IsHex(line[2]):
				b, _ := strconv.ParseUint(line[1:3], 16, 8)
				arg, line = append(arg, byte(b)), line[3:]
			case quote == '"' && c == '\\' && line != "":
				is := map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', 'b': '\b', 'a': '\a'}
				e := line[0]
				if v, ok := is[e]; ok {
					e = v
				}
				arg, line = append(arg, e), line[1:]
			case quote == '\'' && c == '\\' && line != "" && line[0] == '\'':
				arg, line = append(arg, '\''), line[1:]
			default:
				arg = append(arg, c)
			}
		}
		if quote != 0 {
			return nil, errQuotes
		}
		args = append(args, string(arg))
	}
}

// parseIn parses what comes in pieces of the given sizes, over and over, in buffers as a connection
// has them.
func parseIn(in string, most, mostArgs int, sizes []int) (commands [][]string, err error) {
	p := parser{most: most, mostArgs: mostArgs}
	small, large := make([]byte, min(smallBuffer, most)), make([]byte, most)
	p.reset(small)
	for i := 0; ; i++ {
		for {
			ok, err := p.parse()
			if err != nil {
				return commands, err
			}
			if !ok {
				break
			}
			var args []string
			for _, a := range p.args {
				args = append(args, string(a))
			}
			commands = append(commands, args)
			p.consume()
		}
		if in == "" {
			return commands, nil
		}
		switch {
		case p.w == 0:
			p.buf = small
		case p.r > 0:
			p.w = copy(p.buf, p.buf[p.r:p.w])
			p.r = 0
		case p.w == len(p.buf) && len(p.buf) < most:
			p.w = copy(large, p.buf[:p.w])
			p.buf = large
		}
		n := copy(p.buf[p.w:], in[:min(len(in), max(1, sizes[i%len(sizes)]))])
		if n == 0 {
			return commands, fmt.Errorf("no room for more in a buffer of %d bytes", len(p.buf))
		}
		p.w += n
		in = in[n:]
	}
}

func same(a, b [][]string) bool {
	return slices.EqualFunc(a, b, func(a, b []string) bool { return slices.Equal(a, b) })
}

// compare fails if the parser does not find what the naive one does, in pieces of whatever size.
func compare(t *testing.T, in string, most, mostArgs int, sizes []int) {
	t.Helper()
	want, wantErr := naive(in, most, mostArgs)
	for _, sizes := range [][]int{{len(in)}, {1}, sizes} {
		got, err := parseIn(in, most, mostArgs, sizes)
		if wantErr == errTooLarge && most < maxCommand {
			wantErr = errStranger
		}
		if err != wantErr || !same(got, want) {
			t.Fatalf("%.300q in pieces of %d:\n%.300q, %v, want\n%.300q, %v", in, sizes, got, err, want, wantErr)
		}
	}
}

var frames = []string{
	"", "\r\n", "\n\n", "PING\r\n", "ping\n", "  set \t 'a b' \"c\\x41\\n\\\"\" d'e'\r\n", "'unbalanced\r\n", "\"a\"b\r\n", "'it\\'s'\r\n",
	"*1\r\n$4\r\nPING\r\n", "*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n*1\r\n$4\r\nPING\r\n", "*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n", "*3\r\n$1\r\na\r\n:42\r\n:-7\r\n",
	"*1000000000\r\n", "*9223372036854775808\r\n", "*-9223372036854775808\r\n", "*1\r\n$9999999999\r\n", "*1\r\n$-1\r\n", "*1\r\n$65536\r\n", "*1\r\n$4\r\nPINGxx",
	"*1\r\n*1\r\n$4\r\nPING\r\n", "*1\n$4\nPING\n", "*\r\n", "*1\rx", "*x\r\n", "*1\r\n$\r\n", "*1\r\n+OK\r\n", "$4\r\nPING\r\n", "*00000000000000000000001\r\n",
	"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "POST / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/1.1\r\n", "host: a\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"*2\r\n$3\r\nGET\r\n$8\r\nHTTP/1.1\r\n", "*1\r\n:\r\n", "*1\r\n:12345678901234567890123\r\n", "*2\r\n$4\r\nECHO\r\n$",
}

func TestParser(t *testing.T) {
	long := strings.Repeat("x", smallBuffer)
	more := []string{
		long + "\r\n", strings.Repeat("ab ", 2000) + "\r\n", "*2\r\n$4\r\nECHO\r\n$4096\r\n" + long + "\r\n",
		strings.Repeat("x", maxCommand), strings.Repeat("y ", maxCommand),
		command("ECHO", strings.Repeat("z", maxCommand-27)), command("ECHO", strings.Repeat("z", maxCommand-26)),
		command(strings.Split(strings.Repeat("a,", maxArgs-1)+"a", ",")...),
		command(strings.Split(strings.Repeat("a,", maxArgs)+"a", ",")...),
		strings.Repeat(command("CL.THROTTLE", "key", "15", "30", "60"), 500),
	}
	for _, in := range append(more, frames...) {
		for _, tail := range []string{"", "PING\r\n", "*1\r\n$4\r\nPI"} {
			compare(t, in+tail, maxCommand, maxArgs, []int{3, 1000, 7})
			compare(t, in+tail, maxStrangerCommand, maxStrangerArgs, []int{2, 501})
		}
	}
	if got, err := parseIn("*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n inline  'a b'\n", maxCommand, maxArgs, []int{100}); err != nil || !same(got, [][]string{{"ECHO", "\r\n"}, {"inline", "a b"}}) {
		t.Errorf("%q, %v", got, err)
	}
}

// FuzzParser: whatever comes, in whatever pieces, gives the same commands as a parser that is
// written to be read.
func FuzzParser(f *testing.F) {
	for i, in := range frames {
		f.Add([]byte(in), uint64(i))
		f.Add([]byte(in+frames[len(frames)-1-i]), uint64(i))
	}
	f.Fuzz(func(t *testing.T, in []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		sizes := make([]int, 1+r.IntN(5))
		for i := range sizes {
			sizes[i] = 1 + r.IntN(1+len(in))
		}
		compare(t, string(in), maxCommand, maxArgs, sizes)
		compare(t, string(in), 64, 4, sizes)
	})
}

// TestParserTakesNoMemory: what a client declares is not taken at its word.
func TestParserTakesNoMemory(t *testing.T) {
	buf := make([]byte, smallBuffer)
	for _, in := range []string{"*1024\r\n", "*1\r\n$65000\r\n", "*1\r\n$9999999999\r\n", "*1000000000\r\n",
		"*1024\r\n$60000\r\n"} {
		allocated := testing.AllocsPerRun(100, func() {
			p := parser{most: maxCommand, mostArgs: maxArgs}
			p.reset(buf)
			p.w = copy(buf, in)
			if ok, _ := p.parse(); ok {
				t.Fatal("that is no command")
			}
		})
		if allocated > 0 {
			t.Errorf("%q: %v allocations", in, allocated)
		}
	}
	if bytes.Count(buf, []byte{0}) == 0 {
		t.Error("the buffer is not the one that was given")
	}
}
