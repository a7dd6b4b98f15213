package h2

import "encoding/binary"

// Frame types.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	framePriority     = 0x2
	frameReset        = 0x3
	frameSettings     = 0x4
	framePushPromise  = 0x5
	framePing         = 0x6
	frameGoAway       = 0x7
	frameWindowUpdate = 0x8
	frameContinuation = 0x9
)

// Flags.
const (
	flagEndStream  = 0x1 // of DATA and HEADERS
	flagAck        = 0x1 // of SETTINGS and PING
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// Settings.
const (
	settingHeaderTableSize   = 0x1
	settingEnablePush        = 0x2
	settingMaxStreams        = 0x3
	settingInitialWindow     = 0x4
	settingMaxFrameSize      = 0x5
	settingMaxHeaderListSize = 0x6
)

const (
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

	frameHeaderLen = 9
	// maxFrame is the largest frame received and sent: the size that every peer must accept.
	maxFrame = 16 << 10
	// maxWindow is the largest a window may grow.
	maxWindow = 1<<31 - 1
	// defaultWindow is the initial size of a window.
	defaultWindow = 65_535
	// connWindow is how many bytes a peer may send ahead on a connection.
	connWindow = 1 << 20
)

func appendFrameHeader(b []byte, length int, kind, flags byte, id uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags,
		byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

func appendReset(b []byte, id uint32, code errorCode) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, frameReset, 0, id), uint32(code))
}

func appendWindowUpdate(b []byte, id uint32, n int) []byte {
	return binary.BigEndian.AppendUint32(appendFrameHeader(b, 4, frameWindowUpdate, 0, id), uint32(n))
}

func appendGoAway(b []byte, last uint32, code errorCode, reason string) []byte {
	b = appendFrameHeader(b, 8+len(reason), frameGoAway, 0, 0)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, reason...)
}

func appendPing(b []byte, flags byte, payload []byte) []byte {
	return append(appendFrameHeader(b, 8, framePing, flags, 0), payload...)
}

func appendSetting(b []byte, setting uint16, value int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, setting), uint32(value))
}

// appendHeaders appends a header block in as many frames as it needs.
func appendHeaders(b []byte, id uint32, block []byte, end bool) []byte {
	kind, flags := byte(frameHeaders), byte(0)
	if end {
		flags = flagEndStream
	}
	for len(block) > maxFrame {
		b = append(appendFrameHeader(b, maxFrame, kind, flags, id), block[:maxFrame]...)
		block = block[maxFrame:]
		kind, flags = frameContinuation, 0
	}
	return append(appendFrameHeader(b, len(block), kind, flags|flagEndHeaders, id), block...)
}

// unpad cuts the padding off the payload of a frame.
func unpad(flags byte, p []byte) ([]byte, bool) {
	if flags&flagPadded == 0 {
		return p, true
	}
	if len(p) == 0 || int(p[0]) >= len(p) {
		return nil, false
	}
	return p[1 : len(p)-int(p[0])], true
}

// appendField appends a header field as a literal that leaves the dynamic table as it is. The name
// is in lower case.
func appendField(b []byte, name, value string) []byte {
	b = appendInt(append(b, 0, 0), 7, len(name))
	b = append(b, name...)
	b = appendInt(append(b, 0), 7, len(value))
	return append(b, value...)
}

// appendInt writes n as an HPACK integer into the free bits of the last byte of b.
func appendInt(b []byte, bits, n int) []byte {
	limit := 1<<bits - 1
	if n < limit {
		b[len(b)-1] |= byte(n)
		return b
	}
	b[len(b)-1] |= byte(limit)
	for n -= limit; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// appendStatus appends :status.
func appendStatus(b []byte, status int) []byte {
	switch status {
	case 200:
		return append(b, 0x80|8)
	case 204:
		return append(b, 0x80|9)
	case 400:
		return append(b, 0x80|12)
	case 404:
		return append(b, 0x80|13)
	}
	return append(b, 0x08, 3, byte('0'+status/100), byte('0'+status/10%10), byte('0'+status%10))
}
