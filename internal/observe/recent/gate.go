package recent

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/util/human"
)

// gate decides for which decisions of a kind an entry is made. Of a key that comes again and again
// it takes the first few in each second. Of all other decisions it takes everything up to a budget,
// and past that 1 in 2^j. So a client that floods costs little and displaces no other client's
// decisions, and a flood from many clients costs no more than the budget.
//
// It runs on the deciding path. A decision that it does not take costs a look at one word and,
// unless it is thinned out by chance, a hash of the key and a look into a small table. In a flood
// hardly any decision writes: see draw. The decisions' own clock counts the seconds, so that
// nothing has to tick. The numbers are not read as one: under contention a few decisions may count
// for the neighbouring second.
type gate struct {
	budget uint32

	// now is the second that is under way (its lowest 26 bits), the power j by which it is thinned
	// (6 bits), and about how many decisions have come in it (32 bits): one look reads all three.
	now atomic.Uint64
	_   [48]byte

	unix   atomic.Int64  // the second in full
	taken  atomic.Uint32 // in it
	weight atomic.Uint64 // how many these stand for, without keys past their share
	chance atomic.Int64  // the last second in which chance selected

	// keys are the shares of the keys in this second: 24 bits of the hash, 24 of the second, and 16
	// of the count. A key that finds another key in its place lowers that key's count, and takes
	// the place once the count is 0 (the majority vote of Boyer and Moore, 1981). So a flood holds
	// its place against keys that come once.
	keys [keySlots]atomic.Uint64

	past [pastSeconds]pastSecond
}

const (
	keySlots = 4096
	// perKey is how many decisions on one key are taken in a second.
	perKey = 8
	// pastSeconds is for how many seconds the gate knows how many decisions came and were taken.
	pastSeconds = 300
	// backward is by how many seconds a decision may be late and still count for the present one.
	backward   = 2
	secondBits = 26
	// exactBits is the number of bits up to which a count is exact.
	exactBits = 12
)

type pastSecond struct {
	unix        atomic.Int64
	came, taken atomic.Uint32
}

// draw counts a decision made at an instant in µs, with a random number of its own. It returns the
// power by which this second is thinned, and whether chance selects the decision.
//
// Up to 4,095 decisions are counted one by one. Beyond that one in 2^k is counted as 2^k (Morris
// 1978), where k grows with the count; the standard error is then 1.6 %. Additions of all
// processors to the same word would cost more than the rest of draw.
func (g *gate) draw(at int64, random uint64) (power uint8, ok bool) {
	unix := at / 1e6
	word := g.now.Load()
	if uint32(word>>38) != uint32(unix)&(1<<secondBits-1) {
		word = g.late(word, unix)
	}
	if k := bits.Len32(uint32(word) >> exactBits); random>>32&(1<<(k&31)-1) == 0 {
		g.now.Add(1 << (k & 31))
	}
	power = uint8(word>>32) & 63
	return power, random&(1<<(power&63)-1) == 0
}

// late begins a new second, unless unix is a second that has just ended.
func (g *gate) late(word uint64, unix int64) uint64 {
	if late := int32(uint32(word>>38)-uint32(unix)) << (32 - secondBits) >> (32 - secondBits); late < 0 ||
		late > backward {
		return g.turn(unix)
	}
	return word
}

// turn begins a second.
func (g *gate) turn(unix int64) (word uint64) {
	for {
		old := g.now.Load()
		if uint32(old>>38) == uint32(unix)&(1<<secondBits-1) {
			return old // somebody else was quicker
		}
		power := uint64(0)
		for weight := g.weight.Load(); weight>>power > uint64(g.budget); {
			power++
		}
		word = uint64(unix)<<38 | power<<32
		if !g.now.CompareAndSwap(old, word) {
			continue
		}
		if power > 0 {
			g.chance.Store(unix)
		}
		g.weight.Store(0)
		before, taken := g.unix.Swap(unix), g.taken.Swap(0)
		if came := uint32(old); before != 0 && came > 0 {
			p := &g.past[uint64(before)%pastSeconds]
			p.unix.Store(before)
			p.came.Store(came)
			p.taken.Store(taken)
		}
		return word
	}
}

// share reports whether a key has had less than its share of the present second, and counts the
// decision.
func (g *gate) share(hash uint64) bool {
	s := &g.keys[hash%keySlots]
	const second = 1<<24 - 1
	mine := hash>>40<<40 | g.now.Load()>>38&second<<16
	switch was := s.Load(); {
	case was>>16 == mine>>16:
		if was&0xffff >= perKey {
			return false
		}
		s.CompareAndSwap(was, was+1) // else somebody else has counted
	case (was^mine)>>16&second != 0, was&0xffff == 0:
		s.CompareAndSwap(was, mine|1)
	default:
		s.CompareAndSwap(was, was-1)
	}
	return true
}

// take counts a decision for which an entry is made. It thins more once the budget is used up. It
// thins less if the second turns out to be calmer than the one before, with whose power it began.
func (g *gate) take(power uint8, at int64) {
	g.weight.Add(1 << power)
	n := g.taken.Add(1)
	switch {
	case n >= g.budget && n%max(g.budget/2, 1) == 0 && power < 30:
		g.chance.Store(at / 1e6)
		g.shift(power, 1<<32)
	case power > 0 && int64(n+4)*4e6 < int64(g.budget)*(at%1e6): // 4, since chance may be late
		g.shift(power, ^uint64(1<<32-1))
	}
}

// shift changes the power, unless another goroutine has.
func (g *gate) shift(power uint8, by uint64) {
	for range 4 { // else the next one to come by does
		was := g.now.Load()
		if uint8(was>>32)&63 != power || g.now.CompareAndSwap(was, was+by) {
			return
		}
	}
}

// Second says how many refusals came in one second, and for how many an entry was made. From 4,096
// on the number is an estimate.
type Second struct {
	Time       time.Time
	Came, Kept int
}

// thinned returns the seconds of the last five minutes before now in which not every decision was
// taken, newest first.
func (g *gate) thinned(now int64) (list []Second) {
	add := func(unix int64, came, taken uint32) {
		if taken < came {
			list = append(list, Second{Time: time.Unix(unix, 0).UTC(), Came: int(came), Kept: int(taken)})
		}
	}
	last := g.unix.Load()
	if now-last < pastSeconds {
		add(last, uint32(g.now.Load()), g.taken.Load())
	}
	for unix := last - 1; unix > now-pastSeconds; unix-- {
		if p := &g.past[uint64(unix)%pastSeconds]; p.unix.Load() == unix {
			add(unix, p.came.Load(), p.taken.Load())
		}
	}
	return list
}

// WhyMissing says why Find may not find a decision, in a clause for people. now is by the store's
// clock.
func (b *Buffer) WhyMissing(now time.Time) string {
	why := "it may have been pushed out by newer ones, or been made by another node"
	list := b.Thinned(now)
	if len(list) == 0 {
		return why
	}
	s := list[0]
	also := ""
	if n := len(list); n > 1 {
		also = fmt.Sprintf(", and %d more seconds of the last 5 minutes were like it", n-1)
	}
	about := ""
	if s.Came >= 1<<exactBits {
		about = "about "
	}
	return fmt.Sprintf(
		"%s; or it is one of a flood, of which a part is kept: in the second from %s on there were %s%s refusals, of which %s were kept%s",
		why, s.Time.Format("15:04:05 UTC"), about, human.Number(s.Came), human.Number(s.Kept), also)
}
