package nodes

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/redis/rueidis"
)

// format is the version of questions and answers. It is part of the channel and of all keys, so
// that nodes of another format do not hear these questions.
const format = "1"

const maxName = 160

// question is a message on the channel.
type question struct {
	ID    string          `json:"id"` // names the list of answers
	Node  string          `json:"node"`
	Kind  string          `json:"kind"`
	Args  json.RawMessage `json:"args,omitempty"`
	Until int64           `json:"until"` // µs by Redis' clock: then the wait ends
}

// text encodes the question.
func (q *question) text() (string, error) {
	text, err := json.Marshal(q)
	if err != nil {
		return "", fmt.Errorf("nodes: %w", err)
	}
	if len(text) > MaxQuestion {
		return "", errTooLong
	}
	return string(text), nil
}

// codec writes and reads answers: the format's version, the length of the node's name, the name,
// and the answer, compressed. Safe for concurrent use.
type codec struct {
	in  *zstd.Decoder
	out *zstd.Encoder
}

func newCodec() (c codec, err error) {
	if c.in, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxPlain)); err != nil {
		return c, err
	}
	c.out, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderLevel(zstd.SpeedDefault))
	return c, err
}

var (
	errAnswerTooLong = errors.New("nodes: the answer is too long")
	errNoAnswer      = errors.New("nodes: this is no answer")
)

func (c codec) pack(name string, data []byte) ([]byte, error) {
	if len(data) > MaxPlain {
		return nil, errAnswerTooLong
	}
	b := append([]byte{format[0], byte(len(name))}, name...)
	if b = c.out.EncodeAll(data, b); len(b) > MaxAnswer {
		return nil, errAnswerTooLong
	}
	return b, nil
}

func (c codec) unpack(text string) (name string, data []byte, err error) {
	if len(text) < 2 || len(text) > MaxAnswer || text[0] != format[0] || text[1] == 0 || text[1] > maxName ||
		len(text) < 2+int(text[1]) {
		return "", nil, errNoAnswer
	}
	name, text = text[2:2+text[1]], text[2+text[1]:]
	if data, err = c.in.DecodeAll([]byte(text), nil); err == nil && len(data) > MaxPlain {
		err = errAnswerTooLong
	}
	return name, data, err
}

// clock is Redis' clock minus this node's, in µs, by the last reply to TIME.
type clock struct {
	offset atomic.Int64
	known  atomic.Bool
}

// Now returns the time by Redis' clock as far as this node knows it, and by its own clock until it
// has asked.
func (n *Nodes) Now() time.Time { return time.UnixMicro(n.now()) }

// now estimates Redis' clock, in µs since the Unix epoch.
func (n *Nodes) now() int64 {
	if !n.clock.known.Load() {
		return time.Now().UnixMicro()
	}
	return time.Since(n.begun).Microseconds() + n.clock.offset.Load()
}

// noteTime notes the reply to a TIME that was sent at an instant of this node.
func (n *Nodes) noteTime(r rueidis.RedisResult, sent time.Time) {
	parts, err := r.AsIntSlice()
	if err != nil || len(parts) != 2 {
		return
	}
	middle := sent.Add(time.Since(sent) / 2)
	n.clock.offset.Store(parts[0]*1_000_000 + parts[1] - middle.Sub(n.begun).Microseconds())
	n.clock.known.Store(true)
}
