package cas

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// A probe compares and writes, as a decision does. It writes some values of this node alone, one
// after the other, so that they lie at several places.
const probed = 8

type probe struct {
	mu       sync.Mutex
	next     int
	versions [probed]uint64 // of the values, as far as is known
}

// PingPart implements store.Parted.
func (s *Store) PingPart(ctx context.Context, _ int) error {
	p := &s.probing
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.next % probed
	p.next++
	now, known := s.Now()
	if !known {
		var err error
		if now, err = s.Time(ctx); err != nil {
			return err
		}
	}
	name := appendName(nil, 0, fmt.Appendf(nil, "probe %x %d", s.versions.author, n))
	key := Key{Place: xxhash.Sum64(name), Name: name}
	// A value that is over is gone, or it is not, and an answer may have been lost.
	for tries := range atOnce {
		c := Change{
			Key: key, Was: p.versions[n], Version: s.versions.draw(), Until: s.until(now, 0),
			Data: endValue(binary.LittleEndian.AppendUint64([]byte{formVersion}, uint64(now))),
		}
		groups := []Group{{Changes: []Change{c}}}
		err := s.ask(ctx, func() (int64, error) { return s.engine.Swap(ctx, 0, groups) })
		if err == nil {
			err = groups[0].Err
		}
		switch g := &groups[0]; {
		case errors.Is(err, ErrBroken) && tries < atOnce-1 && ctx.Err() == nil:
			continue
		case err != nil:
			return s.wrap(err)
		case g.Done:
			p.versions[n] = c.Version
			return nil
		case len(g.Values) != 1:
			return s.wrap(errAnswer)
		default:
			p.versions[n] = g.Values[0].Version
		}
	}
	return s.wrap(errConflict)
}
