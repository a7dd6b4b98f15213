// Package spelling knows what servers take for the same: names of fields and parameters, cookies
// and values that are written in different ways.
package spelling

import (
	"strings"
	"unicode/utf8"
)

// IsOddName reports whether a name has another character than letters, digits and the dash.
func IsOddName(name string) bool {
	for i := range len(name) {
		if oddByte[name[i]] {
			return true
		}
	}
	return false
}

// oddByte holds for all but letters, digits and the dash.
var oddByte = func() (table [256]bool) {
	for i := range table {
		table[i] = bareByte(byte(i)) == '_' && i != '-'
	}
	return table
}()

// Alike reports whether two names of one length are the same apart from case, and from characters
// that servers turn into underscores.
func Alike(a, b string) bool {
	for i := range len(a) {
		if bareByte(a[i]) != bareByte(b[i]) {
			return false
		}
	}
	return true
}

func bareByte(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c - 'A' + 'a'
	case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		return c
	}
	return '_'
}

// IsPadded reports whether a value begins or ends with something that is no blank of HTTP, and that
// some servers take for one, and off: a blank of Latin-1 (wsgiref), or of Unicode.
func IsPadded(value string) bool {
	if value == "" || isASCIIText(value[0]) && isASCIIText(value[len(value)-1]) {
		return false // nearly all
	}
	value = strings.Trim(value, " \t")
	if utf8.ValidString(value) {
		return strings.TrimSpace(value) != value
	}
	return isLatinBlank(value[0]) || isLatinBlank(value[len(value)-1])
}

func isLatinBlank(c byte) bool { return c == 0x85 || c == 0xa0 }

func isASCIIText(c byte) bool { return ' ' < c && c < 0x7f }
