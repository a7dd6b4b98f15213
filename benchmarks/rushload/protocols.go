package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// keys is how many are asked for.
const keys = 10_000

func appendKey(dst []byte, number int) []byte {
	return strconv.AppendInt(append(dst, "key-"...), int64(100_000+number*7919%keys), 10)
}

// resp asks WEIR.LIMIT.
type resp struct{ next int }

func (*resp) hello() []byte { return nil }
func (*resp) most() int     { return ring - 1 }

func (*resp) request(dst []byte, number int) []byte {
	dst = append(dst, "*5\r\n$10\r\nWEIR.LIMIT\r\n$4\r\nrush\r\n$1\r\n1\r\n$4\r\nuser\r\n$10\r\n"...)
	return append(appendKey(dst, number), "\r\n"...)
}

func (p *resp) answers(b []byte, done func(int, bool)) (taken int, back []byte, err error) {
	for {
		// *6, five numbers and an empty array; or an error
		rest := b[taken:]
		lines := 7
		if len(rest) > 0 && rest[0] == '-' {
			lines = 1
		} else if len(rest) > 0 && rest[0] != '*' {
			return taken, nil, errors.New("no answer of WEIR.LIMIT")
		}
		n := 0
		for range lines {
			at := bytes.IndexByte(rest[n:], '\n')
			if at < 0 {
				return taken, nil, nil
			}
			n += at + 1
		}
		done(p.next, lines > 1)
		p.next++
		taken += n
	}
}

// http1 asks the decision API.
type http1 struct{ next int }

func (*http1) hello() []byte { return nil }
func (*http1) most() int     { return 1 }

func (*http1) request(dst []byte, number int) []byte {
	dst = append(dst,
		"POST /api/v1/limit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 52\r\n\r\n"+
			`{"domain":"rush","attributes":{"user":"`...)
	return append(appendKey(dst, number), `"}}`...)
}

func (p *http1) answers(b []byte, done func(int, bool)) (taken int, back []byte, err error) {
	for {
		rest := b[taken:]
		head := bytes.Index(rest, []byte("\r\n\r\n"))
		if head < 0 {
			return taken, nil, nil
		}
		_, length, ok := bytes.Cut(rest[:head], []byte("Content-Length: "))
		if !ok {
			return taken, nil, errors.New("an answer without a length")
		}
		line, _, _ := bytes.Cut(length, []byte("\r"))
		n, err := strconv.Atoi(string(line))
		if err != nil {
			return taken, nil, err
		}
		if len(rest) < head+4+n {
			return taken, nil, nil
		}
		done(p.next, bytes.HasPrefix(rest, []byte("HTTP/1.1 200")))
		p.next++
		taken += head + 4 + n
	}
}

// rls asks ShouldRateLimit.
type rls struct {
	first, later []byte     // headers
	ok           [ring]bool // by request: answered with OK, but not yet whole
}

func newRLS() protocol {
	p := &rls{}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, to := range []*[]byte{&p.first, &p.later} {
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"},
			{":path", rlspb.RateLimitService_ShouldRateLimit_FullMethodName},
			{":authority", "weir"}, {"content-type", "application/grpc"}, {"te", "trailers"}, {"grpc-timeout", "20m"}} {
			_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		*to = bytes.Clone(block.Bytes())
	}
	return p
}

func (*rls) hello() []byte {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&b, nil)
	_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = f.WriteWindowUpdate(0, 1<<30)
	return b.Bytes()
}

func (*rls) most() int { return 1024 }

func (p *rls) request(dst []byte, number int) []byte {
	block := p.later
	if number == 0 {
		block = p.first
	}
	id := uint32(2*number + 1)
	dst = append(dst, byte(len(block)>>16), byte(len(block)>>8), byte(len(block)), byte(http2.FrameHeaders),
		byte(http2.FlagHeadersEndHeaders))
	dst = binary.BigEndian.AppendUint32(dst, id)
	dst = append(dst, block...)
	// domain, and one descriptor of one entry
	const size = 5 + 6 + 2 + 2 + 6 + 12
	dst = append(dst, 0, 0, size, byte(http2.FrameData), byte(http2.FlagDataEndStream))
	dst = binary.BigEndian.AppendUint32(dst, id)
	dst = append(dst, 0, 0, 0, 0, size-5)
	dst = append(dst, "\x0a\x04rush\x12\x14\x0a\x12\x0a\x04user\x12\x0a"...)
	return appendKey(dst, number)
}

func (p *rls) answers(b []byte, done func(int, bool)) (taken int, back []byte, err error) {
	for {
		rest := b[taken:]
		if len(rest) < 9 {
			return taken, back, nil
		}
		n := int(rest[0])<<16 | int(rest[1])<<8 | int(rest[2])
		if len(rest) < 9+n {
			return taken, back, nil
		}
		id := binary.BigEndian.Uint32(rest[5:])
		body, flags := rest[9:9+n], rest[4]
		switch http2.FrameType(rest[3]) {
		case http2.FrameData:
			if len(body) >= 7 && body[6] == 1 { // overall_code: OK
				p.ok[id/2%ring] = true
			}
		case http2.FrameHeaders:
			if flags&byte(http2.FlagHeadersEndStream) != 0 {
				ok := &p.ok[id/2%ring]
				done(int(id/2), *ok)
				*ok = false
			}
		case http2.FrameSettings:
			if flags&1 == 0 {
				back = append(back, 0, 0, 0, byte(http2.FrameSettings), 1, 0, 0, 0, 0)
			}
		case http2.FramePing:
			if flags&1 == 0 {
				back = append(append(back, 0, 0, 8, byte(http2.FramePing), 1, 0, 0, 0, 0), body...)
			}
		case http2.FrameRSTStream, http2.FrameGoAway:
			return taken, back, fmt.Errorf("a frame of type %d", rest[3])
		}
		taken += 9 + n
	}
}
