package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/telemetry"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// storage is where the counters live.
type storage struct {
	weir.Store // what the limiter asks
	keys       server.KeyStore
	local      *memory.Store
	// With Redis: local decides while it is away.
	redis    *redis.Store
	fallback *fallback.Store
	entered  [telemetry.BreakerStates]atomic.Uint64 // how often the circuit breaker came to each state
}

// storeMemory is the setting of the embedded store.
const storeMemory = "memory"

// checkStore reports whether s names a store. Its error holds no credentials.
func checkStore(s string) error {
	if s == storeMemory {
		return nil
	}
	err := redis.CheckURL(s)
	if err == nil {
		return nil
	}
	return fmt.Errorf("write memory, or the URL of a Redis: %w", err)
}

// withoutCredentials is a URL of checkStore without what nobody is to read.
func withoutCredentials(text string) string {
	scheme, rest, _ := strings.Cut(text, "://")
	rest, _, _ = strings.Cut(rest, "?")
	hosts, path, _ := strings.Cut(rest, "/")
	hosts = hosts[strings.LastIndexByte(hosts, '@')+1:]
	return strings.TrimSuffix(scheme+"://"+hosts+"/"+path, "/")
}

// openStore opens the store that is configured; if the configuration is only checked, one that keeps nothing.
func (p *program) openStore(check bool) error {
	c := p.c
	o := memory.Options{MaxKeys: c.memory.maxKeys, MaxBytes: c.memory.maxBytes, Logf: p.logf(slog.LevelWarn)}
	shared := c.store != storeMemory
	if shared && c.snapshot.path != "" {
		return errors.New("snapshot.path: is for the embedded store. With Redis the counters live there and outlast this program; " +
			"what keeps them over a restart of Redis is its own configuration (appendonly). Leave snapshot.path empty")
	}
	if !check && !shared {
		o.Snapshot, o.SnapshotEvery = c.snapshot.path, c.snapshot.every
	}
	local, err := memory.New(o)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	p.storage = &storage{Store: local, keys: memoryKeys{local}, local: local}
	switch {
	case check:
		return nil
	case !shared:
		p.log.Info("the counters live in this process", "store", c.store)
		return nil
	}
	p.log.Info("the counters live in Redis", "store", withoutCredentials(c.store))
	if err := p.openRedis(); err != nil {
		return errors.Join(err, local.Close())
	}
	return nil
}

// openRedis puts Redis before the store in memory.
func (p *program) openRedis() error {
	c, s := p.c, p.storage
	var err error
	s.redis, err = redis.Open(redis.Options{
		URL: c.store, Prefix: c.redis.prefix, Partitions: c.redis.partitions, Connections: c.redis.connections, Timeout: c.redis.timeout,
		RememberRefusals: c.redis.rememberRefusals, Heartbeat: c.redis.heartbeat, Logf: p.logf(slog.LevelWarn),
	})
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	s.fallback, err = fallback.New(s.redis, fallback.Options{
		Local: s.local, Deadline: c.redis.deadline, Nodes: s.redis.Nodes, FixedNodes: c.nodes, Probe: s.redis.Ping, Transition: p.storeWent,
	})
	if err != nil {
		return errors.Join(fmt.Errorf("store: %w", err), s.redis.Close())
	}
	s.Store, s.keys = s.fallback, redisKeys{s.redis, s.local}
	s.lookForRedis()
	return nil
}

// lookForRedis makes a Redis that is away when the program starts show as that before the first request asks for it.
func (s *storage) lookForRedis() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.redis.Ping(ctx) == nil || ctx.Err() != nil {
		return
	}
	// It cannot be reached. A few calls that find the same open the circuit breaker; these ask for nothing.
	for range 10 {
		_, _ = s.fallback.Take(ctx, nil, nil)
		if state, _, _ := s.fallback.State(); state != fallback.Closed {
			return
		}
	}
}

// storeWent tells that Redis went away, answers again, or is back.
func (p *program) storeWent(_, to fallback.State, cause error) {
	p.storage.entered[to].Add(1)
	switch to {
	case fallback.Open:
		p.log.Warn("the store is away: "+sharing(p.storage.fallback.Share()), "breaker", to.String(), "cause", oneLine(cause))
	case fallback.HalfOpen:
		p.log.Info("the store answers again", "breaker", to.String())
	default:
		p.log.Info("the store is back", "breaker", to.String())
	}
}

// remark is what an operator should know of a server that is ready.
func (p *program) remark() string {
	s := p.storage
	if s.fallback == nil {
		return ""
	}
	state, since, cause := s.fallback.State()
	if state == fallback.Closed {
		return ""
	}
	return fmt.Sprintf("without the store since %s (%s): %s", since.UTC().Format(time.RFC3339), oneLine(cause), sharing(s.fallback.Share()))
}

// sharing says among how many nodes limits are shared.
func sharing(nodes int) string {
	if nodes == 1 {
		return "this node limits alone"
	}
	return fmt.Sprintf("limits are shared among %d nodes", nodes)
}

func oneLine(err error) string { return strings.ReplaceAll(fmt.Sprint(err), "\n", "; ") }

// readings hands the metrics of the store to o.
func (s *storage) readings(o *telemetry.Options) {
	o.Sizes = func() telemetry.Sizes {
		r := s.local.Stats()
		return telemetry.Sizes{Keys: r.Keys, Bytes: r.Bytes, Evictions: r.Evictions, Overflows: r.Overflows}
	}
	if s.redis == nil {
		return
	}
	o.Redis = func() telemetry.Redis {
		r := s.redis.Stats()
		return telemetry.Redis{
			Calls: r.Calls, Decisions: r.Decisions, Merged: r.Merged, Remembered: r.Remembered, Swaps: r.Swaps, Loads: r.Loads, Failures: r.Failures,
			GivenBack: r.GivenBack, Disagreements: r.Disagreements, Batches: r.Batches[:], Nodes: r.Nodes,
		}
	}
	o.Fallback = func() telemetry.Fallback {
		r := s.fallback.Stats()
		state, _, _ := s.fallback.State()
		f := telemetry.Fallback{
			State: int(state), Trips: r.Trips, LocalAllowed: r.LocalAllowed, LocalDenied: r.LocalDenied, Uncounted: r.Uncounted, Refused: r.Refused,
			DeadlineMisses: r.DeadlineMisses, Settled: r.Settled, Excess: r.Excess, Lost: r.Lost, Share: s.fallback.Share(),
		}
		for i := range s.entered {
			f.Entered[i] = s.entered[i].Load()
		}
		return f
	}
}

func keyState(key []byte, r algo.Result) server.KeyState {
	return server.KeyState{Key: key, Result: r, Refused: !r.Allowed || r.Remaining == 0 && r.SoftLimit == r.Limit}
}

// memoryKeys is memory.Store as the admin API wants it.
type memoryKeys struct{ store *memory.Store }

// Hottest implements server.KeyStore.
func (s memoryKeys) Hottest(_ context.Context, c *rule.Counter, n int) ([]server.KeyState, error) {
	var states []server.KeyState
	for _, i := range s.store.Hottest(c, n) {
		states = append(states, keyState(i.Key, i.Result))
	}
	return states, nil
}

// Peek implements server.KeyStore.
func (s memoryKeys) Peek(_ context.Context, c *rule.Counter, key []byte) (server.KeyState, bool, error) {
	i, ok := s.store.Peek(c, key)
	return keyState(i.Key, i.Result), ok, nil
}

// Reset implements server.KeyStore.
func (s memoryKeys) Reset(_ context.Context, c *rule.Counter, key []byte) (bool, error) {
	return s.store.Reset(c, key), nil
}

// redisKeys is redis.Store as the admin API wants it.
type redisKeys struct {
	store *redis.Store
	local *memory.Store
}

// Hottest implements server.KeyStore.
func (s redisKeys) Hottest(ctx context.Context, c *rule.Counter, n int) ([]server.KeyState, error) {
	infos, err := s.store.Hottest(ctx, c, n)
	var states []server.KeyState
	for _, i := range infos {
		states = append(states, keyState(i.Key, i.Result))
	}
	return states, err
}

// Peek implements server.KeyStore.
func (s redisKeys) Peek(ctx context.Context, c *rule.Counter, key []byte) (server.KeyState, bool, error) {
	i, ok, err := s.store.Peek(ctx, c, key)
	return keyState(i.Key, i.Result), ok, err
}

// Reset implements server.KeyStore. What this node counted while Redis was away is forgotten too.
func (s redisKeys) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	ok, err := s.store.Reset(ctx, c, key)
	if err != nil {
		return false, err
	}
	return s.local.Reset(c, key) || ok, nil
}
