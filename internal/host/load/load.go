// Package load measures the load of a service, for elastic limits. It has signals of this machine
// (cpu, memory, pressure) and of the requests that pass through (in_flight, upstream_latency),
// pushed values, and answers of a Prometheus. Each goes through a filter, so that limits that
// follow it do not flap; see filter.
//
// Begin with Registry (load.go), which implements weir.Signals.
package load

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The signals that are measured. No other may have their names.
const (
	CPU             = "cpu"
	Memory          = "memory"
	Pressure        = "pressure"
	InFlight        = "in_flight"
	UpstreamLatency = "upstream_latency"
)

// Timing.
const (
	tick = 100 * time.Millisecond // how often filters move on
	// watchTick is how often they do while no rule uses one, and somebody only watches.
	watchTick = time.Second
	// a signal without a sample for that long, or for three intervals, is stale
	leastStale  = 10 * time.Second
	defaultTTL  = 10 * time.Second // of a pushed value
	mostTTL     = 24 * time.Hour
	mostPushed  = 1000 // signals
	longestName = 100
)

// Options configure New. The zero value is right where nothing is asked of a Prometheus.
type Options struct {
	// Root is the file system that contains proc and sys; nil means this machine's.
	Root fs.FS
	// Capacity is how many requests in flight are 100 percent of in_flight; nil, or one that is not
	// above 0, says that it is not known. It must be quick, and safe for concurrent use.
	Capacity func() int
	// Watch names signals that are measured whether rules use them or not; they take next to no
	// time.
	Watch []string
	// Queries are signals that a Prometheus answers, by name.
	Queries map[string]Query
	// Client asks it; nil is one of its own.
	Client *http.Client
}

// Registry holds signals. Safe for concurrent use. Make one with New; its signals move while Run
// runs.
type Registry struct {
	o        Options
	requests requests
	signals  atomic.Pointer[map[string]*signal] // replaced, never changed
	// of Run, which sleeps while nothing is to be done; room for one
	wake     chan struct{}
	fetching sync.WaitGroup

	mu sync.Mutex // guards the fields of signals that are not atomic, and the writers of the map
}

// signal is one signal.
type signal struct {
	name    string
	kind    Kind
	value   atomic.Int32 // filtered, or unknown
	measure source       // of Measured: used by Run alone
	query   *Query       // of Queried
	every   time.Duration

	// Guarded by Registry.mu.
	used     bool
	watched  bool      // Options.Watch; never changes
	busy     bool      // a query is under way
	asked    time.Time // when a sample was last tried
	sampled  time.Time // when raw came; zero for never
	raw      float64
	stale    time.Duration // the age at which raw no longer counts
	filter   filter
	problem  string // of the last try; "" if it went well
	problems uint64
}

// unknown is the value of a signal without one.
const unknown = -1

// source measures a signal. ok is false if there is nothing to say yet.
type source func(now time.Time) (percent float64, ok bool, err error)

// Kind is where a signal comes from.
type Kind string

// The kinds.
const (
	Measured Kind = "measured"
	Pushed   Kind = "pushed"
	Queried  Kind = "query"
)

// New returns a Registry. Its errors say which query to change.
func New(o Options) (*Registry, error) {
	if o.Root == nil {
		o.Root = os.DirFS("/")
	}
	if o.Client == nil {
		o.Client = &http.Client{}
	}
	r := &Registry{o: o, wake: make(chan struct{}, 1)}
	all := map[string]*signal{}
	system := system{root: o.Root}
	for _, m := range []struct {
		name    string
		every   time.Duration
		measure source
	}{
		{CPU, 500 * time.Millisecond, (&cpu{system: system}).sample},
		{Memory, time.Second, system.memory},
		{Pressure, 500 * time.Millisecond, (&pressure{system: system}).sample},
		{InFlight, tick, r.inFlight},
		{UpstreamLatency, 500 * time.Millisecond, r.latency},
	} {
		all[m.name] = newSignal(m.name, Measured, m.every)
		all[m.name].measure = m.measure
		all[m.name].watched = slices.Contains(o.Watch, m.name)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Queries)) {
		if err := checkName(name); err != nil {
			return nil, fmt.Errorf("signals: %w", err)
		}
		if _, taken := all[name]; taken {
			return nil, fmt.Errorf("signals.%s: weir measures %s itself; give the query another name", name, name)
		}
		q := o.Queries[name]
		if err := q.prepare(); err != nil {
			return nil, fmt.Errorf("signals.%s.%w", name, err)
		}
		all[name] = newSignal(name, Queried, q.Every)
		all[name].query = &q
	}
	r.signals.Store(&all)
	return r, nil
}

func newSignal(name string, kind Kind, every time.Duration) *signal {
	s := &signal{name: name, kind: kind, every: every, stale: max(3*every, leastStale)}
	s.value.Store(unknown)
	return s
}

// checkName reports why a signal cannot be called name.
func checkName(name string) error {
	if name == "" || len(name) > longestName {
		return fmt.Errorf("the name of a signal has 1 to %d characters", longestName)
	}
	for i := range len(name) {
		if c := name[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return fmt.Errorf("%q is no name of a signal; it is made of a-z, 0-9 and the characters - _ . only", name)
		}
	}
	return nil
}

// Signal returns the filtered value of a signal in whole percent; ok is false for one that is not
// known, not in use, or stale.
func (r *Registry) Signal(name string) (percent int, ok bool) {
	s := (*r.signals.Load())[name]
	if s == nil {
		return 0, false
	}
	v := s.value.Load()
	return int(max(v, 0)), v >= 0
}

// SetUsed says which signals the rules in force use. It stops measuring and asking for all others,
// except the signals of Options.Watch.
func (r *Registry) SetUsed(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := *r.signals.Load()
	var missing []string
	for _, name := range names {
		if all[name] == nil && !slices.Contains(missing, name) && checkName(name) == nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		all = maps.Clone(all)
		for _, name := range missing {
			all[name] = newSignal(name, Pushed, 0)
		}
		r.signals.Store(&all)
	}
	for name, s := range all {
		if s.used = slices.Contains(names, name); !s.wanted() && s.kind != Pushed {
			s.forget()
		}
	}
	r.wakeUp()
}

// wanted reports whether a signal is measured or asked for. Registry.mu is held.
func (s *signal) wanted() bool { return s.used || s.watched }

// forget makes a signal one that was never seen. Registry.mu is held.
func (s *signal) forget() {
	s.asked, s.sampled, s.raw, s.filter, s.problem = time.Time{}, time.Time{}, 0, filter{}, ""
	s.value.Store(unknown)
}

func (r *Registry) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Errors of Push, besides those for bad arguments.
var (
	ErrMeasured = errors.New("this signal is measured; push under another name")
	ErrFull     = fmt.Errorf("there are %d pushed signals already; wait until one has gone stale", mostPushed)
)

// Push sets a signal to percent, of 0 to 100, for ttl; 0 means 10 s. Then it is stale, unless it is
// pushed again.
func (r *Registry) Push(name string, percent float64, ttl time.Duration) error {
	if ttl == 0 {
		ttl = defaultTTL
	}
	if err := checkName(name); err != nil {
		return err
	}
	if !(percent >= 0 && percent <= 100) { // NaN neither
		return errors.New("a signal is a number from 0 to 100, in percent")
	}
	if ttl < 0 || ttl > mostTTL {
		return fmt.Errorf("a signal may last for up to %d hours", mostTTL/time.Hour)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	s := (*r.signals.Load())[name]
	if s == nil {
		var err error
		if s, err = r.addPushed(now, name); err != nil {
			return err
		}
	}
	if s.kind != Pushed {
		return ErrMeasured
	}
	s.take(now, percent)
	s.stale = ttl
	r.wakeUp()
	return nil
}

// addPushed makes room for a pushed signal. r.mu is held.
func (r *Registry) addPushed(now time.Time, name string) (*signal, error) {
	all := maps.Clone(*r.signals.Load())
	n := 0
	for _, s := range all {
		if s.kind == Pushed && !s.used {
			n++
		}
	}
	if n >= mostPushed {
		maps.DeleteFunc(all, func(_ string, s *signal) bool { return s.kind == Pushed && !s.used && s.isStale(now) })
		if len(all) == len(*r.signals.Load()) {
			return nil, ErrFull
		}
	}
	s := newSignal(name, Pushed, 0)
	all[name] = s
	r.signals.Store(&all)
	return s, nil
}

// take records a sample. A signal without a value, or with a stale one, starts at the sample.
// Registry.mu is held.
func (s *signal) take(now time.Time, raw float64) {
	begins := s.isStale(now)
	s.raw, s.sampled, s.problem = raw, now, ""
	if begins {
		s.filter = filter{}
		s.value.Store(int32(s.filter.step(now, raw)))
	}
}

// isStale reports whether there is no sample that counts. Registry.mu is held.
func (s *signal) isStale(now time.Time) bool {
	return s.sampled.IsZero() || now.Sub(s.sampled) > s.stale
}

func (s *signal) fail(err error) {
	s.problem = err.Error()
	s.problems++
}

// Run keeps the signals moving until ctx ends. It must run only once at a time.
func (r *Registry) Run(ctx context.Context) {
	defer r.fetching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var next <-chan time.Time // nothing is to be done in time
		if wait := r.move(ctx, time.Now()); wait > 0 {
			timer.Reset(wait)
			next = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-next:
		}
	}
}

// move takes the samples that are due and moves the filters on. It returns when it is to do so
// again; 0 if there is nothing to do in time.
func (r *Registry) move(ctx context.Context, now time.Time) (wait time.Duration) {
	again := func(s *signal) {
		if s.used || s.kind == Pushed {
			wait = tick
		} else if wait == 0 {
			wait = watchTick
		}
	}
	for _, s := range *r.signals.Load() {
		r.mu.Lock()
		due := s.wanted() && s.kind != Pushed && !s.busy && (s.asked.IsZero() || now.Sub(s.asked) >= s.every-tick/2)
		if due {
			s.asked = now
			s.busy = s.kind == Queried
		}
		r.mu.Unlock()
		switch {
		case due && s.kind == Measured:
			raw, ok, err := s.measure(now)
			r.note(s, now, raw, ok, err)
		case due:
			r.fetching.Go(func() {
				raw, err := s.query.ask(ctx, r.o.Client)
				r.note(s, time.Now(), raw, err == nil, err)
			})
		}
		r.mu.Lock()
		switch {
		case s.isStale(now):
			s.value.Store(unknown)
			if s.wanted() && s.kind != Pushed {
				again(s)
			}
		default:
			s.value.Store(int32(s.filter.step(now, s.raw)))
			again(s)
		}
		r.mu.Unlock()
	}
	return wait
}

// note takes the outcome of a try.
func (r *Registry) note(s *signal, now time.Time, raw float64, ok bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.busy = false
	switch {
	case !s.wanted(): // not any more
	case err != nil:
		s.fail(err)
	case ok:
		s.take(now, min(max(raw, 0), 100))
	}
}

// Info describes a signal.
type Info struct {
	Name   string
	Kind   Kind
	Used   bool    // a rule in force uses it
	Stale  bool    // there is no valid value: limits that follow it are at 100 percent
	Raw    float64 // percent, as it last came
	Value  int     // percent, filtered
	Age    time.Duration
	Seen   bool   // it ever came; else Raw and Age say nothing
	Error  string // of the last try; "" if it went well
	Errors uint64 // of all tries
}

// List describes all signals, by name.
func (r *Registry) List() []Info {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	var out []Info
	for _, s := range *r.signals.Load() {
		i := Info{Name: s.name, Kind: s.kind, Used: s.used, Stale: s.value.Load() < 0, Raw: math.Round(s.raw*100) / 100,
			Value: int(max(s.value.Load(), 0)), Seen: !s.sampled.IsZero(), Error: s.problem, Errors: s.problems}
		if i.Seen {
			i.Age = now.Sub(s.sampled)
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return out
}
