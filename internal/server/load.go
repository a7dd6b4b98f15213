package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/internal/wire/shed"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
)

// loadSettings are about load: of this server, and of the servers behind it.
var loadSettings = []setting{
	{Path: "overload.line", Value: "12ms",
		Help: "how long a request may stand in line, while this server has more to do than it can, before it is turned away, and twenty times as long through the proxy; 0s for any time",
		Set:  settings.Duration(0, func(c *Config) *time.Duration { return &c.shed.line })},
	{Path: "overload.answer", Value: string(shed.Error),
		Help: "how requests that are turned away are answered: error (the caller hears that nothing was decided), deny or allow",
		Set: settings.Text(func(c *Config, s string) error {
			c.shed.answer = shed.Answer(s)
			return c.shed.answer.Check()
		})},
	{Path: "prometheus.url",
		Help: "URL of the Prometheus that signals are asked of",
		Set:  settings.String(func(c *Config) *string { return &c.prometheusURL })},
	{Path: "signals", Kind: settings.Mapping,
		Help: "name=query pairs: signals for elastic limits that a Prometheus answers, in percent (PromQL; one with a comma only in the file)",
		Set: func(c *Config, items []string) error {
			c.signals = map[string]string{}
			for _, item := range items {
				name, query, ok := strings.Cut(item, "=")
				if !ok || name == "" || strings.TrimSpace(query) == "" {
					return fmt.Errorf("%q is no name=query, such as orders=max(orders_queue_used_percent)", item)
				}
				c.signals[name] = query
			}
			return nil
		}},
}

// overloadConfig is the configuration of load and overload.
type overloadConfig struct {
	shed struct { // of requests that wait too long
		line   time.Duration
		answer shed.Answer
	}
	prometheusURL string
	signals       map[string]string // PromQL by name
}

const (
	// prometheusEvery is how often a signal is asked of Prometheus, whose own samples are mostly 15
	// s apart and more.
	prometheusEvery = 5 * time.Second
	// proxyLines is how many times as long as at the other doors a request through the proxy may
	// stand in line: its client waits for the upstream's work, too, and others for a decision
	// alone.
	proxyLines = 20
)

// openLoad makes the signals of the service's load, and its overload protection.
func (p *program) openLoad(context.Context) error {
	c := p.c
	if c.concurrency != "" {
		var o overload.Options
		if c.concurrency != "adaptive" {
			o.Fixed, _ = strconv.Atoi(c.concurrency) // the setting was checked
		}
		var err error
		if p.overload, err = overload.New(o); err != nil {
			return fmt.Errorf("proxy.concurrency: %w", err)
		}
	}
	var err error
	if c.shed.line > 0 {
		if p.line, err = shed.New(); err != nil {
			return fmt.Errorf("overload.line: %w; with overload.line: 0s none is needed", err)
		}
	}
	if err := c.ownPrometheus(); err != nil {
		return err
	}
	queries := map[string]load.Query{}
	for name, query := range c.signals {
		if c.prometheusURL == "" {
			return errors.New(
				"prometheus.url: is missing; signals are asked of a Prometheus, such as http://127.0.0.1:9090")
		}
		queries[name] = load.Query{URL: c.prometheusURL, Query: query, Every: prometheusEvery}
	}
	p.signals, err = load.New(load.Options{Queries: queries, Capacity: p.capacity, Watch: p.watched()})
	return err
}

// lineOf returns a door's view of the line; nil for a door that turns nobody away.
func (p *program) lineOf(door string) *shed.Door {
	s := &p.c.shed
	bound := s.line
	if door == "proxy" {
		if bound *= proxyLines; s.answer == shed.Allow {
			return nil // passing a request on is most of its work, and deciding it is little
		}
	}
	return p.line.Door(door, bound, s.answer)
}

// measureLine measures the line until ctx ends.
func (p *program) measureLine(ctx context.Context) {
	if err := p.line.Run(ctx); err != nil {
		p.log.Error("no request is turned away under overload any more", "error", err)
	}
}

// closeLine ends the line, which Run may have done.
func (p *program) closeLine() error {
	if p.line != nil {
		_ = p.line.Close()
	}
	return nil
}

// loadMetrics are the metrics of load.
func (p *program) loadMetrics() []prometheus.Collector {
	o := metrics.LoadOptions{Limiter: p.limiter, Signals: p.signals, List: p.signals.List}
	if p.overload != nil {
		o.Overload = p.overload.Stats
	}
	return []prometheus.Collector{metrics.NewLoad(o)}
}

// watched are the signals that show whether the service is saturated.
func (p *program) watched() []string {
	switch {
	case p.c.insight.Memory == 0:
		return nil
	case p.c.listen.proxy == "":
		return []string{load.CPU, load.Memory, load.Pressure}
	}
	return []string{load.CPU, load.Memory, load.Pressure, load.UpstreamLatency}
}

// capacity is how many requests in flight are 100 percent.
func (p *program) capacity() int {
	if p.c.capacity > 0 || p.overload == nil {
		return p.c.capacity
	}
	return p.overload.Stats().Limit
}

// signalsOf are the signals that the rules of a set follow.
func signalsOf(set *rule.Set) []string {
	var names []string
	for _, f := range followedIn(set) {
		names = append(names, f.name)
	}
	return names
}

// signalStates is a load.Registry as admin.Signals.
type signalStates struct{ registry *load.Registry }

// List implements admin.Signals.
func (s signalStates) List() []admin.SignalState {
	var list []admin.SignalState
	for _, i := range s.registry.List() {
		state := admin.SignalState{Name: i.Name, Kind: string(i.Kind), Used: i.Used, Stale: i.Stale, Error: i.Error,
			Errors: i.Errors}
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

// Push implements admin.Signals.
func (s signalStates) Push(name string, percent float64, ttl time.Duration) error {
	return s.registry.Push(name, percent, ttl)
}

// secretIdentities are the attributes whose values must not be kept.
func secretIdentities(identity map[string]string) []string {
	var hide []string
	for attribute, source := range identity {
		s := strings.ToLower(source)
		if (strings.HasPrefix(s, "header:") || strings.HasPrefix(s, "cookie:")) && httpfield.SecretAttribute(s) {
			hide = append(hide, attribute)
		}
	}
	return hide
}
