package outages

import (
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/store/fallback"
)

// calm is how long after the last decision without an answer a store that counts as there is well
// again.
const calm = 5 * time.Second

// follower follows the store of counters.
type follower struct {
	at     time.Time // of the last reading
	last   reading
	spell  *insight.Outage      // that lasts; nil if there is none
	before reading              // when the spell began
	base   insight.OutageCounts // of the same outage before that
	// settling is the last spell while units of it are to be settled; nil if there are none.
	settling *insight.Outage
	trouble  time.Time // when a decision was last made without an answer, or the store was away
	returned bool      // it came back, or answers again, and was not asked yet whether it is empty
}

// reading is what the fallback has counted.
type reading struct {
	fallback.Stats
	over uint64 // units beyond limits, without rules in shadow
}

func (r *reading) alone() uint64 {
	return r.LocalAllowed + r.LocalDenied + r.Uncounted + r.Stats.Refused
}

func (l *Log) read() reading {
	r := reading{Stats: l.o.Fallback.Stats(), over: l.store.last.over}
	if r.Excess != l.store.last.Excess {
		r.over = 0
		for _, e := range l.o.Fallback.Excess() {
			r.over += e.Units
		}
	}
	return r
}

// since returns what was counted between two readings. What is unsettled is counted now, as it gets
// less.
func (r *reading) since(before *reading) insight.OutageCounts {
	return insight.OutageCounts{
		Alone: r.alone() - before.alone(), ShareAdmitted: r.LocalAllowed - before.LocalAllowed,
		ShareRefused: r.LocalDenied - before.LocalDenied, Admitted: r.Uncounted - before.Uncounted,
		Refused: r.Stats.Refused - before.Stats.Refused, Over: r.over - before.over,
		Unsettled: r.Open, Unsure: r.Lost - before.Lost,
	}
}

// followStore looks at the store of counters. mu is held.
func (l *Log) followStore(now time.Time) {
	f := &l.store
	state, since, cause := l.o.Fallback.State()
	r := l.read()
	away := state != fallback.Closed
	trips := r.Trips > f.last.Trips
	if away || trips || r.alone() > f.last.alone() {
		f.trouble = now
		l.goOn(now, since, away || trips, away, cause)
	}
	if f.spell != nil {
		l.measure(f.spell, &r)
		if away {
			f.spell.Nodes[0].Does = l.does()
		} else {
			l.perhapsEnd(now, since)
		}
	} else if f.settling != nil {
		l.measure(f.settling, &r)
	}
	if f.settling != nil && r.Open == 0 {
		f.settling = nil
	}
	f.at, f.last = now, r
}

// goOn begins a spell, or goes on with one, since the store is away or left decisions without an
// answer. still says that it is away now.
func (l *Log) goOn(now, since time.Time, away, still bool, cause error) {
	f := &l.store
	kind, from := insight.StoreUnanswered, now
	if away {
		kind = insight.StoreAway
	}
	if still { // else since is when it came back
		from = minTime(since, now)
	}
	text := ""
	if cause != nil {
		text = strings.ReplaceAll(cause.Error(), "\n", "; ")
	}
	if f.spell == nil {
		o := l.begin(insight.Outage{Store: l.o.Store, Kind: kind, From: from, Cause: text})
		if o != f.settling { // else its figures go on from where they began
			l.giveUp()
			f.before, f.base = f.last, o.OutageCounts
		}
		f.spell, f.settling = o, nil
		o.Times++
		o.Nodes[0].Does = l.does()
	}
	o := f.spell
	if kind == insight.StoreAway && o.Kind != insight.StoreAway {
		o.Kind, o.Cause, o.Times = kind, shortened(text), 1
		o.From = minTime(o.From, from.UTC())
	}
	if n, parts := l.o.Fallback.Away(); parts > 1 {
		o.PartsAway, o.Parts = max(o.PartsAway, n), parts
	}
}

// giveUp ends the wait for what is unsettled of the last spell: from now on it cannot be told from
// what another spell left.
func (l *Log) giveUp() {
	if o := l.store.settling; o != nil {
		o.Unsure, o.Unsettled = o.Unsure+o.Unsettled, 0
	}
}

// measure brings the figures of a spell up to date.
func (l *Log) measure(o *insight.Outage, r *reading) {
	counts := r.since(&l.store.before)
	sum := l.store.base
	sum.Add(&counts)
	o.OutageCounts = sum
	o.Nodes[0].Alone = sum.Alone
}

// perhapsEnd ends the spell of a store that counts as there: at once if it was away, which it is
// not any more, and else when it has answered for a while.
func (l *Log) perhapsEnd(now, back time.Time) {
	f := &l.store
	switch o := f.spell; {
	case o.Kind == insight.StoreAway:
		o.To = new(latest(o.From, minTime(back, now)).UTC())
	case now.Sub(f.trouble) >= calm:
		o.To = new(f.trouble.UTC())
	default:
		return
	}
	f.returned = true
	f.spell, f.settling = nil, f.spell
}

// does says how this node decides without its store.
func (l *Log) does() string {
	var p insight.StorePolicies
	if l.o.Policies != nil {
		p = l.o.Policies()
	}
	return p.Does(l.o.Fallback.Share())
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
