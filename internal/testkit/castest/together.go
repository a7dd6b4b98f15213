package castest

import (
	"context"
	"slices"

	"github.com/weir-rl/weir/store/cas"
)

// Together returns e with all keys in one place, so that it spans all keys. Tests of calls that are
// exact over several keys can then run on an engine that does not span places.
func Together(e cas.Engine) cas.Engine {
	if l, ok := e.(cas.Locker); ok {
		return lockedTogether{together{e}, l}
	}
	return together{e}
}

type together struct{ cas.Engine }

func (e together) Spans() bool { return true }

func (e together) Read(ctx context.Context, keys []cas.Key) ([]cas.Value, int64, error) {
	return e.Engine.Read(ctx, inOnePlace(keys))
}

func inOnePlace(keys []cas.Key) []cas.Key {
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i].Place = 0
	}
	return keys
}

func changesInOnePlace(changes []cas.Change) (sorted []cas.Change, order []int) {
	order = make([]int, len(changes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return slices.Compare(changes[i].Name, changes[j].Name) })
	for _, of := range order {
		c := changes[of]
		c.Place = 0
		sorted = append(sorted, c)
	}
	return sorted, order
}

func (e together) Swap(ctx context.Context, now int64, groups []cas.Group) (int64, error) {
	own, orders := make([]cas.Group, len(groups)), make([][]int, len(groups))
	for i := range groups {
		own[i].Changes, orders[i] = changesInOnePlace(groups[i].Changes)
	}
	clock, err := e.Engine.Swap(ctx, now, own)
	for i := range groups {
		g := &groups[i]
		g.Done, g.Err, g.Values = own[i].Done, own[i].Err, nil
		if len(own[i].Values) == len(orders[i]) && !g.Done && g.Err == nil {
			g.Values = make([]cas.Value, len(orders[i]))
			for at, of := range orders[i] {
				g.Values[of] = own[i].Values[at]
			}
		}
	}
	return clock, err
}

type lockedTogether struct {
	together
	locker cas.Locker
}

func (e lockedTogether) Lock(ctx context.Context, keys []cas.Key) (cas.Lock, []cas.Value, int64, error) {
	l, values, clock, err := e.locker.Lock(ctx, inOnePlace(keys))
	return lockTogether{l}, values, clock, err
}

type lockTogether struct{ cas.Lock }

func (l lockTogether) Unlock(ctx context.Context, changes []cas.Change) error {
	changes, _ = changesInOnePlace(changes)
	return l.Lock.Unlock(ctx, changes)
}
