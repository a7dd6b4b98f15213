package preview

import (
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
)

// mostRequests bounds the requests that are replayed: if there are more, fewer clients are taken.
const mostRequests = 4 << 20

// plan says which part of the record is replayed.
type plan struct {
	level    int // strata from here on: one client in 2^level
	from     int64
	count    int64 // from where requests count
	to       int64
	requests uint64
	short    bool // the windows need more time to warm up than there is
	chunks   [][]chunk
	gaps     []gap
	changes  int // of the rules, in that time
	names    *names
}

// plan chooses the sample with the most clients that reaches back as far as wanted.
func (r *Recorder) plan(over time.Duration, window int64) (*plan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drainLocked()
	r.drainLocked() // what waits to be sorted
	g := r.mu.ring
	level := int(r.level.Load())
	now := g.latest
	if now == 0 || g.reach(level) == 0 {
		return nil, insight.ErrNotRecorded
	}
	asked := now - over.Microseconds()
	warm := window
	if over <= 0 {
		longest := int64(0)
		for n := level; n < strata; n++ {
			longest = max(longest, now-g.reach(n))
		}
		asked, warm = now-longest*9/10, 0
	}
	best := level
	for n := level; n < strata; n++ {
		if g.reach(n) < g.reach(best) {
			best = n
		}
		if g.reach(n) <= asked-warm {
			best = n
			break
		}
	}
	p := &plan{level: best, to: now, names: r.names.Load()}
	for p.level < strata-1 && g.requests(p.level, asked-warm) > mostRequests {
		p.level++
	}
	reach := g.reach(p.level)
	p.from = reach
	if over > 0 {
		p.from = max(reach, asked-warm)
	}
	whole := r.o.Fresh && p.from <= g.first
	p.count = p.from + window
	if whole {
		p.count = p.from
	}
	if over > 0 {
		p.count = max(p.count, asked)
	}
	if half := p.from + (now-p.from)/2; p.count > half && !(over > 0 && asked >= p.from+window) && !whole {
		p.count, p.short = half, true
	}
	p.chunks = g.take(p.level, p.from)
	p.requests = g.requests(p.level, p.from)
	for _, gap := range r.mu.gaps {
		if gap.to >= p.from {
			p.gaps = append(p.gaps, gap)
		}
	}
	for _, c := range r.mu.changes[min(1, len(r.mu.changes)):] {
		if c.at >= p.from {
			p.changes++
		}
	}
	if p.requests == 0 {
		return nil, insight.ErrNotRecorded
	}
	return p, nil
}

// longestWindow returns how long the record must be before requests count, in µs.
func longestWindow(sets ...*rule.Set) (longest int64) {
	for _, set := range sets {
		for _, r := range set.Rules() {
			for _, w := range r.Windows {
				if w.Limit != nil && !w.Limit.HasSlots() {
					longest = max(longest, w.Limit.Config().Window.Microseconds())
				}
			}
			if b := r.Ban; b != nil {
				longest = max(longest, b.Within.Microseconds(), b.For.Microseconds())
			}
		}
	}
	return longest
}
