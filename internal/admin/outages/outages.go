// Package outages keeps a list of the times in which this node went without its store, another
// region, or the database of the rules: from when to when, what it decided alone meanwhile, and
// what became known of that afterwards.
//
// Begin with Log (outages.go), which looks once a second. store.go follows a store of counters, and
// sentinel.go finds out whether one came back without its counters.
package outages

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
)

const (
	// most bounds the list: the oldest is dropped.
	most = 100
	// lookEvery is how often what is followed is looked at, beside calls of Look.
	lookEvery = time.Second
	// longestCause bounds the text of an error, in bytes.
	longestCause = 300
)

// Options tune New. A nil field is what this node does not have.
type Options struct {
	Node string // the name of this node
	// Store is what the store of counters is: redis, postgres or cassandra. Fallback wraps it, and
	// Counters is the store itself.
	Store    string
	Fallback *fallback.Store
	Counters store.Store
	// Policies counts the rules in force by their on_store_error.
	Policies func() insight.StorePolicies
	Others   []Other
}

// Other is something else that can be away.
type Other struct {
	Store, Region string // as in insight.Outage
	Does          string // what this node does meanwhile, as in insight.OutageNode
	// Away returns since when it has been away, and why; a zero time if it is there. If known is
	// false, this node does not know now.
	Away func() (since time.Time, cause string, known bool)
}

// Log is the list. Make one with New, and let Run run. Safe for concurrent use.
type Log struct {
	o Options

	mu       sync.Mutex
	list     []*insight.Outage // oldest first
	store    follower
	others   []*insight.Outage // that last, by the place in Options.Others; nil: it is there
	sentinel *sentinel         // Run's alone
}

// New returns an empty Log.
func New(o Options) *Log {
	l := &Log{o: o, others: make([]*insight.Outage, len(o.Others))}
	l.store.at = time.Now()
	if o.Counters != nil {
		l.sentinel = newSentinel(o.Counters)
	}
	return l
}

// Run looks until ctx ends.
func (l *Log) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		l.Look()
		if l.sentinel != nil {
			l.watch(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Look looks now. Call it when the state of the store changes, so that no outage is too short to be
// seen. It waits for nothing.
func (l *Log) Look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.o.Fallback != nil {
		l.followStore(now)
	}
	for i := range l.o.Others {
		l.followOther(i, now)
	}
}

// List returns copies of all outages, oldest first.
func (l *Log) List() []insight.Outage {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]insight.Outage, len(l.list))
	for i, x := range l.list {
		list[i] = *x
		list[i].Nodes = slices.Clone(x.Nodes)
		list[i].Describe()
	}
	return list
}

// begin adds an outage, or goes on with one that ended a moment ago. mu is held.
func (l *Log) begin(x insight.Outage) *insight.Outage {
	x.Cause = shortened(x.Cause)
	o := l.near(&x)
	if o == nil {
		return l.add(&x)
	}
	if x.Kind == insight.StoreAway && o.Kind != insight.StoreAway {
		o.Kind, o.Times = x.Kind, 0 // how often it was away
	}
	o.To, o.Cause = nil, cmp.Or(o.Cause, x.Cause)
	return o
}

// near returns the outage that x goes on with; nil if there is none.
func (l *Log) near(x *insight.Outage) *insight.Outage {
	for _, o := range slices.Backward(l.list) {
		if o.Joins(x) {
			return o
		}
	}
	return nil
}

func (l *Log) add(x *insight.Outage) *insight.Outage {
	x.From, x.Nodes = x.From.UTC(), []insight.OutageNode{{Node: l.o.Node}}
	l.list = append(l.list, x)
	if len(l.list) > most {
		l.list = slices.Delete(l.list, 0, len(l.list)-most)
	}
	return x
}

func (l *Log) followOther(i int, now time.Time) {
	other := &l.o.Others[i]
	since, cause, known := other.Away()
	if !known {
		since = time.Time{} // the node that knows goes on with it
	}
	switch o := l.others[i]; {
	case o == nil && !since.IsZero():
		o = l.begin(insight.Outage{Store: other.Store, Region: other.Region, Kind: insight.StoreAway, From: since,
			Cause: cause})
		o.Times++
		o.Nodes[0].Does = other.Does
		l.others[i] = o
	case o != nil && since.IsZero():
		o.To = new(now.UTC())
		l.others[i] = nil
	}
}

func shortened(cause string) string {
	if len(cause) <= longestCause {
		return cause
	}
	return cause[:longestCause] + "…"
}
