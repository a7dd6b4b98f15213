package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/signal"
	"github.com/weir-rl/weir/internal/telemetry"
	"github.com/weir-rl/weir/rule"
)

// prepareLoad makes what knows how loaded the service is, and what keeps it from overload.
func (p *program) prepareLoad() error {
	c := p.c
	if c.proxy.concurrency != "" {
		var o httplimit.AdaptiveOptions
		if c.proxy.concurrency != "adaptive" {
			o.Fixed, _ = strconv.Atoi(c.proxy.concurrency) // the setting was checked
		}
		var err error
		if p.adaptive, err = httplimit.NewAdaptive(o); err != nil {
			return fmt.Errorf("proxy.concurrency: %w", err)
		}
	}
	queries := map[string]signal.Query{}
	for name, query := range c.signals {
		if c.prometheus.url == "" {
			return errors.New("prometheus.url: is missing; signals are asked of a Prometheus, such as http://127.0.0.1:9090")
		}
		queries[name] = signal.Query{URL: c.prometheus.url, Query: query, Every: c.prometheus.every}
	}
	var err error
	p.signals, err = signal.New(signal.Options{Queries: queries, Capacity: p.capacity})
	return err
}

// capacity is how many requests in flight are 100 percent.
func (p *program) capacity() int {
	if p.c.proxy.capacity > 0 || p.adaptive == nil {
		return p.c.proxy.capacity
	}
	return p.adaptive.Stats().Limit
}

// collectLoad adds the metrics of load.
func (p *program) collectLoad() {
	o := telemetry.LoadOptions{Limiter: p.limiter, Signals: p.signals, List: func() []telemetry.Signal {
		var list []telemetry.Signal
		for _, s := range p.signals.List() {
			if s.Used || s.Kind != signal.Measured {
				list = append(list, telemetry.Signal{Name: s.Name, Percent: s.Value, Stale: s.Stale, Errors: s.Errors})
			}
		}
		return list
	}}
	if p.adaptive != nil {
		o.Overload = func() telemetry.Overload {
			s := p.adaptive.Stats()
			return telemetry.Overload{Limit: s.Limit, InFlight: s.InFlight, Shed: s.Refused}
		}
	}
	p.metrics.Registry().MustRegister(telemetry.NewLoad(o))
}

// collectQueues adds the metrics of what waits, once the doors are made.
func (p *program) collectQueues() {
	o := telemetry.QueueOptions{Reservations: p.limiter.ReservationStats}
	if h := p.proxy; h != nil {
		o.Held = func() telemetry.Held {
			s := h.Held()
			return telemetry.Held{Now: s.Held, Lines: s.Lines, Longest: s.Longest, Total: s.Total, Expired: s.Expired, HungUp: s.HungUp, TurnedAway: s.TurnedAway}
		}
		if p.deferred != nil {
			o.Deferred = func() (telemetry.Deferred, bool) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				s, err := p.deferred.Stats(ctx)
				w := h.Deferred()
				return telemetry.Deferred{
					Jobs: s.Jobs, Dead: s.Dead, Bytes: s.Bytes, Sent: w.Sent, Done: w.Done, Again: w.Again, Failed: w.Failed, Postponed: w.Postponed,
				}, err == nil
			}
		}
	}
	p.metrics.Registry().MustRegister(telemetry.NewQueues(o))
}

// signalsOf are the signals that the rules of a set follow.
func signalsOf(set *rule.Set) []string {
	var names []string
	for _, r := range set.Rules() {
		if r.Elastic != nil {
			names = append(names, r.Elastic.Signal)
		}
	}
	return names
}

// signalStates is signal.Registry as the admin API wants it.
type signalStates struct{ registry *signal.Registry }

// List implements server.Signals.
func (s signalStates) List() []server.SignalState {
	var list []server.SignalState
	for _, i := range s.registry.List() {
		state := server.SignalState{Name: i.Name, Kind: string(i.Kind), Used: i.Used, Stale: i.Stale, Error: i.Error, Errors: i.Errors}
		if i.Seen {
			age := i.Age.Seconds()
			state.Raw, state.Age = &i.Raw, &age
		}
		if !i.Stale {
			state.Value = &i.Value
		}
		list = append(list, state)
	}
	return list
}

// Push implements server.Signals.
func (s signalStates) Push(name string, percent float64, ttl time.Duration) error {
	return s.registry.Push(name, percent, ttl)
}

// secretIdentities are the attributes whose values are not to be kept.
func secretIdentities(identity map[string]string) []string {
	var hide []string
	for attribute, source := range identity {
		s := strings.ToLower(source)
		if (strings.HasPrefix(s, "header:") || strings.HasPrefix(s, "cookie:")) && rule.SecretAttribute(s) {
			hide = append(hide, attribute)
		}
	}
	return hide
}
