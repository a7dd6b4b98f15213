package regions

import (
	"context"
	"encoding/json"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/store"
)

// Bans and grants hold in all regions. The node that hears for its region reads the boards of the
// others, and puts new orders on its own board, where its nodes find them. Of two orders on one key
// the one that was made later holds, by the instant that the fact carries; so copies of copies come
// to rest. A fact that was removed carries no instant, and goes by the time of its removal there:
// an order that is made in another region while the removal is on its way goes, too.

// orderKinds are the kinds of facts that hold in all regions (internal/limiter/orders).
var orderKinds = []string{"ban", "grant"}

// clockSkew is how far the clock of a node may be ahead of another node's, in µs: an order has the
// time of the node that made it, and its removal the time of the node that copies it.
const clockSkew = int64(time.Second / time.Microsecond)

// knownOrder is the state of a fact on the own board.
type knownOrder struct {
	at   int64 // when the order was made, or when it was removed, in µs
	gone bool
	ends int64 // monotonic
}

// relay copies facts of one kind from the other regions.
type relay struct {
	x    *exchange
	kind string

	problems sparselog.Line

	mu    sync.Mutex
	own   map[string]knownOrder
	swept int64         // when own was swept, monotonic
	ready chan struct{} // closed when own holds the own board's facts of the beginning
}

// relayOrders runs until ctx ends. A store that is no Board has no orders to relay.
func (x *exchange) relayOrders(ctx context.Context, running *sync.WaitGroup) {
	own, ok := store.As[store.Board](x.own)
	if !ok {
		return
	}
	for _, kind := range orderKinds {
		r := &relay{x: x, kind: kind, own: map[string]knownOrder{}, ready: make(chan struct{})}
		running.Go(func() { _ = own.Watch(ctx, kind, r.learn) })
		for _, p := range x.peers {
			board, ok := store.As[store.Board](p.store)
			if !ok {
				continue
			}
			running.Go(func() {
				select {
				case <-r.ready:
				case <-ctx.Done():
					return
				}
				for ctx.Err() == nil {
					r.watch(ctx, own, board)
				}
			})
		}
	}
}

// watch copies new facts from another board, until ctx ends or that fails: a Watch that begins
// again sees all facts once more.
func (r *relay) watch(ctx context.Context, own, board store.Board) {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	_ = board.Watch(watching, r.kind, func(facts []store.Fact, _ bool) {
		if !r.copy(watching, own, facts) {
			stop()
		}
	})
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
}

// madeAt returns when an order was made; 0 if the fact does not say.
func madeAt(f *store.Fact) int64 {
	var d struct {
		At int64 `json:"at"`
	}
	if json.Unmarshal(f.Data, &d) != nil {
		return 0
	}
	return d.At
}

// relayed is a fact for another board. There its age begins anew: so it says how long the order had
// been in force before.
func relayed(f *store.Fact) store.Fact {
	of := *f
	var fields map[string]json.RawMessage
	before := int64(0)
	if json.Unmarshal(f.Data, &fields) != nil || fields == nil {
		return of
	}
	if text, ok := fields["before"]; ok && json.Unmarshal(text, &before) != nil {
		return of
	}
	fields["before"] = strconv.AppendInt(nil, max(before, 0)+f.Age.Microseconds(), 10)
	if data, err := json.Marshal(fields); err == nil && len(data) <= store.MaxFactData {
		of.Data = data
	}
	return of
}

// factOf returns the state of a fact.
func factOf(f *store.Fact, mono int64) knownOrder {
	k := knownOrder{gone: f.Removed, ends: mono + int64(f.TTL)}
	if k.gone {
		k.at = time.Now().UnixMicro() - f.Age.Microseconds()
	} else {
		k.at = madeAt(f)
	}
	return k
}

// learn takes down facts of the own board.
func (r *relay) learn(facts []store.Fact, anew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	mono := store.Monotonic()
	if anew {
		clear(r.own)
	}
	for i := range facts {
		r.own[facts[i].ID] = factOf(&facts[i], mono)
	}
	if mono-r.swept > int64(10*time.Second) {
		r.swept = mono
		maps.DeleteFunc(r.own, func(_ string, k knownOrder) bool { return k.ends <= mono })
	}
	select {
	case <-r.ready:
	default:
		close(r.ready)
	}
}

// copy puts newer facts of another board on the own one. It returns false if that failed.
func (r *relay) copy(ctx context.Context, own store.Board, facts []store.Fact) bool {
	var post []store.Fact
	var remove []string
	r.mu.Lock()
	mono := store.Monotonic()
	for i := range facts {
		f := &facts[i]
		have, there := r.own[f.ID]
		switch k := factOf(f, mono); {
		case k.gone && there && !have.gone && have.at <= k.at+clockSkew:
			remove = append(remove, f.ID)
		case !k.gone && k.at != 0 && !(there && have.at >= k.at):
			post = append(post, relayed(f))
		}
	}
	r.mu.Unlock()
	if len(post)+len(remove) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, tellWithin)
	defer cancel()
	var err error
	if len(post) > 0 {
		err = own.Post(ctx, r.kind, post)
	}
	if len(remove) > 0 && err == nil {
		err = own.Remove(ctx, r.kind, remove)
	}
	if err != nil {
		if n := r.problems.Due(seldomLog); n > 0 && ctx.Err() == nil {
			r.x.log.Warn("bans and grants of another region cannot be taken over, and are tried again", "kind", r.kind,
				"orders", len(post)+len(remove), "cause", err.Error(), "times", n)
		}
		return false
	}
	r.x.stats.orders.Add(uint64(len(post) + len(remove)))
	return true
}
