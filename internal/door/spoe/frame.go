package spoe

import (
	"encoding/binary"
	"fmt"
)

// The types of frames.
const (
	frameUnset             = 0 // goes on with a frame that was sent in pieces
	frameHAProxyHello      = 1
	frameHAProxyDisconnect = 2
	frameNotify            = 3
	frameAgentHello        = 101
	frameAgentDisconnect   = 102
	frameAck               = 103
)

// The flags of a frame.
const (
	flagFin   = 1 << 0 // the last piece, or the only one
	flagAbort = 1 << 1 // HAProxy does not want an answer any more
)

// Sizes of frames, in bytes, without the four of the length in front.
const (
	minFrame      = 7   // type, flags and two ids
	minFrameLimit = 256 // the smallest bound that the protocol lets a side name
	maxFrameLimit = 1 << 20
	// HAProxy's own bound is its tune.bufsize less 4: 16,380 by default. A request that does not
	// fit into ours passes unasked, so that ours is to be above what others set.
	defaultFrame = 64 << 10
	helloFrame   = 4096 // of the first frame of a connection, which is known to be short
)

// frame is one frame. Its texts are views of the buffer that it was read from.
type frame struct {
	kind    byte
	flags   uint32
	stream  uint64
	id      uint64
	payload string
}

// parseFrame reads a frame without its length.
func parseFrame(s string) (f frame, ok bool) {
	if len(s) < minFrame {
		return f, false
	}
	f.kind = s[0]
	f.flags = uint32(s[1])<<24 | uint32(s[2])<<16 | uint32(s[3])<<8 | uint32(s[4])
	s = s[5:]
	var n int
	if f.stream, n = varintAt(s); n == 0 {
		return f, false
	}
	s = s[n:]
	if f.id, n = varintAt(s); n == 0 {
		return f, false
	}
	f.payload = s[n:]
	return f, true
}

// beginFrame appends the head of a frame, with room for its length; endFrame writes that.
func beginFrame(b []byte, kind byte, stream, id uint64) []byte {
	b = append(b, 0, 0, 0, 0, kind, 0, 0, 0, flagFin)
	return appendVarint(appendVarint(b, stream), id)
}

// endFrame ends the frame that begins at start.
func endFrame(b []byte, start int) []byte {
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

// status is why a connection ends.
type status uint32

const (
	statusNormal        status = 0
	statusTimeout       status = 2
	statusTooBig        status = 3
	statusInvalid       status = 4
	statusNoVersion     status = 5
	statusNoFrameSize   status = 6
	statusNoCapability  status = 7
	statusBadVersion    status = 8
	statusBadFrameSize  status = 9
	statusFragmentation status = 10
)

// statusOK stands for no reason to end.
const statusOK = ^status(0)

func (s status) String() string {
	switch s {
	case statusNormal:
		return "normal"
	case 1:
		return "I/O error"
	case statusTimeout:
		return "a timeout occurred"
	case statusTooBig:
		return "frame is too big"
	case statusInvalid:
		return "invalid frame received"
	case statusNoVersion:
		return "version value not found"
	case statusNoFrameSize:
		return "max-frame-size value not found"
	case statusNoCapability:
		return "capabilities value not found"
	case statusBadVersion:
		return "unsupported version"
	case statusBadFrameSize:
		return "max-frame-size too big or too small"
	case statusFragmentation:
		return "payload fragmentation is not supported"
	case 11:
		return "invalid interlaced frames"
	case 12:
		return "frame-id not found"
	case 13:
		return "resource allocation error"
	case 99:
		return "an unknown error occurred"
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// appendDisconnect appends an AGENT-DISCONNECT.
func appendDisconnect(b []byte, s status) []byte {
	start := len(b)
	b = beginFrame(b, frameAgentDisconnect, 0, 0)
	b = appendVarint(append(appendText(b, "status-code"), typeUint32), uint64(s))
	b = appendText(append(appendText(b, "message"), typeString), s.String())
	return endFrame(b, start)
}

// appendText appends a string with its length.
func appendText[T string | []byte](b []byte, s T) []byte {
	return append(appendVarint(b, uint64(len(s))), s...)
}
