package listen

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/internal/util/clientip"
)

// header is a PROXY protocol header, as HAProxy's proxy-protocol.txt describes it.
type header struct {
	// the zero value if the peer of the connection is itself the client (LOCAL, UNKNOWN, unix
	// sockets)
	source netip.AddrPort
}

const (
	signature1 = "PROXY "
	signature2 = "\r\n\r\n\x00\r\nQUIT\n"
	maxHeader1 = 107 // bytes of a header of version 1, the end of its line included
	fixed2     = 16  // bytes of a header of version 2 before its addresses
)

var errNoHeader = errors.New("no PROXY protocol header")

// readHeader reads the header at the beginning of r, in as many reads as it takes. rest holds the
// bytes read beyond its end. An unknown version, and a header that breaks its version's format in
// any way, is an error.
func readHeader(r io.Reader) (h header, rest []byte, err error) {
	b := make([]byte, 0, 256) // most headers
	for {
		n, h, err := parseHeader(b)
		switch {
		case err != nil:
			return header{}, nil, err
		case n <= len(b):
			return h, bytes.Clone(b[n:]), nil
		}
		// b grows with the bytes received, not with the length announced.
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(n, 2*cap(b))), b...)
		}
		read, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+read]
		if read == 0 && err != nil {
			return header{}, nil, fmt.Errorf("PROXY protocol header cut short: %w", err)
		}
	}
}

// parseHeader parses the header at the beginning of b. n is its length; if that is above len(b)
// more is needed, at least up to n.
func parseHeader(b []byte) (n int, h header, err error) {
	switch {
	case hasPrefix(b, signature1):
		return parseHeader1(b)
	case hasPrefix(b, signature2):
		return parseHeader2(b)
	}
	return 0, header{}, errNoHeader
}

// hasPrefix reports whether b begins with prefix, as far as it goes.
func hasPrefix(b []byte, prefix string) bool {
	n := min(len(b), len(prefix))
	return string(b[:n]) == prefix[:n]
}

// parseHeader1 parses PROXY TCP4|TCP6 SOURCE DESTINATION PORT PORT, or PROXY UNKNOWN and anything,
// with CR and LF.
func parseHeader1(b []byte) (int, header, error) {
	line := b[:min(len(b), maxHeader1)]
	end := bytes.IndexByte(line, '\n')
	if end < 0 {
		if len(line) == maxHeader1 {
			return 0, header{}, fmt.Errorf("PROXY protocol header of more than %d bytes", maxHeader1)
		}
		return len(b) + 1, header{}, nil
	}
	n := end + 1
	text, ok := strings.CutSuffix(string(line[:end]), "\r")
	if !ok || strings.IndexByte(text, '\r') >= 0 {
		return 0, header{}, errors.New("PROXY protocol header that does not end with CR and LF")
	}
	if text == "PROXY UNKNOWN" || strings.HasPrefix(text, "PROXY UNKNOWN ") {
		return n, header{}, nil
	}
	fields := strings.Split(text, " ")
	if len(fields) != 6 || fields[1] != "TCP4" && fields[1] != "TCP6" {
		return 0, header{}, errors.New(
			"PROXY protocol header that is not PROXY TCP4 or TCP6, two addresses and two ports")
	}
	var ports [2]uint16
	var addresses [2]netip.Addr
	for i := range 2 {
		a, err := netip.ParseAddr(fields[2+i])
		if err != nil || a.Zone() != "" || a.Is4() != (fields[1] == "TCP4") {
			return 0, header{}, fmt.Errorf("PROXY protocol header: %.50q is no address of %s", fields[2+i], fields[1])
		}
		port, err := strconv.ParseUint(fields[4+i], 10, 16)
		if err != nil || strconv.FormatUint(port, 10) != fields[4+i] {
			return 0, header{}, fmt.Errorf("PROXY protocol header: %.50q is no port", fields[4+i])
		}
		addresses[i], ports[i] = a, uint16(port)
	}
	return n, header{source: netip.AddrPortFrom(clientip.Addr(addresses[0]), ports[0])}, nil
}

// parseHeader2 parses the binary form.
func parseHeader2(b []byte) (int, header, error) {
	if len(b) < fixed2 {
		return fixed2, header{}, nil
	}
	command, family := b[12], b[13]
	if command != 0x20 && command != 0x21 {
		return 0, header{}, fmt.Errorf("PROXY protocol header of version and command %#02x", command)
	}
	n := fixed2 + int(binary.BigEndian.Uint16(b[14:]))
	least := map[byte]int{0x00: 0, 0x11: 12, 0x12: 12, 0x21: 36, 0x22: 36, 0x31: 216, 0x32: 216}
	addresses, known := least[family]
	if !known {
		return 0, header{}, fmt.Errorf("PROXY protocol header of address family and protocol %#02x", family)
	}
	if command == 0x20 { // LOCAL: whatever follows is to be skipped
		return n, header{}, nil
	}
	if n < fixed2+addresses {
		return 0, header{}, fmt.Errorf("PROXY protocol header of %d bytes, too few for its addresses", n)
	}
	if len(b) < n {
		return n, header{}, nil
	}
	if family != 0x00 {
		if err := checkTLVs(b[:n], fixed2+addresses); err != nil {
			return 0, header{}, err
		}
	}
	a := b[fixed2:]
	switch family >> 4 {
	case 1:
		return n, header{source: netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[:4])),
			binary.BigEndian.Uint16(a[8:]))}, nil
	case 2:
		return n, header{source: netip.AddrPortFrom(clientip.Addr(netip.AddrFrom16([16]byte(a[:16]))),
			binary.BigEndian.Uint16(a[32:]))}, nil
	}
	return n, header{}, nil
}

const typeCRC32C = 0x03

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checkTLVs checks that the bytes of header b after the addresses, from i on, are types, lengths
// and values, and verifies the checksum if there is one.
func checkTLVs(b []byte, i int) error {
	for i < len(b) {
		if len(b)-i < 3 {
			return errors.New("PROXY protocol header that ends within a value")
		}
		kind, value := b[i], i+3
		if i = value + int(binary.BigEndian.Uint16(b[i+1:])); i > len(b) {
			return errors.New("PROXY protocol header with a value beyond its end")
		}
		if kind != typeCRC32C {
			continue
		}
		if i-value != 4 {
			return errors.New("PROXY protocol header with a checksum that is not of 4 bytes")
		}
		// The sum is computed with its own field as 0. A second checksum would be part of the first
		// one's input.
		sum := crc32.Update(0, castagnoli, b[:value])
		sum = crc32.Update(sum, castagnoli, []byte{0, 0, 0, 0})
		if sum = crc32.Update(sum, castagnoli, b[i:]); sum != binary.BigEndian.Uint32(b[value:]) {
			return errors.New("PROXY protocol header with a wrong checksum")
		}
	}
	return nil
}
