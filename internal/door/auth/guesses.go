package auth

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/util/clientip"
	"github.com/weir-rl/weir/internal/util/sparselog"
)

// Bounds of guessing.
const (
	guessesPerMinute = 10 // from one address, or one IPv6 /64
	maxGuessers      = 10_000
)

var guessLimit = func() *algo.Limit {
	l, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: guessesPerMinute, Window: time.Minute})
	if err != nil {
		panic(err)
	}
	return l
}()

// guesses counts wrong tokens by the address of their sender. The zero value has seen none. Safe
// for concurrent use.
type guesses struct {
	wrong, tooMany atomic.Uint64
	told           sparselog.Line
	known          atomic.Int64 // len(mu.states), to be read without the lock

	mu struct {
		sync.Mutex
		states map[netip.Addr]algo.State
		swept  int64 // when all of them were last looked at
	}
}

// judge returns the verdict on a token. After too many wrong ones it does not depend on valid.
func (g *guesses) judge(from netip.Addr, valid bool) Verdict {
	if valid && g.known.Load() == 0 {
		return Right
	}
	from = clientip.Network(from)
	now := time.Now().UnixMicro()
	g.mu.Lock()
	defer g.mu.Unlock()
	s, known := g.mu.states[from]
	if known {
		if r := guessLimit.Take(&s, now, algo.Ask{}); r.Remaining == 0 {
			g.tooMany.Add(1)
			return TooMany
		}
	}
	if valid {
		return Right
	}
	g.wrong.Add(1)
	guessLimit.Take(&s, now, algo.Ask{Cost: 1})
	if !known {
		g.makeRoom(now)
	}
	g.mu.states[from] = s
	g.known.Store(int64(len(g.mu.states)))
	return Wrong
}

// makeRoom makes room for one more address. At most once a second it looks at all addresses, and
// forgets those whose guesses are all forgiven; if that frees none, it forgets any one. It needs
// mu.
func (g *guesses) makeRoom(now int64) {
	if g.mu.states == nil {
		g.mu.states = map[netip.Addr]algo.State{}
	}
	if len(g.mu.states) < maxGuessers {
		return
	}
	if now-g.mu.swept < 1_000_000 {
		g.forgetOne()
		return
	}
	g.mu.swept = now
	for from, s := range g.mu.states {
		if guessLimit.Take(&s, now, algo.Ask{}).ResetAfter == 0 {
			delete(g.mu.states, from)
		}
	}
	if len(g.mu.states) >= maxGuessers {
		g.forgetOne()
	}
}

// forgetOne forgets the address that the map happens to begin with. It needs mu.
func (g *guesses) forgetOne() {
	for from := range g.mu.states {
		delete(g.mu.states, from)
		return
	}
}
