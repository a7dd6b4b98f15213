package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// mostCounted bounds the bans of which a node tells others: the ones that refused most.
const mostCounted = 10_000

// banAnswer is an answer of kindBans.
type banAnswer struct {
	Began int64    `json:"began"` // since when it knows that no node which counts has left, Unix ms
	ID    []uint64 `json:"id"`
	N     []uint64 `json:"n"`             // as many
	Cut   bool     `json:"cut,omitempty"` // there are more
}

// askedBans is the answer of all nodes of a moment ago. It serves all who ask within keptFor.
type askedBans struct {
	mu     sync.Mutex // held while the nodes are asked
	at     time.Time
	counts insight.BanCounts
	nodes  insight.Nodes
}

// roll remembers that a node has left, and has taken along what it counted.
type roll struct {
	mu   sync.Mutex
	last int       // nodes, when they were counted last
	most int       // that there were
	left time.Time // when one left; zero if all are there
}

// note notes how many nodes there are now, and returns when one left that is not replaced; zero if
// none did. A node that takes the place of another one says itself since when it counts.
func (r *roll) note(nodes int, now time.Time) (left time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case nodes >= r.most:
		r.most, r.left = nodes, time.Time{}
	case nodes < r.last:
		r.left = now
	}
	r.last = nodes
	return r.left
}

// nodeLeft returns when a node left, as far as this one noticed; zero if none did.
func (f *Fleet) nodeLeft() time.Time {
	if f.o.Nodes == nil {
		return time.Time{}
	}
	return f.roll.note(f.o.Nodes.Known(), time.Now())
}

func (f *Fleet) ownBans() banAnswer {
	a := banAnswer{Began: f.began.UnixMilli()}
	if left := f.nodeLeft(); left.After(f.began) {
		a.Began = left.UnixMilli()
	}
	if f.o.Bans == nil {
		return a
	}
	list := slices.DeleteFunc(f.o.Bans(), func(b weir.Ban) bool { return b.Refused == 0 })
	if len(list) > mostCounted {
		slices.SortFunc(list, func(x, y weir.Ban) int { return cmp.Compare(y.Refused, x.Refused) })
		list, a.Cut = list[:mostCounted], true
	}
	for i := range list {
		b := &list[i]
		a.ID, a.N = append(a.ID, insight.BanID(b.Domain, b.Rule, b.Key)), append(a.N, b.Refused)
	}
	return a
}

// BanCounts implements admin.Nodes.
func (f *Fleet) BanCounts(ctx context.Context) (insight.BanCounts, insight.Nodes) {
	k := &f.bans
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.at.IsZero() && time.Since(k.at) < keptFor {
		return k.counts, k.nodes
	}
	c := insight.BanCounts{Of: map[uint64]uint64{}}
	heard := 0
	add := func(a *banAnswer) {
		if began := time.UnixMilli(a.Began); began.After(c.Began) {
			c.Began = began
		}
		if a.Cut {
			c.Began = time.Now() // whatever it left out
		}
		for i, id := range a.ID[:min(len(a.ID), len(a.N))] {
			c.Of[id] += a.N[i]
		}
		heard++
	}
	own := f.ownBans()
	add(&own)
	n := f.others(context.WithoutCancel(ctx), kindBans, nil, func(a nodes.Answer) {
		var other banAnswer
		if f.read(a, &other) {
			add(&other)
		}
	})
	n.Answered = min(n.Answered, heard) // one that cannot be read tells nothing
	k.at, k.counts, k.nodes = time.Now(), c, n
	return c, n
}

func (f *Fleet) answerBans(context.Context, []byte) ([]byte, error) { return json.Marshal(f.ownBans()) }
