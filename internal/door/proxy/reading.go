package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"

	"github.com/weir-rl/weir/internal/door/proxy/deferred"
)

// mostReading bounds the bytes of the bodies that are read at a time to be deferred.
const mostReading = 64 << 20

// readings counts the bytes of bodies that are being read, to be kept in memory whole, as they
// come. Each address has no more than is left for all others: alone half, the next one half of the
// rest. Clients without an address, over a unix socket, are not told apart. Safe for concurrent
// use.
type readings struct {
	most int

	mu   sync.Mutex
	used int
	of   map[netip.Addr]int
}

// The errors wrap a full queue's, so that they are counted and logged as such.
var (
	errReading      = fmt.Errorf("too many bodies are being read to be deferred: %w", deferred.ErrFull)
	errReadingShare = fmt.Errorf("too many bodies of one address are being read to be deferred: %w", deferred.ErrShare)
)

func newReadings(most int) *readings { return &readings{most: most, of: map[netip.Addr]int{}} }

// take counts n more bytes for an address.
func (r *readings) take(of netip.Addr, n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch free := r.most - r.used; {
	case n > free:
		return errReading
	case of.IsValid() && r.of[of]+n > free:
		return errReadingShare
	}
	r.used += n
	r.of[of] += n
	return nil
}

// giveBack takes n bytes of an address back.
func (r *readings) giveBack(of netip.Addr, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
	if r.of[of] -= n; r.of[of] == 0 {
		delete(r.of, of)
	}
}

// firstReading is how much room is made before anything of a body has come.
const firstReading = 512

// read reads all of a body that an address sends, in room that grows as it comes.
func (r *readings) read(body io.Reader, of netip.Addr) (all []byte, err error) {
	taken := 0
	defer func() { r.giveBack(of, taken) }()
	for {
		if len(all) == taken {
			more := max(firstReading, len(all))
			if err := r.take(of, more); err != nil {
				return nil, err
			}
			taken += more
			all = slices.Grow(all, more)
		}
		n, err := body.Read(all[len(all):taken])
		all = all[:len(all)+n]
		switch {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
	}
}
