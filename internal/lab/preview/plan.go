package preview

import (
	"cmp"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

// mostRequests bounds the requests that are replayed: if there are more, fewer clients are taken.
const mostRequests = 4 << 20

// plan says which part of the records is replayed. Times are in µs.
type plan struct {
	level    int   // strata from here on: one client in 2^level
	since    int64 // when the records of all nodes are whole
	from     int64
	count    int64 // from where requests count
	to       int64
	window   int64  // the longest one of the rules
	short    bool   // it had less than its time to warm up
	began    string // the node whose record begins last, if others reach back further
	requests uint64
	gaps     int64 // in all, in which some requests are missing
	changes  int   // of the rules
	streams  [][]record.Chunk
}

// newPlan chooses the sample with the most clients that reaches back as far as wanted. over 0 is
// all that was recorded; window is the longest window of the rules.
func newPlan(records []*record.Record, over, window int64) (*plan, error) {
	p := &plan{level: -1, window: window}
	for _, r := range records {
		p.to = max(p.to, r.To)
	}
	var reach [record.Strata]int64 // by level
	longest := p.to
	for level := range reach {
		if reach[level], _ = reachOf(records, level); reach[level] != 0 {
			longest = min(longest, reach[level])
		}
	}
	wanted := p.to - over - window
	if over <= 0 {
		wanted = p.to - (p.to-longest)*9/10
	}
	for level, at := range reach {
		if at != 0 && (p.level < 0 || at < reach[p.level]) {
			p.level = level
		}
		if at != 0 && at <= wanted {
			break
		}
	}
	if p.to == 0 || p.level < 0 {
		return nil, insight.ErrNotRecorded
	}
	for ; p.level < record.Strata-1; p.level++ {
		if n, _ := requestsOf(records, p.level, wanted); n <= mostRequests {
			break
		}
	}
	var last *record.Record
	p.since, last = reachOf(records, p.level)
	if p.since > wanted && len(records) > 1 {
		p.began = cmp.Or(human.ParseNodeName(last.Node).Label(), "the node that was asked")
	}
	p.from = max(p.since, wanted)
	if over <= 0 {
		_, first := requestsOf(records, p.level, p.since)
		p.from = max(p.since, first)
	}
	if p.requests, _ = requestsOf(records, p.level, p.from); p.requests == 0 {
		return nil, insight.ErrNotRecorded
	}
	p.setCount(over, len(records) == 1 && records[0].Fresh && p.since <= records[0].First)
	for _, r := range records {
		changes := 0
		for _, at := range r.Changes {
			if at >= p.from {
				changes++
			}
		}
		p.changes = max(p.changes, changes)
		for _, g := range r.Gaps {
			p.gaps += max(g.To-max(g.From, p.from), 0)
		}
		p.streams = append(p.streams, r.Streams(p.level, p.from)...)
	}
	return p, nil
}

// setCount sets from where requests count: as far back as was asked if the records reach there, and
// else from where all windows have warmed up, but at least the later half. fresh says that the
// counters began empty with the record.
func (p *plan) setCount(over int64, fresh bool) {
	warm := p.since + p.window
	if fresh {
		warm = p.from
	}
	if p.count = p.to - over; over <= 0 || p.count < p.since {
		p.count = min(max(warm, p.from), p.from+(p.to-p.from)/2)
	}
	p.short = p.count < warm
}

// reachOf returns since when the records of all nodes are whole, in the strata from a level on, and
// whose record begins then; 0 if one of them lacks a stratum.
func reachOf(records []*record.Record, level int) (since int64, last *record.Record) {
	for _, r := range records {
		for _, at := range r.Since[level:] {
			if at == 0 {
				return 0, r
			}
			if at > since {
				since, last = at, r
			}
		}
	}
	return since, last
}

// requestsOf returns about how many requests there are from a level and an instant on, and when the
// first chunk with some of them begins.
func requestsOf(records []*record.Record, level int, from int64) (sum uint64, first int64) {
	for _, r := range records {
		for i := range r.Chunks {
			if c := &r.Chunks[i]; c.Stratum >= level && c.To >= from {
				sum += uint64(c.Requests)
				if first == 0 || c.From < first {
					first = c.From
				}
			}
		}
	}
	return sum, first
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
