package gather

import (
	"math/rand/v2"
	"sync/atomic"
	"unsafe"

	"github.com/weir-rl/weir"
)

// This file runs when an admitted request was answered.

// answerCell is a share of the counters of answers.
type answerCell struct {
	all, failed atomic.Uint32 // they wrap; failed counts a status of 500 or above
	_           [56]byte
}

// answerCounts is a reading of the counters of answers.
type answerCounts struct{ all, failed uint32 }

func (c *Collector) readAnswers() (n answerCounts) {
	for i := range c.answers {
		n.all += c.answers[i].all.Load()
		n.failed += c.answers[i].failed.Load()
	}
	return n
}

// answered counts the answer to a request that d admitted.
func (c *Collector) answered(r *weir.Request, d *weir.Decision, a weir.Answer) {
	if a.Status == 0 {
		return
	}
	turn := uint64(uintptr(unsafe.Pointer(d))) >> 6 * 0x9e3779b97f4a7c15 >> 32
	cell := &c.answers[turn&uint64(len(c.answers)-1)]
	cell.all.Add(1)
	if a.Status >= 500 {
		cell.failed.Add(1)
	}
	if !d.Known || d.Rules == nil || r.Cost() <= 0 {
		return
	}
	t := c.tableFor(d)
	if t == nil || len(d.Matches.Hits) != len(d.Limits) {
		return
	}
	now := thinning(c.thinning.Load())
	var random uint64
	for i := 0; i < len(d.Limits); {
		begin := i
		i = groupEnd(d, i)
		index := d.Limits[begin].Window.Counter.Index
		if index >= len(t.limits) {
			continue
		}
		g := t.limits[index].gate
		hash := hashKey(c.Seed(), d.Matches.Hits[begin].Key)
		if random == 0 {
			random = rand.Uint64() | 1<<63
		}
		w := weights{noWeight, noWeight}
		if random&powerMask(max(now.quiet(), answerThin)) == 0 {
			w.top = max(now.quiet(), answerThin)
		}
		if hash < g.below.Load() {
			if _, known := g.filter.Load().find(hash); known != 0 {
				thin := max(uint8(known&filterThin), now.keys(), now.watched())
				if known&filterWatched == 0 {
					thin = max(thin, answerThin)
				}
				if random>>34&powerMask(thin) == 0 {
					w.key = thin
				}
			}
		}
		if w == (weights{noWeight, noWeight}) {
			continue
		}
		ring := &c.rings[turn&uint64(len(c.rings)-1)]
		s, n := ring.claim()
		if s == nil {
			c.wake()
			return
		}
		s.e = event{
			hash: hash, at: d.Time, rule: g.number, flags: flagAnswer | flagFirst,
			status: uint16(min(max(a.Status, 0), 999)), weights: w,
		}
		if ring.publish(s, n) {
			c.wake()
		}
	}
}
