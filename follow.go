package weir

import "context"

// Follow shares bans and grants with the other nodes through the store, which must be a
// store.Board, until ctx ends; then it returns nil. A store that keeps its facts over a restart
// brings them back in this way. Without Follow a Limiter publishes the orders that its handles set
// and end, but hears of nothing, and keeps the bans that denials bring to itself. The error is
// store.ErrNoBoard, or that Follow runs already.
func (l *Limiter) Follow(ctx context.Context) error { return l.orders.Follow(ctx) }

// Followed returns a channel that is closed when Follow has read for the first time which bans and
// grants the store holds, or has found that it holds none for good (store.ErrNoBoard). Until then
// banned keys pass. A program that is to refuse them from its first request on waits for it before
// it serves, for as long as it will wait for a store that may be away:
//
//	go limiter.Follow(ctx)
//	select {
//	case <-limiter.Followed():
//	case <-time.After(5 * time.Second):
//		log.Print("bans and grants could not be read yet")
//	}
//
// Without Follow the channel is never closed. Safe for concurrent use.
func (l *Limiter) Followed() <-chan struct{} { return l.orders.Followed() }
