package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/store"
)

// The client of Redis: rueidis, which finds masters, follows redirections, and reconnects. It
// repeats no call by itself: what may have been made is sent again as again.go says.

// errAway is the error while there is no client.
var errAway = errors.New("redis store: not connected")

// clients are two clients of the same servers. Batches of decisions have connections of their own:
// on a connection with one user rueidis writes and reads without handing over to other goroutines,
// which is faster by half.
type clients struct {
	decide rueidis.Client
	other  rueidis.Client
}

func (c *clients) close() {
	c.decide.Close()
	c.other.Close()
}

// connected returns the clients, or why there are none.
func (s *Store) connected() (*clients, error) {
	if c := s.clients.Load(); c != nil {
		return c, nil
	}
	if err := s.failure.Load(); err != nil {
		return nil, *err
	}
	return nil, errAway
}

// connect makes the client: at once if Redis is there, else as soon as it is.
func (s *Store) connect() {
	if s.dial() {
		return
	}
	s.background(func() {
		for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(wait):
			}
			if s.dial() {
				return
			}
		}
	})
}

// dial tries to make the client once.
func (s *Store) dial() bool {
	c, err := s.newClients()
	if err == nil {
		ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
		if err = s.load(ctx, c.other, lua().library); err == nil {
			_ = s.ping(ctx, c.other) // learns the names of the functions' memories
		}
		cancel()
		if mayNot(err) {
			// A user of another region, say: it can use the functions that nodes of this build have
			// loaded.
			s.o.Logger.Warn(
				fmt.Sprintf(
					"redis store: %s: this user may not load functions (function|load): it depends on nodes of the same build that do", s.target))
			err = nil
		}
		if err != nil {
			c.close()
		}
	}
	if err = s.target.lasting(err); err != nil {
		if s.failure.Load() == nil {
			s.o.Logger.Warn(fmt.Sprintf("redis store: %s: %v; trying again until it is there", s.target, err))
		}
		err = fmt.Errorf("%w: %s: %w", errAway, s.target, err)
		s.failure.Store(&err)
		return false
	}
	s.clients.Store(c)
	s.background(func() { s.warnOfEviction(c.other) })
	if s.o.Heartbeat > 0 {
		s.background(func() { s.beat(c.other) })
	}
	if s.refusals != nil {
		s.background(func() { s.refusals.listen(c.other) })
	}
	return true
}

func (s *Store) newClients() (*clients, error) {
	options := s.target.options(&s.o)
	options.DialCtxFn = s.open.dial
	other, err := rueidis.NewClient(options)
	if err != nil {
		return nil, err
	}
	decide, err := rueidis.NewClient(options)
	if err != nil {
		other.Close()
		return nil, err
	}
	return &clients{decide: decide, other: other}, nil
}

func (t *target) options(o *Options) rueidis.ClientOption {
	multiplex := 0
	for 1<<multiplex < o.Connections {
		multiplex++
	}
	options := rueidis.ClientOption{
		InitAddress: t.addresses, Username: t.user, Password: t.password, SelectDB: t.database, TLSConfig: t.tls,
		ForceSingleClient: !t.cluster && t.master == "",
		DisableCache:      true, DisableRetry: true, ClientName: "weir", ClientSetInfo: rueidis.DisableClientSetInfo,
		PipelineMultiplex: multiplex, RingScaleEachConn: 8,
		ReadBufferEachConn: 64 << 10, WriteBufferEachConn: 64 << 10,
		Dialer:           net.Dialer{Timeout: time.Second, KeepAlive: time.Second},
		ConnWriteTimeout: 3 * time.Second,
	}
	if multiplex == 0 {
		options.PipelineMultiplex = -1 // rueidis: one connection
	}
	if t.cluster {
		options.ClusterOption.ShardsRefreshInterval = 10 * time.Second
	}
	if t.master != "" {
		options.Sentinel = rueidis.SentinelOption{
			MasterSet: t.master, Username: t.sentinelUser, Password: t.sentinelPassword, TLSConfig: t.tls, ClientName: "weir",
			Dialer: options.Dialer,
		}
	}
	return options
}

// notCharged is an error of a call that has charged nothing.
type notChargedError struct{ error }

func (e notChargedError) Unwrap() error        { return e.error }
func (e notChargedError) Is(target error) bool { return target == store.ErrNotCharged }

// notRun are the codes of errors that Redis returns before it runs a function. All but BUSY and
// NOPERM can also come from within one.
var notRun = []string{"LOADING", "READONLY", "OOM", "NOPERM", "NOAUTH", "WRONGPASS", "MASTERDOWN", "CLUSTERDOWN",
	"TRYAGAIN", "BUSY", "MISCONF", "NOREPLICAS"}

// didNothing reports whether a call that failed with err has certainly charged nothing.
func didNothing(err error) bool {
	if e, ok := rueidis.IsRedisErr(err); ok {
		inside := strings.Contains(e.Error(), "script") || strings.Contains(e.Error(), "@user_")
		return isMissing(err) || refusedInScript(e) || !inside && slices.ContainsFunc(notRun,
			func(code string) bool { return strings.HasPrefix(e.Error(), code) })
	}
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" || errors.Is(err, errAway)
}

// refusedInScript reports whether Redis refused the first write of a script, as it refuses a
// function before it runs. Nothing was written: the reason holds for all writes of a script.
func refusedInScript(e *rueidis.RedisError) bool {
	text := e.Error()
	return strings.Contains(text, "READONLY You can't write against a read only replica") ||
		strings.Contains(text, "OOM command not allowed when used memory") ||
		strings.Contains(text, "MISCONF Redis is configured to save") ||
		strings.Contains(text, "MISCONF Errors writing to the AOF file")
}

// isMissing reports whether the function was missing: after FUNCTION FLUSH or SCRIPT FLUSH, or on a
// server in the old one's place, which may be older.
func isMissing(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	return ok && (strings.Contains(e.Error(), "Function not found") || strings.HasPrefix(e.Error(), "NOSCRIPT") ||
		noFunctions(err))
}

// mayNot reports whether the user is not permitted to do something.
func mayNot(err error) bool {
	e, ok := errors.AsType[*rueidis.RedisError](err)
	return ok && strings.HasPrefix(e.Error(), "NOPERM")
}

// isTryAgain reports whether the keys of one call are on two servers, while a slot is migrating.
func isTryAgain(err error) bool {
	// rueidis.IsRedisErr does not unwrap errors
	e, ok := errors.AsType[*rueidis.RedisError](err)
	return ok && e.IsTryAgain()
}

// do sends a command. It repeats one that Redis certainly did not execute: because the functions
// were missing, or, if patient, while a slot is migrating.
func (s *Store) do(
	ctx context.Context, client rueidis.Client, patient bool, build func(rueidis.Builder) rueidis.Completed,
) rueidis.RedisResult {
	wait := time.Millisecond
	for loads := 0; ; {
		result := client.Do(ctx, build(client.B()))
		err := result.Error()
		switch {
		case err == nil:
			return result
		case isReadOnly(err):
			s.redial()
			return result
		case isMissing(err) && loads < 3:
			loads++
			if s.reload(ctx, client) != nil {
				return result
			}
		case isTryAgain(err) && patient:
			select {
			case <-ctx.Done():
				return result
			case <-time.After(wait):
				wait = min(2*wait, 50*time.Millisecond)
			}
		default:
			return result
		}
	}
}

// reload loads the functions, once for all callers that miss them at the same time.
func (s *Store) reload(ctx context.Context, client rueidis.Client) error {
	before := s.metrics.loads.Load()
	s.loading.Lock()
	defer s.loading.Unlock()
	if s.metrics.loads.Load() != before {
		return nil
	}
	s.metrics.loads.Add(1)
	err := s.load(ctx, client, lua().library)
	s.masterless.Store(errors.Is(err, errNoMaster))
	if errors.Is(err, errNoMaster) {
		s.redial()
	}
	return err
}

// call calls a function that changes the same if it is called again.
func (s *Store) call(ctx context.Context, client rueidis.Client, function string, keys,
	args []string) (rueidis.RedisResult, error) {
	s.metrics.calls.Add(1)
	result := s.do(ctx, client, true, func(b rueidis.Builder) rueidis.Completed {
		// On Redis 6 there is one partition.
		return s.invoke(b, lua().library, s.partitions[0].scriptKeys, function, keys, args)
	})
	return result, result.Error()
}

// Time returns Redis' clock, in µs since the Unix epoch.
func (s *Store) Time(ctx context.Context) (int64, error) {
	if s.o.Clock != nil {
		return s.o.Clock(), nil
	}
	c, err := s.connected()
	if err != nil {
		return 0, err
	}
	client := c.other
	parts, err := client.Do(ctx, client.B().Time().Build()).AsIntSlice()
	if err == nil && len(parts) != 2 {
		err = errors.New("it is no pair")
	}
	if err != nil {
		return 0, fmt.Errorf("redis store: TIME: %w", err)
	}
	return parts[0]*1_000_000 + parts[1], nil
}

// Ping checks that Redis decides: it calls a function that changes nothing on every partition, and
// fails if less than half of them answer.
func (s *Store) Ping(ctx context.Context) error {
	c, err := s.connected()
	if err != nil {
		return err
	}
	return s.ping(ctx, c.other)
}

func (s *Store) ping(ctx context.Context, client rueidis.Client) error {
	commands := make([]rueidis.Completed, len(s.partitions))
	for i, p := range s.partitions {
		commands[i] = p.question(client.B())
	}
	var failed error
	failures := 0
	for i, result := range client.DoMulti(ctx, commands...) {
		err := s.partitions[i].learnMemory(result)
		switch {
		case isMissing(err):
			err = s.reload(ctx, client)
		case isReadOnly(err):
			s.redial()
		}
		if err != nil {
			failed = err
			failures++
		}
	}
	if 2*failures > len(commands) {
		return fmt.Errorf("redis store: %w", failed)
	}
	return nil
}

// PingPart implements store.Parted: it calls a function in the partition that changes nothing.
func (s *Store) PingPart(ctx context.Context, part int) error {
	c, err := s.connected()
	if err != nil {
		return err
	}
	p, asked := s.partitions[part], s.monotonic()
	if err = p.look(ctx, c.other); err != nil {
		return fmt.Errorf("redis store: %w", s.target.lasting(err))
	}
	now := s.monotonic()
	p.detector.Answered(now, now-asked)
	return nil
}

// warnOfEviction logs if Redis may evict counters that are in use.
func (s *Store) warnOfEviction(client rueidis.Client) {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	for address, node := range client.Nodes() {
		settings, err := node.Do(ctx,
			node.B().ConfigGet().Parameter("maxmemory").Parameter("maxmemory-policy").Build()).AsStrMap()
		if err != nil {
			continue // the user may not be allowed CONFIG
		}
		if settings["maxmemory"] != "0" && settings["maxmemory-policy"] != "noeviction" &&
			settings["maxmemory-policy"] != "" {
			s.o.Logger.Warn(
				fmt.Sprintf(
					"redis %s: maxmemory-policy is %s: at its bound of %s bytes it forgets counters that are in use, and their limits begin afresh; set it to noeviction",
					address, settings["maxmemory-policy"], settings["maxmemory"]))
		}
	}
}
