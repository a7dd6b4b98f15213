package answer

import (
	"strconv"
	"unicode/utf8"

	"github.com/weir-rl/weir/algo"
)

// Printable makes a client's name fit for a message.
func Printable(name string) string {
	const most = 64
	if len(name) > most {
		name = name[:most] + "…"
	}
	q := strconv.QuoteToGraphic(name)
	if q[1:len(q)-1] == name {
		return name
	}
	return q
}

// AppendSeconds appends a time of µs as seconds, with as many digits as it takes; algo.Never is
// null.
func AppendSeconds(b []byte, us int64) []byte {
	if us == algo.Never {
		return append(b, "null"...)
	}
	b = strconv.AppendInt(b, us/1e6, 10)
	frac := us % 1e6
	if frac == 0 {
		return b
	}
	digits := [7]byte{'.'}
	for i := 6; i > 0; i-- {
		digits[i] = byte('0' + frac%10)
		frac /= 10
	}
	end := len(digits)
	for digits[end-1] == '0' {
		end--
	}
	return append(b, digits[:end]...)
}

// AppendJSON appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendJSON(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || n > 1 {
				i += n - 1
				continue
			}
			b = append(append(b, s[from:i]...), "\uFFFD"...)
		case c == '"' || c == '\\':
			b = append(append(b, s[from:i]...), '\\', c)
		case c < ' ':
			b = append(append(b, s[from:i]...), '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			continue
		}
		from = i + 1
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}

// CeilSeconds turns µs into whole seconds, rounded up.
func CeilSeconds(µs int64) int64 { return µs/1e6 + min(µs%1e6, 1) }
