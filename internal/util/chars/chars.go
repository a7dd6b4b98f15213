// Package chars classifies characters of protocols, and escapes those that a protocol cannot hold.
package chars

import (
	"strings"
	"unsafe"
)

// View returns b as a string without copying it. The string is valid for as long as b is not
// changed.
func View(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// IsToken reports whether s is a token of RFC 9110: a method, or the name of a header or a cookie.
func IsToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

// IsHex reports whether c is a hexadecimal digit.
func IsHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// HexDigit returns the value of a hexadecimal digit.
func HexDigit(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c&^0x20 - 'A' + 10
}

// GRPCMessage returns s as the field grpc-message has it: percent-encoding of all but the printable
// characters of ASCII (the protocol of gRPC over HTTP/2, "Responses").
func GRPCMessage(s string) string {
	plain := func(b byte) bool { return b >= ' ' && b <= '~' && b != '%' }
	i := 0
	for i < len(s) && plain(s[i]) {
		i++
	}
	if i == len(s) {
		return s
	}
	const digits = "0123456789ABCDEF"
	var out strings.Builder
	for _, b := range []byte(s) {
		if plain(b) {
			out.WriteByte(b)
		} else {
			out.Write([]byte{'%', digits[b>>4], digits[b&15]})
		}
	}
	return out.String()
}
