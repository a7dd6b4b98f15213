package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/postgres"
)

// openDeferred opens the queue of deferred requests, where the proxy runs and there is a place for
// it.
func (p *program) openDeferred(set *rule.Set) error {
	path, bounds := p.c.deferPath, p.c.deferBounds
	if p.c.listen.proxy == "" {
		return nil
	}
	onPostgres, _ := p.storage.shared.(*postgres.Store)
	switch {
	case (p.storage.redis != nil || onPostgres != nil) && path != "":
		return errors.New("defer.path: is for the embedded store. With Redis or PostgreSQL the deferred requests lie there, where all nodes share them. Leave defer.path empty")
	case onPostgres != nil:
		q, err := deferred.NewPostgres(onPostgres.Pool(), onPostgres.Schema(), bounds)
		if err != nil {
			return err
		}
		p.deferred = q
	case p.storage.redis != nil:
		q, err := deferred.NewRedis(p.storage.redis.Client, p.c.redis.Prefix, bounds)
		if err != nil {
			return err
		}
		p.deferred = q
	case path != "":
		q, err := deferred.OpenFile(path, bounds)
		if err != nil {
			return fmt.Errorf("defer.path: %w", err)
		}
		p.deferred = q
	default:
		if r := deferring(set); r != nil {
			return fmt.Errorf("defer.path: is missing: limit %q defers requests, which must outlast this program. Name a file for them, such as ./weir-deferred.db, or use Redis or PostgreSQL as the store", r.Name)
		}
	}
	return nil
}

// deferring returns a rule that defers requests; nil if there is none.
func deferring(set *rule.Set) *rule.Rule {
	for _, r := range set.Rules() {
		if r.Defer != "" {
			return r
		}
	}
	return nil
}

// startDeferring runs the worker from when it is needed first: when a rule defers, or a job waits
// from before.
func (p *program) startDeferring(set *rule.Set) {
	r := deferring(set)
	switch {
	case p.proxy == nil:
	case p.deferred == nil && r != nil:
		p.log.Warn("a limit defers requests, but there is no queue for them: they are refused. Set defer.path and restart", "limit", r.Name)
	case p.deferred != nil && (r != nil || p.jobsWait()):
		p.worker.open()
	}
}

func (p *program) jobsWait() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s, err := p.deferred.Stats(ctx)
	return err != nil || s.Jobs+s.Dead > 0
}

// workOff forwards deferred requests until ctx ends.
func (p *program) workOff(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-p.worker.opened:
		p.proxy.Work(ctx)
	}
}

// deferral returns the proxy's settings for deferring requests; nil without a queue.
func (p *program) deferral() *proxy.Deferral {
	if p.deferred == nil {
		return nil
	}
	d := p.c.deferral
	d.Queue, d.Tracer = p.deferred, p.tracer()
	return &d
}

// latch is opened once, and stays open.
type latch struct {
	opened chan struct{} // closed when it is open
	open   func()
}

func newLatch() latch {
	opened := make(chan struct{})
	return latch{opened, sync.OnceFunc(func() { close(opened) })}
}
