package fleet

import (
	"context"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/redis/rueidis"
)

// RedisBoard is the Board of nodes that share a Redis. Its values are compressed.
type RedisBoard struct {
	client func() (rueidis.Client, error)
	prefix string
	in     *zstd.Decoder
	out    *zstd.Encoder
}

var _ Board = (*RedisBoard)(nil)

// boardFormat is the version of the values; it is part of every key.
const boardFormat = "1"

// NewRedisBoard returns the board whose keys begin with prefix. client returns the connection to
// use, or an error that says why there is none; the connection remains the caller's.
func NewRedisBoard(client func() (rueidis.Client, error), prefix string) (*RedisBoard, error) {
	b := &RedisBoard{client: client, prefix: prefix + boardFormat + "fleet:"}
	var err error
	if b.in, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(4*mostBoard)); err != nil {
		return nil, err
	}
	b.out, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	return b, err
}

// Get implements Board.
func (b *RedisBoard) Get(ctx context.Context, key string) ([]byte, error) {
	c, err := b.client()
	if err != nil {
		return nil, err
	}
	packed, err := c.Do(ctx, c.B().Get().Key(b.prefix+key).Build()).AsBytes()
	if rueidis.IsRedisNil(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return b.in.DecodeAll(packed, nil)
}

// Set implements Board.
func (b *RedisBoard) Set(ctx context.Context, key string, value []byte, ttl time.Duration, once bool) error {
	c, err := b.client()
	if err != nil {
		return err
	}
	set := c.B().Set().Key(b.prefix + key).Value(rueidis.BinaryString(b.out.EncodeAll(value, nil)))
	build := set.PxMilliseconds(ttl.Milliseconds()).Build
	if once {
		build = set.Nx().PxMilliseconds(ttl.Milliseconds()).Build
	}
	if err := c.Do(ctx, build()).Error(); err != nil && !rueidis.IsRedisNil(err) {
		return err
	}
	return nil
}
