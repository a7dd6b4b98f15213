package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/regions"
)

// storeSettings say where the counters live.
var storeSettings = []setting{
	{Path: "store", Value: storeMemory,
		Help: "where counters live: memory, or what all nodes share: a Redis, as redis://HOST:PORT, rediss://, redis+sentinel:// or redis+cluster://, postgres://HOST:PORT/DATABASE, or cassandra://HOST:PORT/KEYSPACE",
		Set:  settings.Text(func(c *Config, s string) error { c.store = s; return checkStore(s) })},
	{Path: "store.timeout", Value: redis.DefaultTimeout.String(),
		Help: "how long a shared store that hangs is waited for before it is asked again",
		Set:  settings.Duration(time.Millisecond, func(c *Config) *time.Duration { return &c.timeout })},
	{Path: "store.deadline", Value: fallback.DefaultDeadline.String(),
		Help: "how long a decision waits at least for a shared store that is silent before it is made without it",
		Set:  settings.Duration(time.Millisecond, func(c *Config) *time.Duration { return &c.fallback.Deadline })},
	{Path: "store.max_deadline", Value: "1s",
		Help: "how long it waits at most, where the store is known to be slow",
		Set:  settings.Duration(time.Millisecond, func(c *Config) *time.Duration { return &c.fallback.MaxDeadline })},
	{Path: "redis.prefix", Value: redis.DefaultPrefix,
		Help: "beginning of all keys in Redis",
		Set: settings.Text(func(c *Config, s string) error {
			if s == "" || strings.ContainsAny(s, "{}") {
				return fmt.Errorf("%q must not be empty, nor hold { or }, which choose a slot of a Cluster", s)
			}
			c.redis.Prefix = s
			return nil
		})},
	{Path: "redis.partitions", Value: strconv.Itoa(redis.DefaultPartitions),
		Help: "parts into which the keys of a Cluster fall; the same on all nodes",
		Set:  settings.Int(1, 16384, func(c *Config) *int { return &c.redis.Partitions })},
	{Path: "redis.leases.max_keys", Value: strconv.Itoa(lease.DefaultMaxKeys),
		Help: "keys of which this node may hold units that Redis has lent it, where rules ask for that (consistency); 0 for none: then all is decided exactly",
		Set:  settings.Int(0, maxLeaseKeys, func(c *Config) *int { return &c.leases.maxKeys })},
	{Path: "nodes", Value: "0",
		Help: "number of nodes to share limits among while the store is away, at least; it may have named more; 0 if unknown",
		Set:  settings.Int(0, 1<<20, func(c *Config) *int { return &c.fallback.FixedNodes })},
	{Path: "snapshot.path",
		Help: "file that keeps the counters over a restart; none if empty",
		Set:  settings.String(func(c *Config) *string { return &c.memory.Snapshot })},
	{Path: "snapshot.every", Value: "10s",
		Help: "time between two snapshots",
		Set: settings.Duration(10*time.Millisecond,
			func(c *Config) *time.Duration { return &c.memory.SnapshotEvery })},
	{Path: "memory.max_bytes", Value: "1GiB",
		Help: "bound on the bytes of all keys in memory",
		Set:  settings.Bytes(func(c *Config) *int64 { return &c.memory.MaxBytes })},
}

// storeConfig is the configuration of the store.
type storeConfig struct {
	store   string // storeMemory, or the URL of a store that nodes share
	memory  memory.Options
	timeout time.Duration // of any store that nodes share
	// With a Redis only: what no other store has. One connection leads to each server, in which the
	// calls of a moment go together, and Redis has one thread to decide them.
	redis    redis.Options
	fallback fallback.Options // with a shared store only
	leases   struct{ maxKeys int }
}

const (
	// heartbeat is how often this node tells a shared store that it lives, so that all know how
	// many there are. Nodes agree on how long one lasts. A thousand nodes make a thousand small
	// writes a second, which a store carries.
	heartbeat = time.Second
	// rememberRefusals is how long at most a refusal is repeated without asking a shared store. An
	// attack costs the store one question a second for each key then; and where a message that a
	// refusal is over is lost, it is over a second later.
	rememberRefusals = time.Second
)

// storage is where the counters live.
type storage struct {
	store.Store // the store that the limiter uses
	local       *memory.Store
	// With a store that all nodes share: local decides while it is away.
	shared   sharedStore
	redis    *redis.Store // the same, if it is a Redis
	leases   *lease.Store // before redis; nil if none are taken
	fallback *fallback.Store
	regions  *regions.Store          // before fallback; nil if there is one region alone
	peers    []*redis.Store          // of the other regions
	over     atomic.Pointer[overrun] // nil: nothing was admitted beyond a limit
	alone    atomic.Pointer[alone]   // nil: nothing was decided without a store that counts as there
}

// storeMemory is the setting of the embedded store.
const storeMemory = "memory"

// maxLeaseKeys bounds redis.leases.max_keys.
const maxLeaseKeys = 1 << 24

// noLeases says why this server decides nothing on leases; "" if it does. An Envoy that decides by
// itself (RLQS) is lent units all the same.
func (c *Config) noLeases() string {
	switch {
	case c.store == storeMemory:
		return "the counters live in the server itself (store: memory), so that no decision asks anybody else; only Envoys that decide by themselves are lent units"
	case !c.onRedis():
		return "only Redis lends units, and the counters live in " + kindOf(c.store).title
	case c.leases.maxKeys == 0:
		return "redis.leases.max_keys is 0; only Envoys that decide by themselves are lent units"
	}
	return ""
}

// noRegions says why this server is in no region; "" if it is in one.
func (c *Config) noRegions() string {
	switch {
	case c.region != "":
		return ""
	case c.store == storeMemory:
		return "the counters live in the server itself (store: memory); regions need a Redis each"
	case !c.onRedis():
		return "the counters live in " + kindOf(c.store).title + "; regions need a Redis each"
	}
	return "no regions are configured"
}

// openStore opens the store that is configured; if the configuration is only checked, one that
// keeps nothing. The store names this node, for the audit log.
func (p *program) openStore(context.Context) error {
	if err := p.makeStore(); err != nil {
		return err
	}
	p.audit.Begin(p.nodeLabel())
	return nil
}

func (p *program) closeStore() error {
	if p.storage == nil {
		return nil
	}
	return p.storage.Close()
}

func (p *program) makeStore() error {
	c := p.c
	if err := c.checkRegions(); err != nil {
		return err
	}
	o := c.memory
	o.Logger = p.log
	o.MaxKeys = math.MaxInt // the bytes bound them
	shared := c.store != storeMemory
	if shared && o.Snapshot != "" {
		return errors.New(
			"snapshot.path: is for the embedded store. With another one the counters live there and outlast this program; " +
				"what keeps them over a restart of Redis is its own configuration (appendonly). Leave snapshot.path empty")
	}
	if p.check {
		o.Snapshot = "" // an existing file is left alone
	}
	local, err := memory.New(o)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	p.storage = &storage{Store: local, local: local}
	switch {
	case p.check:
		return nil
	case !shared:
		p.log.Info("the counters live in this process", "store", c.store)
		return nil
	}
	p.log.Info("the counters live in "+kindOf(c.store).title, "store", settings.WithoutCredentials(c.store))
	return p.openShared()
}

// returnLeases gives back the units that Redis has lent this node, and reports their use. From then
// on Redis decides.
func (s *storage) returnLeases(ctx context.Context) error {
	if s.leases == nil {
		return nil
	}
	return s.leases.Drain(ctx)
}

// openShared puts the store that all nodes share before the store in memory.
func (p *program) openShared() error {
	c, s := p.c, p.storage
	var err error
	if s.shared, err = kindOf(c.store).open(c, p.log); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	primary := store.Store(s.shared)
	s.redis, _ = s.shared.(*redis.Store)
	if s.redis != nil && c.leases.maxKeys > 0 {
		if s.leases, err = lease.New(s.redis, lease.Options{MaxKeys: c.leases.maxKeys}); err != nil {
			return errors.Join(fmt.Errorf("store: %w", err), s.redis.Close())
		}
		primary = s.leases
	}
	f := c.fallback
	f.Local, f.Nodes, f.Transition, f.Exceeded = s.local, s.shared.Nodes, p.storeWent, p.exceeded
	f.Lasting = p.storeLasts
	f.Unanswered = p.unanswered
	if s.fallback, err = fallback.New(primary, f); err != nil {
		return errors.Join(fmt.Errorf("store: %w", err), primary.Close())
	}
	s.Store = s.fallback
	s.look()
	return p.openRegions()
}

// Close closes the store, and the stores of other regions.
func (s *storage) Close() error {
	failures := []error{s.Store.Close()}
	for _, peer := range s.peers {
		failures = append(failures, peer.Close())
	}
	return errors.Join(failures...)
}

// look makes a store that is away when the program starts show as that before the first
// request asks for it.
func (s *storage) look() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.fallback.Look(ctx)
}

// storeWent logs that the store went away, answers again, or is back.
func (p *program) storeWent(_, to fallback.State, cause error) {
	p.lookForOutages()
	switch to {
	case fallback.Open:
		_, parts := p.storage.fallback.Away()
		p.log.Warn(away(parts, p.storage.fallback.Share()), "store", to.String(), "cause", oneLine(cause))
	case fallback.HalfOpen:
		p.log.Info("the store answers again", "store", to.String())
	default:
		p.log.Info("the store is back", "store", to.String())
	}
}

// lookPatience bounds how long weir serve --check waits for the store.
const lookPatience = 5 * time.Second

// lookAtStore returns a fault of the store that does not pass by itself. A store that is away is no
// error: a server starts without it, too.
func (p *program) lookAtStore(ctx context.Context) error {
	k := kindOf(p.c.store)
	if k == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	err := k.look(ctx, p.c)
	if fault, ok := errors.AsType[*store.LastingError](err); ok {
		return fmt.Errorf("store: %w", fault)
	}
	if err != nil {
		p.log.Warn(
			"the store does not answer, so that nothing is known of it; a server limits by its share until it does", "cause", oneLine(err))
	}
	return nil
}

// storeLasts logs a fault of the store that does not pass by itself.
func (p *program) storeLasts(fault *store.LastingError) {
	p.log.Error(fault.Advice, "cause", oneLine(fault.Err))
}

// lasting returns the fault of the store that does not pass by itself; nil if there is none.
func (s *storage) lasting() *store.LastingError {
	if s == nil || s.fallback == nil {
		return nil
	}
	return s.fallback.Lasting()
}

// away says that the store, or some of its parts, cannot be reached, and which nodes decide
// instead.
func away(parts, nodes int) string {
	switch {
	case parts == 1:
		return "the store is away: " + sharing(nodes)
	case nodes == 1:
		return "parts of the store are away: their keys are limited by this node alone"
	}
	return fmt.Sprintf("parts of the store are away: the limits of their keys are shared among %d nodes", nodes)
}

// excessLines bounds the rules that are logged one by one.
const excessLines = 10

// exceeded logs the units that this node has admitted beyond limits while the store did not answer,
// or not in time.
func (p *program) exceeded(since time.Time, rules []fallback.Excess) {
	units, others := uint64(0), uint64(0)
	for i, r := range rules { // in descending order of units
		units += r.Units
		if i >= excessLines {
			others += r.Units
			continue
		}
		p.log.Warn("more was admitted than the limit, as the store did not answer in time",
			"domain", r.Domain, "rule", r.Rule, "units", r.Units, "since", r.Since.UTC().Format(time.RFC3339))
	}
	if len(rules) > excessLines {
		p.log.Warn("more was admitted than the limits of other rules too",
			"rules", len(rules)-excessLines, "units", others, "since", since.UTC().Format(time.RFC3339))
	}
	p.storage.over.Store(&overrun{at: time.Now(), since: since, units: units, rule: rules[0].Rule, rules: len(rules)})
}

// overrun is the last report to exceeded.
type overrun struct {
	at, since time.Time
	units     uint64
	rule      string // the one of the most units
	rules     int
}

// unanswered logs decisions of this node by itself while the store counted as there.
func (p *program) unanswered(u fallback.Unanswered) {
	p.log.Warn("this node decided by its share, as the store did not answer in time",
		"decisions", u.Decisions, "units", u.Units, "since", u.Since.UTC().Format(time.RFC3339), "cause", oneLine(u.Cause))
	p.storage.alone.Store(&alone{Unanswered: u, at: time.Now()})
}

// alone is the last report to unanswered.
type alone struct {
	fallback.Unanswered
	at time.Time
}

// overrunShows is for how long /readyz speaks of an overrun, and of decisions without the store.
const overrunShows = 5 * time.Minute

// remark is shown to an operator about the store of a server that is ready.
func (p *program) remark() string {
	s := p.storage
	if s.fallback == nil {
		return ""
	}
	var remarks []string
	if state, since, cause := s.fallback.State(); state != fallback.Closed {
		what := "the store"
		if away, parts := s.fallback.Away(); parts > 1 {
			what = fmt.Sprintf("%d of %d parts of the store", away, parts)
		}
		remarks = append(remarks, fmt.Sprintf("without %s since %s (%s): %s",
			what, since.UTC().Format(time.RFC3339), oneLine(cause), sharing(s.fallback.Share())))
	}
	if o := s.over.Load(); o != nil && time.Since(o.at) < overrunShows {
		text := fmt.Sprintf("%d beyond the limit of %s", o.units, o.rule)
		if o.rules > 1 {
			text = fmt.Sprintf("%d beyond the limits of %s and other rules", o.units, o.rule)
		}
		remarks = append(remarks, text+" admitted since "+o.since.UTC().Format(time.RFC3339))
	}
	if u := s.alone.Load(); u != nil && time.Since(u.at) < overrunShows {
		remarks = append(remarks,
			fmt.Sprintf(
				"%d decisions by this node's share since %s, as the store did not answer in time; they admitted %d units (%s)",
				u.Decisions, u.Since.UTC().Format(time.RFC3339), u.Units, oneLine(u.Cause)))
	}
	return strings.Join(remarks, "; ")
}

// sharing says among how many nodes limits are shared.
func sharing(nodes int) string {
	if nodes == 1 {
		return "this node limits alone"
	}
	return fmt.Sprintf("limits are shared among %d nodes", nodes)
}

func oneLine(err error) string { return strings.ReplaceAll(fmt.Sprint(err), "\n", "; ") }
