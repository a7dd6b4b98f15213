package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// loadSettings are about load: of this server, and of the servers behind it.
var loadSettings = []setting{
	{path: "overload.line", value: "12ms",
		help: "how long a request may stand in line, while this server has more to do than it can, before it is turned away; 0s for any time",
		set:  toDuration(0, func(c *config) *time.Duration { return &c.shed.line })},
	{path: "overload.proxy_line", value: "250ms",
		help: "the same for requests through the proxy, whose clients wait for longer",
		set:  toDuration(0, func(c *config) *time.Duration { return &c.shed.proxyLine })},
	{path: "overload.answer", value: string(shed.Error),
		help: "what becomes of requests that are turned away: error (the caller is told that nothing was decided), deny or allow",
		set: text(func(c *config, s string) error {
			c.shed.answer = shed.Answer(s)
			return c.shed.answer.Check()
		})},
	{path: "prometheus.url",
		help: "URL of the Prometheus that signals are asked of",
		set:  toString(func(c *config) *string { return &c.prometheus.URL })},
	{path: "prometheus.every", value: "5s",
		help: "how often it is asked",
		set:  toDuration(100*time.Millisecond, func(c *config) *time.Duration { return &c.prometheus.Every })},
	{path: "signals", kind: mapping,
		help: "name=query pairs: signals for elastic limits that a Prometheus answers, in percent (PromQL; one with a comma only in the file)",
		set: func(c *config, items []string) error {
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
