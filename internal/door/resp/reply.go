package resp

import "strconv"

// Replies, in RESP2 and RESP3 (https://redis.io/docs/latest/develop/reference/protocol-spec/). Each
// function appends one to dst.

func appendInt(dst []byte, n int64) []byte {
	dst = append(dst, ':')
	if 0 <= n && n <= 9 {
		return append(dst, byte('0'+n), '\r', '\n')
	}
	return append(strconv.AppendInt(dst, n, 10), '\r', '\n')
}

// appendHead begins a reply of some kind that has n parts, or bytes.
func appendHead(dst []byte, kind byte, n int) []byte {
	dst = append(dst, kind)
	return append(strconv.AppendInt(dst, int64(n), 10), '\r', '\n')
}

func appendArray(dst []byte, n int) []byte { return appendHead(dst, '*', n) }

// appendMap begins a map of n pairs; in RESP2 it is an array.
func appendMap(dst []byte, resp3 bool, n int) []byte {
	if resp3 {
		return appendHead(dst, '%', n)
	}
	return appendHead(dst, '*', 2*n)
}

func appendBulk(dst []byte, s string) []byte {
	dst = appendHead(dst, '$', len(s))
	dst = append(dst, s...)
	return append(dst, '\r', '\n')
}

func appendNull(dst []byte, resp3 bool) []byte {
	if resp3 {
		return append(dst, "_\r\n"...)
	}
	return append(dst, "$-1\r\n"...)
}

// appendSimple appends a text that holds no line break.
func appendSimple(dst []byte, s string) []byte {
	dst = append(dst, '+')
	dst = append(dst, s...)
	return append(dst, '\r', '\n')
}

// appendError appends an error. Its first word is its code. What in the text could end the line
// becomes a space.
func appendError(dst []byte, text string) []byte {
	dst = append(dst, '-')
	from := len(dst)
	dst = append(dst, text...)
	for i, c := range dst[from:] {
		if c == '\r' || c == '\n' {
			dst[from+i] = ' '
		}
	}
	return append(dst, '\r', '\n')
}

// maxShown is how many bytes of a client's input an error repeats.
const maxShown = 128

// shown is a client's input in the form in which an error may repeat it.
func shown(b []byte) string {
	if len(b) > maxShown {
		return string(b[:maxShown]) + "…"
	}
	return string(b)
}

// ok is the reply of a command that has no result.
const ok = "+OK\r\n"
