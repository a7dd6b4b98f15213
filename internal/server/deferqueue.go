package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/postgres"
)

// deferSettings are about deferred requests.
var deferSettings = []setting{
	{Path: "defer.path",
		Help: "file of the requests that rules defer, with the embedded store; with Redis or PostgreSQL they lie there",
		Set:  settings.String(func(c *Config) *string { return &c.deferPath })},
	{Path: "defer.max_bytes", Value: "1GiB",
		Help: "bound on the bytes of the deferred requests that wait, and on their number: one for each 10 KiB",
		Set:  settings.Bytes(func(c *Config) *int64 { return &c.deferBounds.Bytes })},
	{Path: "defer.max_body", Value: "1MiB",
		Help: "largest body of a request that is deferred; larger ones are refused",
		Set:  settings.Bytes(func(c *Config) *int64 { return &c.deferral.MaxBody })},
	{Path: "defer.max_age", Value: "24h",
		Help: "how old a deferred request may become before it is given up",
		Set:  settings.Duration(time.Second, func(c *Config) *time.Duration { return &c.deferral.Worker.MaxAge })},
	{Path: "defer.keep", Value: "24h",
		Help: "how long the ticket of a request that has ended is kept",
		Set:  settings.Duration(time.Second, func(c *Config) *time.Duration { return &c.deferBounds.Keep })},
	{Path: "defer.attempts", Value: "8",
		Help: "how often a deferred request is sent before it is given up",
		Set:  settings.Int(1, 100, func(c *Config) *int { return &c.deferral.Worker.Attempts })},
}

// deferConfig is the configuration of deferred requests.
type deferConfig struct {
	deferral    proxy.Deferral
	deferBounds deferred.Bounds
	deferPath   string
}

// jobRoom is the part of defer.max_bytes for each deferred request. Most requests hold a few KiB
// and have some overhead in each of the stores, so that their number is bounded with their bytes.
const jobRoom = 10 << 10

// openDeferred opens the queue of deferred requests, where the proxy runs and there is a place for
// it.
func (p *program) openDeferred(context.Context) error {
	p.worker = newLatch()
	path, bounds := p.c.deferPath, p.c.deferBounds
	bounds.Jobs = int(max(1, bounds.Bytes/jobRoom))
	if p.c.listen.proxy == "" {
		return nil
	}
	onPostgres, _ := p.storage.shared.(*postgres.Store)
	switch {
	case (p.storage.redis != nil || onPostgres != nil) && path != "":
		return errors.New(
			"defer.path: is for the embedded store. With Redis or PostgreSQL the deferred requests lie there, where all nodes share them. Leave defer.path empty")
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
		if r := deferring(p.atStart); r != nil {
			return fmt.Errorf(
				"defer.path: is missing: limit %q defers requests, which must outlast this program. Name a file for them, such as ./weir-deferred.db, or use Redis or PostgreSQL as the store", r.Name)
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

// startDeferring runs the worker if a rule defers.
func (p *program) startDeferring(set *rule.Set) {
	r := deferring(set)
	switch {
	case p.proxy == nil:
	case p.deferred == nil && r != nil:
		p.log.Warn(
			"a limit defers requests, but there is no queue for them: they are refused. Set defer.path and restart", "limit", r.Name)
	case r != nil:
		p.worker.open()
	}
}

// lookForJobs starts the worker if a job waits from before. It asks until the queue answers, or the
// worker is started.
func (p *program) lookForJobs(ctx context.Context) {
	for {
		asked, cancel := context.WithTimeout(ctx, time.Second)
		s, err := p.deferred.Stats(asked)
		cancel()
		if err == nil {
			if s.Jobs+s.Dead > 0 {
				p.worker.open()
			}
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-p.worker.opened:
			return
		case <-time.After(time.Second):
		}
	}
}

// workOff forwards deferred requests until ctx ends: from when a rule defers, or at once if a job
// waits from before.
func (p *program) workOff(ctx context.Context) {
	if p.proxy == nil {
		return
	}
	if p.deferred != nil {
		p.lookForJobs(ctx)
	}
	select {
	case <-ctx.Done():
	case <-p.worker.opened:
		p.proxy.Work(ctx)
	}
}

func (p *program) closeDeferred() error {
	if p.deferred == nil {
		return nil
	}
	return p.deferred.Close()
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
