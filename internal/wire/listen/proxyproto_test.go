package listen

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pires/go-proxyproto"
)

// v2 makes a header of version 2. tlvs follow the addresses; a checksum among them is filled in.
func v2(command, family byte, addresses []byte, tlvs ...[]byte) string {
	b := append([]byte(signature2), command, family, 0, 0)
	b = append(b, addresses...)
	sum := 0
	for _, v := range tlvs {
		if v[0] == typeCRC32C && len(v) == 7 {
			sum = len(b) + 3
		}
		b = append(b, v...)
	}
	binary.BigEndian.PutUint16(b[14:], uint16(len(b)-fixed2))
	if sum > 0 {
		binary.BigEndian.PutUint32(b[sum:], crc32.Checksum(b, castagnoli))
	}
	return string(b)
}

func tlv(kind byte, value string) []byte {
	b := binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(value)))
	return append(b, value...)
}

var (
	four = []byte{192, 0, 2, 7, 203, 0, 113, 1, 0x1f, 0x90, 0x01, 0xbb}
	six  = func() []byte {
		a, b := netip.MustParseAddr("2001:db8::7").As16(), netip.MustParseAddr("2001:db8::1").As16()
		return append(append(a[:], b[:]...), 0x1f, 0x90, 0x01, 0xbb)
	}()
	socket = append([]byte("127.0.0.1:1"), make([]byte, 205)...)
	crc    = tlv(typeCRC32C, "\x00\x00\x00\x00")
)

func flip(s string, i int) string { return s[:i] + string(s[i]^1) + s[i+1:] }

// TestHeaders: each header gives the source that it should, whether it comes at once or byte by
// byte, and takes none of the bytes behind it.
func TestHeaders(t *testing.T) {
	const peer, bad = "", "error"
	summed := v2(0x21, 0x11, four, tlv(0x01, "h2"), crc, tlv(0x05, "id"))
	for _, c := range []struct{ name, header, want string }{
		{"TCP4", "PROXY TCP4 192.0.2.7 203.0.113.1 8080 443\r\n", "192.0.2.7:8080"},
		{"TCP6", "PROXY TCP6 2001:db8::7 2001:db8::1 8080 443\r\n", "[2001:db8::7]:8080"},
		{"TCP6, mapped", "PROXY TCP6 ::ffff:192.0.2.7 ::1 0 65535\r\n", "192.0.2.7:0"},
		{"UNKNOWN", "PROXY UNKNOWN\r\n", peer},
		{"UNKNOWN with anything", "PROXY UNKNOWN ffff:: 127.0.0.1 x 99999\r\n", peer},
		{"UNKNOWN, as long as it may be", "PROXY UNKNOWN " + strings.Repeat("x", 91) + "\r\n", peer},
		{"UNKNOWN, too long", "PROXY UNKNOWN " + strings.Repeat("x", 92) + "\r\n", bad},
		{"no end", "PROXY TCP4 " + strings.Repeat("1", 1<<20), bad},
		{"another word", "PROXY UNKNOWNS\r\n", bad},
		{"small letters", "proxy TCP4 192.0.2.7 203.0.113.1 8080 443\r\n", bad},
		{"two spaces", "PROXY TCP4  192.0.2.7 203.0.113.1 8080 443\r\n", bad},
		{"a space at the end", "PROXY TCP4 192.0.2.7 203.0.113.1 8080 443 \r\n", bad},
		{"a field too few", "PROXY TCP4 192.0.2.7 203.0.113.1 8080\r\n", bad},
		{"no CR", "PROXY TCP4 192.0.2.7 203.0.113.1 8080 443\n", bad},
		{"a CR within", "PROXY TCP4 192.0.2.7 203.0.113.1 8080\r443\r\n", bad},
		{"a zero in front", "PROXY TCP4 192.0.2.7 203.0.113.1 08080 443\r\n", bad},
		{"a sign", "PROXY TCP4 192.0.2.7 203.0.113.1 +8080 443\r\n", bad},
		{"a large port", "PROXY TCP4 192.0.2.7 203.0.113.1 65536 443\r\n", bad},
		{"a zero in an address", "PROXY TCP4 192.0.02.7 203.0.113.1 8080 443\r\n", bad},
		{"a zone", "PROXY TCP6 fe80::7%eth0 ::1 8080 443\r\n", bad},
		{"IPv6 as TCP4", "PROXY TCP4 2001:db8::7 ::1 8080 443\r\n", bad},
		{"IPv4 as TCP6", "PROXY TCP6 192.0.2.7 203.0.113.1 8080 443\r\n", bad},
		{"UDP4 in version 1", "PROXY UDP4 192.0.2.7 203.0.113.1 8080 443\r\n", bad},
		{"HTTP", "GET / HTTP/1.1\r\n\r\n", bad},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", bad},
		{"nothing", "", bad},
		{"half a signature", signature2[:7], bad},

		{"version 2, TCP over IPv4", v2(0x21, 0x11, four), "192.0.2.7:8080"},
		{"version 2, UDP over IPv4", v2(0x21, 0x12, four), "192.0.2.7:8080"},
		{"version 2, TCP over IPv6", v2(0x21, 0x21, six), "[2001:db8::7]:8080"},
		{"version 2, UDP over IPv6", v2(0x21, 0x22, six), "[2001:db8::7]:8080"},
		{"version 2, unix", v2(0x21, 0x31, socket), peer},
		{"version 2, unspecified", v2(0x21, 0x00, nil), peer},
		{"version 2, unspecified, with bytes to skip", v2(0x21, 0x00, []byte("12345")), peer},
		{"LOCAL", v2(0x20, 0x00, nil), peer},
		{"LOCAL with addresses", v2(0x20, 0x11, four), peer},
		{"LOCAL with bytes that are none", v2(0x20, 0x11, []byte("123")), peer},
		{"values", v2(0x21, 0x11, four, tlv(0x01, "h2"), tlv(0x02, "example.com"), tlv(0x04, ""), tlv(0x20, "\x07\x00\x00\x00\x00"), tlv(0xee, "x")), "192.0.2.7:8080"},
		{"as long as it may be", v2(0x21, 0x11, four, tlv(0x20, strings.Repeat("x", 65_520))), "192.0.2.7:8080"},
		{"a checksum", summed, "192.0.2.7:8080"},
		{"a checksum, another address", flip(summed, 19), bad},
		{"a checksum, another value", flip(summed, len(summed)-1), bad},
		{"a checksum, another command", flip(summed, 12), peer}, // LOCAL: all of it is skipped
		{"a wrong checksum", flip(summed, len(summed)-7), bad},
		{"a checksum of two bytes", v2(0x21, 0x11, four, tlv(typeCRC32C, "xx")), bad},
		{"a value beyond the end", v2(0x21, 0x11, four, []byte{1, 0, 3, 'h', '2'}), bad},
		{"a value cut short", v2(0x21, 0x11, four, []byte{1, 0}), bad},
		{"too short for its addresses", v2(0x21, 0x11, four[:11]), bad},
		{"too short for IPv6", v2(0x21, 0x21, six[:35]), bad},
		{"too short for unix", v2(0x21, 0x31, socket[:215]), bad},
		{"version 1 in binary", v2(0x11, 0x11, four), bad},
		{"version 3", v2(0x31, 0x11, four), bad},
		{"command 2", v2(0x22, 0x11, four), bad},
		{"no transport that is known", v2(0x21, 0x13, four), bad},
		{"no transport that is known, LOCAL", v2(0x20, 0x13, four), bad},
		{"no family that is known", v2(0x21, 0x41, four), bad},
		{"cut short", v2(0x21, 0x11, four)[:20], bad},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, whole := range []bool{true, false} {
				const after = "GET / HTTP/1.1\r\n"
				data := c.header
				if c.want != bad {
					data += after
				}
				r := io.Reader(strings.NewReader(data))
				if !whole {
					r = iotest.OneByteReader(r)
				}
				h, rest, err := readHeader(r)
				got := peer
				if err != nil {
					got = bad
				} else {
					if h.source.IsValid() {
						got = h.source.String()
					}
					more, _ := io.ReadAll(r)
					if left := string(rest) + string(more); left != after {
						t.Errorf("%.60q is left", left)
					}
				}
				if got != c.want {
					t.Errorf("got %q %v, want %q", got, err, c.want)
				}
			}
		})
	}
}

// FuzzHeader: no bytes make the parser panic, take more than the header, or say other than the
// library of the field where that takes a header too.
func FuzzHeader(f *testing.F) {
	for _, s := range []string{
		"PROXY TCP4 192.0.2.7 203.0.113.1 8080 443\r\nx", "PROXY TCP6 ::ffff:192.0.2.7 ::1 0 65535\r\n", "PROXY UNKNOWN x\r\n", "PROXY \r\n",
		v2(0x21, 0x11, four), v2(0x21, 0x21, six, tlv(1, "h2"), crc), v2(0x20, 0x00, nil), v2(0x21, 0x31, socket),
		v2(0x21, 0x12, four) + "rest", signature2,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		n, h, err := parseHeader(data)
		if err != nil {
			return
		}
		if n > len(data) {
			if n > fixed2+1<<16 || n < len(data) {
				t.Fatalf("wants %d bytes after %d", n, len(data))
			}
			for i := range data { // a part of a part is not enough either
				if m, _, err := parseHeader(data[:i]); err != nil || m <= i {
					t.Fatalf("%d bytes: %d %v; %d bytes: %d", len(data), n, nil, i, m)
				}
			}
			return
		}
		for i := range n {
			if m, _, err := parseHeader(data[:i]); err == nil && m <= i {
				t.Fatalf("a header of %d bytes is complete after %d", n, i)
			}
		}
		theirs, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(data), 1<<17))
		if err != nil {
			// it refuses more: headers in several parts, addresses of no family, more than 4 KiB
			return
		}
		var want netip.AddrPort
		if !theirs.Command.IsLocal() {
			switch a := theirs.SourceAddr.(type) {
			case *net.TCPAddr:
				want = a.AddrPort()
			case *net.UDPAddr:
				want = a.AddrPort()
			}
		}
		if want.IsValid() {
			want = netip.AddrPortFrom(want.Addr().Unmap(), want.Port())
		}
		if h.source != want {
			t.Fatalf("%q: %v, want %v", data, h.source, want)
		}
	})
}
