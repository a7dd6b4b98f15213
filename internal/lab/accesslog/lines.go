package accesslog

import (
	"bytes"
	"io"
)

// lineReader cuts a stream into lines without copying them. A line longer than max, or one that
// holds a NUL byte, comes back as errLine; empty lines are passed over. Memory is bounded by the
// buffer.
type lineReader struct {
	r     io.Reader
	buf   []byte
	pos   int // of the next unread byte
	end   int // of the bytes in buf
	max   int
	err   error // of r, kept until buf is used up
	start bool  // nothing has been read yet: look for a byte order mark
	line  int64 // number of the line that next returned last, from 1
}

const lineBuffer = 256 << 10

func newLineReader(r io.Reader, max int) lineReader {
	return lineReader{r: r, buf: make([]byte, lineBuffer+max), max: max, start: true}
}

// fill reads more into the buffer, which must have room; false if there is no more.
func (l *lineReader) fill() bool {
	if l.err != nil {
		return false
	}
	if l.pos > 0 {
		copy(l.buf, l.buf[l.pos:l.end])
		l.end -= l.pos
		l.pos = 0
	}
	for tries := 0; ; tries++ {
		n, err := l.r.Read(l.buf[l.end:])
		l.end += n
		if err != nil {
			l.err = err
			return n > 0
		}
		if n > 0 {
			break
		}
		if tries == 100 {
			l.err = io.ErrNoProgress
			return false
		}
	}
	if l.start && l.end >= 3 {
		l.start = false
		if bytes.HasPrefix(l.buf, []byte("\xef\xbb\xbf")) {
			l.pos = 3
		}
	}
	return true
}

// next returns the next line without its line break, valid until the next call.
func (l *lineReader) next() ([]byte, error) {
	scanned := 0
	for {
		if i := bytes.IndexByte(l.buf[l.pos+scanned:l.end], '\n'); i >= 0 {
			line := l.buf[l.pos : l.pos+scanned+i]
			l.pos += scanned + i + 1
			l.line++
			scanned = 0
			if line, err := l.check(line); line != nil || err != nil {
				return line, err
			}
			continue
		}
		scanned = l.end - l.pos
		if scanned > l.max {
			return nil, l.discard()
		}
		if l.fill() {
			continue
		}
		if l.err != io.EOF {
			return nil, l.err
		}
		if l.pos == l.end {
			return nil, io.EOF
		}
		line := l.buf[l.pos:l.end]
		l.pos = l.end
		l.line++
		scanned = 0
		if line, err := l.check(line); line != nil || err != nil {
			return line, err
		}
	}
}

// check trims a line: nil if it is empty.
func (l *lineReader) check(line []byte) ([]byte, error) {
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	if len(line) > l.max {
		return nil, errLine
	}
	if len(line) == 0 || line[0] <= ' ' && len(bytes.TrimSpace(line)) == 0 {
		return nil, nil
	}
	if bytes.IndexByte(line, 0) >= 0 {
		return nil, errLine
	}
	return line, nil
}

// discard passes over the rest of a line that is too long.
func (l *lineReader) discard() error {
	l.line++
	for {
		l.pos = l.end
		if !l.fill() {
			if l.err != io.EOF {
				return l.err
			}
			return errLine
		}
		if i := bytes.IndexByte(l.buf[l.pos:l.end], '\n'); i >= 0 {
			l.pos += i + 1
			return errLine
		}
	}
}

// sample returns whole lines from the start without consuming them: all that the first buffer
// holds, at most as many as most. Lines before them that are too long are passed over and counted.
func (l *lineReader) sample(most int) (lines [][]byte, skipped int64, err error) {
	for {
		atEnd := l.err != nil
		text := l.buf[l.pos:l.end]
		if !atEnd {
			text = text[:bytes.LastIndexByte(text, '\n')+1]
		}
		for len(text) > 0 && len(lines) < most {
			line, rest, _ := bytes.Cut(text, []byte("\n"))
			text = rest
			if line, err := l.check(line); err == nil && line != nil {
				lines = append(lines, line)
			}
		}
		if len(lines) > 0 {
			return lines, skipped, nil
		}
		if atEnd {
			if l.err == io.EOF {
				return nil, skipped, nil
			}
			return nil, skipped, l.err
		}
		if l.end-l.pos > l.max {
			// Not one good line in all this: read it off, counting as next does.
			if _, err := l.next(); err == errLine {
				skipped++
			} else if err != nil && err != io.EOF {
				return nil, skipped, err
			}
			continue
		}
		l.fill()
	}
}
