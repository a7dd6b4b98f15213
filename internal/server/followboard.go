package server

import (
	"context"
	"time"
)

// boardPatience bounds the time that a start waits for bans and grants. Only tests change it.
var boardPatience = 5 * time.Second

// follow shares bans and grants through the store. It returns when those in the store are known,
// since the first request of a banned key must be refused like later ones. It also returns after
// boardPatience, since a server that starts while its store is away limits all the same.
func (p *program) follow(a *actors) {
	ended := make(chan struct{})
	a.start(func(ctx context.Context) {
		defer close(ended)
		if err := p.limiter.Follow(ctx); err != nil {
			p.log.Error("bans and grants are not shared", "error", err)
		}
	})
	timer := time.NewTimer(boardPatience)
	defer timer.Stop()
	select {
	case <-p.limiter.Followed():
	case <-ended:
	case <-timer.C:
		p.log.Warn(
			"the doors open although bans and grants could not be read: banned keys pass until the store answers", "waited", boardPatience.String())
		a.start(func(context.Context) {
			select {
			case <-p.limiter.Followed():
				p.log.Info("bans and grants have been read")
			case <-ended:
			}
		})
	}
}

// followed reports whether bans and grants have been read.
func (p *program) followed() bool {
	select {
	case <-p.limiter.Followed():
		return true
	default:
		return false
	}
}
