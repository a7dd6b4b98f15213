package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cassandra"
	"github.com/weir-rl/weir/store/postgres"
	"github.com/weir-rl/weir/store/redis"
)

// sharedStore is a store over a network, which all nodes share.
type sharedStore interface {
	store.Store
	Nodes() int   // that are alive; 0 if that is not known
	Name() string // of this node, among them
}

// sharedKind is a kind of such stores.
type sharedKind struct {
	name    string   // as nodes report it
	title   string   // for people
	system  string   // by OpenTelemetry's semantic conventions (db.system.name)
	schemes []string // of URLs, without what follows a +
	check   func(url string) error
	// look asks the store whether it could decide, for weir serve --check.
	look func(ctx context.Context, c *Config) error
	open func(c *Config, log *slog.Logger) (sharedStore, error)
}

const kindRedis = "redis"

var sharedKinds = []*sharedKind{
	{
		name: kindRedis, title: "Redis", system: "redis", schemes: []string{"redis", "rediss"}, check: redis.CheckURL,
		look: func(ctx context.Context, c *Config) error {
			o := c.redis
			o.URL, o.Timeout = c.store, c.timeout
			return redis.Check(ctx, o)
		},
		open: func(c *Config, log *slog.Logger) (sharedStore, error) {
			o := c.redis
			o.URL, o.Logger, o.Timeout, o.RememberRefusals, o.Heartbeat = c.store, log, c.timeout, rememberRefusals,
				heartbeat
			return redis.Open(o)
		},
	},
	{
		name: "postgres", title: "PostgreSQL", system: "postgresql", schemes: []string{"postgres", "postgresql"}, check: postgres.CheckURL,
		look: func(ctx context.Context, c *Config) error {
			return postgres.Check(ctx, postgres.Options{URL: c.store, Timeout: c.timeout})
		},
		open: func(c *Config, log *slog.Logger) (sharedStore, error) {
			return postgres.Open(postgres.Options{
				URL: c.store, Logger: log, Timeout: c.timeout, RememberRefusals: rememberRefusals, Heartbeat: heartbeat,
			})
		},
	},
	{
		name: "cassandra", title: "Cassandra", system: "cassandra", schemes: []string{"cassandra"}, check: cassandra.CheckURL,
		look: func(ctx context.Context, c *Config) error {
			return cassandra.Check(ctx, cassandra.Options{URL: c.store, Timeout: c.timeout})
		},
		open: func(c *Config, log *slog.Logger) (sharedStore, error) {
			return cassandra.Open(cassandra.Options{
				URL: c.store, Logger: log, Timeout: c.timeout, RememberRefusals: rememberRefusals, Heartbeat: heartbeat,
			})
		},
	},
}

// kindOf returns the kind of store that a URL names; nil if it names none.
func kindOf(url string) *sharedKind {
	scheme, _, found := strings.Cut(url, "://")
	scheme, _, _ = strings.Cut(scheme, "+")
	at := slices.IndexFunc(sharedKinds, func(k *sharedKind) bool { return found && slices.Contains(k.schemes, scheme) })
	if at < 0 {
		return nil
	}
	return sharedKinds[at]
}

// onRedis reports whether the counters live in Redis.
func (c *Config) onRedis() bool {
	k := kindOf(c.store)
	return k != nil && k.name == kindRedis
}

// checkStore reports whether s names a store. Its error holds no credentials.
func checkStore(s string) error {
	if s == storeMemory {
		return nil
	}
	k := kindOf(s)
	if k == nil {
		scheme, _, found := strings.Cut(s, "://")
		if !found {
			return errors.New("write memory, or the URL of a store, such as redis://HOST:PORT: there is no scheme")
		}
		return fmt.Errorf("write memory, or the URL of a store, such as redis://HOST:PORT: the scheme %q is not known",
			scheme)
	}
	return k.check(s)
}
