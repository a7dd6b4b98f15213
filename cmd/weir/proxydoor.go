package main

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/weir-rl/weir/httplimit"
)

// proxySettings are of the reverse proxy.
var proxySettings = []setting{
	{path: "proxy.upstream",
		help: "URL of the API behind the proxy",
		set: text(func(c *config, s string) error {
			u, err := url.Parse(s)
			if err != nil {
				return errors.New("is no URL; write for example http://127.0.0.1:3000")
			}
			if c.proxy.Upstream = u; s == "" {
				c.proxy.Upstream = nil
			}
			return nil
		})},
	{path: "proxy.domain",
		help: "domain of the requests through the proxy",
		set:  toString(func(c *config) *string { return &c.proxy.Domain })},
	{path: "proxy.path", value: "normal",
		help: "path that the upstream gets: normal (as it was matched) or as_is",
		set: text(func(c *config, s string) error {
			if s != "normal" && s != "as_is" {
				return fmt.Errorf("%q must be normal or as_is", s)
			}
			c.proxy.PathAsIs = s == "as_is"
			return nil
		})},
	{path: "proxy.encoded_slash", value: "refuse",
		help: slashHelp,
		set:  toSlash(func(c *config) *httplimit.EncodedSlash { return &c.proxy.EncodedSlash })},
	{path: "proxy.upstream_host", value: "false",
		help: "send the upstream's own name in the Host header",
		set:  toBool(func(c *config) *bool { return &c.proxy.UpstreamHost })},
	{path: "proxy.timeout", value: "60s",
		help: "longest wait for the upstream's response header",
		set:  toDuration(time.Millisecond, func(c *config) *time.Duration { return &c.proxy.Timeout })},
	{path: "proxy.upstream_idle",
		help: "how long a connection to the upstream is kept that no request uses, less than the upstream keeps it; 0s for not at all; if empty, 1.5s to http, 50s to https and h2c",
		set: text(func(c *config, s string) error {
			if c.proxy.UpstreamIdle = 0; s == "" {
				return nil
			}
			d, err := time.ParseDuration(s)
			if err != nil || d < 0 {
				return fmt.Errorf("%q must be a duration, such as 4s, or 0s for none", s)
			}
			if c.proxy.UpstreamIdle = d; d == 0 {
				c.proxy.UpstreamIdle = -1 // 0 is the default there
			}
			return nil
		})},
	{path: "proxy.resend", value: "true",
		help: "send a request once more, on a new connection, if the upstream closed a kept one before any byte of an answer: GET, HEAD, OPTIONS, TRACE, PUT, DELETE, and what has an Idempotency-Key, with a body of at most 64 KiB",
		set: func(c *config, items []string) error {
			var again bool
			err := toBool(func(*config) *bool { return &again })(c, items)
			c.proxy.SendOnce = !again
			return err
		}},
	{path: "proxy.body_timeout", value: "60s",
		help: "longest pause of a client in the middle of a request body, over HTTP/2 until the answer begins; 0s for any",
		set: func(c *config, items []string) error {
			err := toDuration(0, func(c *config) *time.Duration { return &c.proxy.BodyTimeout })(c, items)
			if c.proxy.BodyTimeout == 0 {
				c.proxy.BodyTimeout = -1 // none; 0 is the default there
			}
			return err
		}},
	{path: "proxy.body_rate", value: "1KiB",
		help: "bytes of a request body that must come in a second until the answer begins, on average after the first 10 s; 0 for any",
		set: text(func(c *config, s string) (err error) {
			if c.proxy.BodyRate = -1; s != "0" {
				c.proxy.BodyRate, err = parseBytes(s)
			}
			return err
		})},
	{path: "proxy.concurrency",
		help: "bound on the requests that the upstream works on at a time: adaptive finds it, a number fixes it; none if empty",
		set: text(func(c *config, s string) error {
			if n, err := strconv.Atoi(s); s != "" && s != "adaptive" && (err != nil || n < 1 || n > 1_000_000) {
				return fmt.Errorf("%q must be adaptive, or a number from 1 to 1000000", s)
			}
			c.concurrency = s
			return nil
		})},
	{path: "proxy.abandoned", value: "keep",
		help: "requests whose clients hang up, where proxy.concurrency or a limit on concurrency holds: keep (their place, until the upstream has answered) or cut (at once)",
		set: text(func(c *config, s string) error {
			if s != "keep" && s != "cut" {
				return fmt.Errorf("%q must be keep or cut", s)
			}
			c.proxy.CutAbandoned = s == "cut"
			return nil
		})},
	{path: "proxy.capacity", value: "0",
		help: "requests in flight that are 100 % of the signal in_flight; 0: what proxy.concurrency admits",
		set:  toInt(0, 1_000_000, func(c *config) *int { return &c.capacity })},
	{path: "proxy.max_held", value: "10000",
		help: "bound on the requests that wait for their turn (on_limit: {wait: …})",
		set:  toInt(1, 1_000_000, func(c *config) *int { return &c.proxy.MaxHeld })},
}
