package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/observe"
)

// openLimiter makes the limiter on all that works behind it.
func (p *program) openLimiter(context.Context) (err error) {
	watchers := []observe.Watcher{p.metrics, p.recent}
	if p.insight != nil {
		watchers = append(watchers, p.insight)
	}
	if p.recorder != nil {
		watchers = append(watchers, p.recorder)
	}
	hooks := []weir.Hooks{p.tally.Join(watchers...)}
	if p.rateLimit != nil {
		hooks = append(hooks, p.rateLimit.Hooks())
	}
	if p.c.listen.proxy != "" {
		hooks = append(hooks, weir.Hooks{Decided: p.refunded})
	}
	if p.decisions != nil {
		hooks = append(hooks, p.decisions.Hooks())
	}
	if p.tracer() != nil { // the last one: it adds the id that another one may give
		hooks = append(hooks, p.otel.Tracer().Hooks())
	}
	options := []weir.Option{
		weir.WithSignals(p.signals),
		weir.WithBans(weir.BanOptions{Changed: p.banChanged}),
		weir.WithHooks(weir.JoinHooks(hooks...)),
	}
	if p.awaited {
		options = append(options, weir.RequireRules())
	} else {
		options = append(options, weir.WithRules(p.atStart))
	}
	if p.c.denyUnknown {
		options = append(options, weir.DenyUnknownDomains())
	}
	p.limiter, err = weir.New(p.metrics.Store(p.tracedStore(p.storage.Store)), options...)
	if err != nil {
		return err
	}
	p.signals.SetUsed(signalsOf(p.atStart))
	return nil
}

// refunded lets requests that the proxy holds ask when something was given back at another door.
func (p *program) refunded(r *weir.Request, d *weir.Decision) {
	if r.Cost() < 0 && p.proxy != nil {
		p.proxy.Refunded(r, d)
	}
}

// sweep gives back the reservations of nodes that died.
func (p *program) sweep(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// A failure is retried, and reported to StoreError.
			_, _ = p.limiter.Reservations().Sweep(ctx)
		}
	}
}

// queueMetrics are the metrics of waiting requests, and of the proxy.
func (p *program) queueMetrics() []prometheus.Collector {
	queues := metrics.QueueOptions{Reservations: p.limiter.Reservations().Stats}
	if p.proxy != nil {
		queues.Held, queues.Abandoned, queues.Upstream = p.proxy.Held, p.proxy.Abandoned, p.proxy.Upstream
		queues.Bodies = func() (slow, stalled, crowded, unread uint64) {
			s := p.proxy.Stats()
			return s.SlowBodies, s.StalledBodies, s.CrowdedBodies, s.UnreadAnswers
		}
		queues.Resent = func() uint64 { return p.proxy.Stats().SentAgain }
		if p.deferred != nil {
			queues.Deferred, queues.Worker = p.deferred.Stats, p.proxy.Deferred
		}
	}
	return []prometheus.Collector{metrics.NewQueues(queues)}
}
