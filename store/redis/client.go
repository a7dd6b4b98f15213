package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	weir "github.com/weir-rl/weir"
)

// Redis' client: rueidis, which finds masters, follows redirections, and connects anew. It asks nothing twice that could
// charge twice.

// errAway is what errors are while there is no client.
var errAway = errors.New("redis store: not connected")

// clients are two ways to the same servers. Groups of decisions have connections of their own: while nobody else uses
// one, rueidis writes and reads on it without handing over to other goroutines, which is quicker by half.
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
		err = loadLibrary(ctx, c.other)
		cancel()
		if err != nil {
			c.close()
		}
	}
	if err != nil {
		if s.failure.Load() == nil {
			s.o.Logf("redis store: %s: %v; trying again until it is there", s.target, err)
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

// loadLibrary puts the functions on every master that is there.
func loadLibrary(ctx context.Context, client rueidis.Client) error {
	return loadFunctions(ctx, client, library)
}

// loadFunctions puts a library on every master that is there.
func loadFunctions(ctx context.Context, client rueidis.Client, library string) error {
	var failed error
	loaded := false
	for _, node := range client.Nodes() {
		err := node.Do(ctx, node.B().Arbitrary("FUNCTION", "LOAD", "REPLACE").Args(library).Build()).Error()
		if e, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(e.Error(), "READONLY") {
			continue // a replica: its master tells it
		}
		loaded = loaded || err == nil
		failed = errors.Join(failed, err)
	}
	switch {
	case loaded:
		return nil // on a master that is away now they will be missed
	case failed == nil:
		return errors.New("no master was found")
	}
	return failed
}

// notCharged is an error of a call that has charged nothing.
type notCharged struct{ error }

func (e notCharged) Unwrap() error        { return e.error }
func (e notCharged) Is(target error) bool { return target == weir.ErrNotCharged }

// notRun are what Redis answers before it runs a function (or, but for BUSY and NOPERM then, inside of one).
var notRun = []string{"LOADING", "READONLY", "OOM", "NOPERM", "NOAUTH", "WRONGPASS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "NOREPLICAS"}

// didNothing reports whether it is certain that a call that failed so has charged nothing.
func didNothing(err error) bool {
	if e, ok := rueidis.IsRedisErr(err); ok {
		inside := strings.Contains(e.Error(), "script") || strings.Contains(e.Error(), "@user_")
		return isMissing(err) || !inside && slices.ContainsFunc(notRun, func(code string) bool { return strings.HasPrefix(e.Error(), code) })
	}
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial" || errors.Is(err, errAway)
}

// isMissing reports whether a function was not there (FUNCTION FLUSH, an empty server in the old one's place).
func isMissing(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(e.Error(), "Function not found")
}

// isTryAgain reports whether keys of one call lie on two servers for now, as a slot is being moved.
func isTryAgain(err error) bool {
	e, ok := errors.AsType[*rueidis.RedisError](err) // rueidis.IsRedisErr does not look into what wraps it
	return ok && e.IsTryAgain()
}

// do asks, and asks again what Redis said that it did not do: for want of the functions, or (if patient) while keys are
// being moved.
func (s *Store) do(ctx context.Context, client rueidis.Client, patient bool, build func(rueidis.Builder) rueidis.Completed) rueidis.RedisResult {
	wait := time.Millisecond
	for loads := 0; ; {
		result := client.Do(ctx, build(client.B()))
		err := result.Error()
		switch {
		case err == nil:
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

// reload loads the functions, once for all that miss them at the same time.
func (s *Store) reload(ctx context.Context, client rueidis.Client) error {
	before := s.metrics.loads.Load()
	s.loading.Lock()
	defer s.loading.Unlock()
	if s.metrics.loads.Load() != before {
		return nil
	}
	s.metrics.loads.Add(1)
	return loadLibrary(ctx, client)
}

// call asks a function other than take.
func (s *Store) call(ctx context.Context, client rueidis.Client, function string, keys, args []string) (rueidis.RedisResult, error) {
	return s.callOnce(ctx, client, true, function, keys, args)
}

// callOnce is call that (unless patient) does not wait while keys are being moved.
func (s *Store) callOnce(ctx context.Context, client rueidis.Client, patient bool, function string, keys, args []string) (rueidis.RedisResult, error) {
	s.metrics.calls.Add(1)
	result := s.do(ctx, client, patient, func(b rueidis.Builder) rueidis.Completed {
		return b.Arbitrary("FCALL").Args(function, strconv.Itoa(len(keys))).Keys(keys[0]).Args(keys[1:]...).Args(args...).Build()
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

// Ping asks whether Redis decides: it calls a function on every partition, which changes nothing. It is an error if less than
// half of them answer.
func (s *Store) Ping(ctx context.Context) error {
	c, err := s.connected()
	if err != nil {
		return err
	}
	client := c.other
	commands := make([]rueidis.Completed, len(s.partitions))
	for i, p := range s.partitions {
		commands[i] = client.B().Arbitrary("FCALL").Args(functionRead, "1").Keys(p.prefix).Args("").Build()
	}
	var failed error
	failures := 0
	for _, result := range client.DoMulti(ctx, commands...) {
		err := result.Error()
		if isMissing(err) {
			err = s.reload(ctx, client)
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

// warnOfEviction tells if Redis may forget counters before their time.
func (s *Store) warnOfEviction(client rueidis.Client) {
	ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
	defer cancel()
	for address, node := range client.Nodes() {
		settings, err := node.Do(ctx, node.B().ConfigGet().Parameter("maxmemory").Parameter("maxmemory-policy").Build()).AsStrMap()
		if err != nil {
			continue // CONFIG is not for everybody
		}
		if settings["maxmemory"] != "0" && settings["maxmemory-policy"] != "noeviction" && settings["maxmemory-policy"] != "" {
			s.o.Logf("redis %s: maxmemory-policy is %s: at its bound of %s bytes it forgets counters that are in use, and their limits begin afresh; set it to noeviction",
				address, settings["maxmemory-policy"], settings["maxmemory"])
		}
	}
}
