package gather

import (
	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
)

// Conduct shows whether one client behaves well: by the answers that it got, and by what it did
// after refusals. It is for callers that follow clients without a Collector, and judge as the
// verdicts do. The zero value has seen nothing. Not safe for concurrent use.
type Conduct struct {
	Known bool // an attribute of insight.known was there

	ended         insight.Episodes
	refused       uint32 // requests
	answers, well uint32
	fill          float32         // of the windows in which it was refused
	open          []followedKey   // keys with an open episode
	full          []refusedWindow // windows in which it was refused last
}

// followedKey is a key of a rule that told the client to come back.
type followedKey struct {
	hash uint64
	judge.Returns
}

// refusedWindow is a window of a key in which the client was refused.
type refusedWindow struct {
	hash  uint64
	index int64 // of the window
	units int64 // refused to the client in it
}

// mostFollowed bounds how many keys of a client are followed at once. Beyond it, the key that was
// refused first is forgotten.
const mostFollowed = 16

// Answered notes the status of an answer to an admitted request.
func (c *Conduct) Answered(status int) {
	well, tells := judge.AnsweredWell(status)
	if tells {
		c.answers++
	}
	if well {
		c.well++
	}
}

// Decided notes a decision on a request of the client, which is neither a peek nor a refund.
// Decisions must come in order of their time. Decided keeps nothing of r and d.
func (c *Conduct) Decided(r *weir.Request, d *weir.Decision) {
	if !d.Allowed {
		c.refused++
	} else if len(c.open) == 0 {
		return
	}
	if len(d.Matches.Hits) != len(d.Limits) {
		return
	}
	for i := 0; i < len(d.Limits); {
		begin := i
		i = groupEnd(d, i)
		flags, retry := groupOf(d, begin, i)
		if flags&flagRuleRefused == 0 {
			retry = 0 // in shadow nobody is told to come back
		}
		hash := hashKey(uint64(d.Limits[begin].Window.Counter.Index), d.Matches.Hits[begin].Key)
		c.follow(hash, d.Time, !d.Allowed, retry)
		for n := begin; n < i && flags&flagRuleRefused != 0 && d.Banned.Rule == nil; n++ {
			if d.Refuses(&d.Limits[n]) {
				c.refuse(r, d, n)
			}
		}
	}
}

// follow notes a request that met a key of a rule.
func (c *Conduct) follow(hash uint64, at int64, refused bool, retry int64) {
	place := -1
	for i := range c.open {
		if c.open[i].hash == hash {
			place = i
		}
	}
	if place < 0 {
		if retry <= at {
			return
		}
		c.forget(at)
		place = len(c.open)
		c.open = append(c.open, followedKey{hash: hash})
	}
	k := &c.open[place]
	before := k.Episodes
	k.Note(at, refused, retry)
	c.ended.AddSince(&before, &k.Episodes)
	if !k.Open() {
		c.open = append(c.open[:place], c.open[place+1:]...)
	}
}

// forget makes room for one more key.
func (c *Conduct) forget(at int64) {
	if len(c.open) < mostFollowed {
		return
	}
	kept := c.open[:0]
	for i := range c.open {
		k := &c.open[i]
		before := k.Episodes
		k.Expire(at)
		c.ended.AddSince(&before, &k.Episodes)
		if k.Open() {
			kept = append(kept, *k)
		}
	}
	if len(kept) == mostFollowed {
		kept = append(kept[:0], kept[1:]...)
	}
	c.open = kept
}

// refuse notes that the limit n of a decision refused the client: it asked for more than the limit.
func (c *Conduct) refuse(r *weir.Request, d *weir.Decision, n int) {
	l := &d.Limits[n]
	hash := hashKey(uint64(l.Window.Counter.Index), d.Matches.Hits[n].Key)
	index := windowIndex(d.Time, spanOf(l.Window.Counter))
	place := -1
	for i := range c.full {
		if c.full[i].hash == hash {
			place = i
		}
	}
	if place < 0 {
		if len(c.full) == mostFollowed {
			c.full = append(c.full[:0], c.full[1:]...)
		}
		place = len(c.full)
		c.full = append(c.full, refusedWindow{hash: hash})
	}
	w := &c.full[place]
	if w.index != index {
		w.index, w.units = index, 0
	}
	w.units += observe.Asked(r, d, n)
	if l.Limit > 0 {
		c.fill = max(c.fill, float32(l.Limit-l.Remaining+w.units)/float32(l.Limit))
	}
}

// Facts returns what is known of the client.
func (c *Conduct) Facts() judge.KeyFacts {
	k := judge.KeyFacts{Refused: uint64(c.refused), Fill: float64(c.fill), Known: c.Known, OK: -1, Episodes: c.ended}
	if c.answers > 0 {
		k.OK = float64(c.well) / float64(c.answers)
	}
	return k
}
