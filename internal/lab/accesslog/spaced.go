package accesslog

import "bytes"

// word cuts the first column off a line whose columns are separated by spaces. Text in quotation
// marks or brackets is one column, and so are a day and its time, and a list with a space after
// each comma.
func (d *delimited) word(b []byte) (cell, rest []byte, ok bool) {
	b = bytes.TrimLeft(b, " \t")
	if len(b) == 0 {
		return nil, nil, true
	}
	switch b[0] {
	case '"':
		for from := 1; ; {
			end := closingQuote(b[from:])
			if end < 0 {
				return nil, nil, false
			}
			if end += from; end+1 == len(b) || b[end+1] == ' ' || b[end+1] == '\t' {
				return d.unescape(b[1:end]), bytes.TrimLeft(b[end+1:], " \t"), true
			}
			from = end + 1
		}
	case '[':
		if end := bytes.IndexByte(b, ']'); end > 0 && (end+1 == len(b) || b[end+1] == ' ') {
			return b[1:end], bytes.TrimLeft(b[end+1:], " \t"), true
		}
	}
	end := wordEnd(b)
	switch {
	case isDay(b[:end]):
		if clock := end + 1 + wordEnd(b[min(end+1, len(b)):]); clock <= len(b) && isClock(b[end+1:clock]) {
			end = clock
			if zoned := end + 1 + wordEnd(b[min(end+1, len(b)):]); zoned <= len(b) && isZone(b[end+1:zoned]) {
				end = zoned
			}
		}
	default:
		for end < len(b) && b[end-1] == ',' {
			end++
			end += wordEnd(b[end:])
		}
	}
	return b[:end], bytes.TrimLeft(b[end:], " \t"), true
}

// wordEnd returns where the first space of b is, or its length.
func wordEnd(b []byte) int {
	if i := bytes.IndexByte(b, ' '); i >= 0 {
		return i
	}
	return len(b)
}

// isDay reports whether b is a day: 2006-01-02, 2006/01/02 or 02/Jan/2006.
func isDay(b []byte) bool {
	if len(b) == 11 {
		return b[2] == '/' && b[6] == '/' && monthOf(b[3:6]) > 0
	}
	return len(b) == 10 && (b[4] == '-' || b[4] == '/') && b[7] == b[4] && b[0]-'0' <= 9 && b[9]-'0' <= 9
}

// isClock reports whether b begins as a time of day: 15:04:05.
func isClock(b []byte) bool {
	return len(b) >= 8 && b[0]-'0' <= 9 && b[2] == ':' && b[5] == ':' && b[7]-'0' <= 9
}

// isZone reports whether b is a zone: +0100.
func isZone(b []byte) bool {
	_, ok := zone(b)
	return ok
}
