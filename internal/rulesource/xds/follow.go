package xds

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Bounds of a Follower.
const (
	// shortestPause and longestPause are between two attempts to connect.
	shortestPause = 100 * time.Millisecond
	longestPause  = 5 * time.Second
	// calm is how long a stream has to live before it counts as one: a server that refuses a
	// certificate ends it at once.
	calm = 2 * time.Second
	// lostAfter is how long the server may be away before rules count as behind.
	lostAfter = time.Minute
)

// Options configure Follow. Address is required; the zero value of the others means their default.
type Options struct {
	Address *Address
	Version string       // of this program, for the server
	Rules   file.Options // for file.Load, without None and Kept
	// Settle is how long a new stream that lacks domains in force leaves these in force: a control
	// plane that starts has some gateways' rules before the others'. 0 means 10 s.
	Settle time.Duration
	// Silence is how long a server may say nothing at all before the log wonders; 0 means 30 s.
	Silence time.Duration
	// Changed is called from Run with each rule set that is to be put into force. nil means nobody.
	Changed func(*rule.Set)
	// Looked is called from Run after an answer that made a difference, as
	// rulesource.Options.Looked is.
	Looked func(before, now rulesource.Status)
	// Logger logs loads, warnings and errors; nil means nobody.
	Logger *slog.Logger
}

// Stats are counts of the server's answers, since the start.
type Stats struct {
	Changed, Same, Refused uint64 // answers that were put in force, that changed nothing, and that could not be
	Unknown                int    // fields of the rules in force that this version does not know
	Last                   time.Time
	Connected              bool
}

// Follower holds the rules of an xDS server in force and follows them. Make one with Follow. Safe
// for concurrent use. No decision ever waits for it, nor it for a decision.
type Follower struct {
	*rulesource.Held

	o      Options
	reload chan struct{}

	changed, same, refusals atomic.Uint64
	unknown                 atomic.Int64
	last                    atomic.Int64 // when the server sent something last, in ns of Unix; 0 for never
	connected, has          atomic.Bool

	// Of Follow, and then of Run's goroutine.
	running  bool
	kept     file.Kept
	inForce  []*resource
	first    *rule.Set // what Follow has loaded
	refused  *refusal  // what the server holds that cannot be in force; nil for nothing
	written  bool      // the rules in force are in the cache
	reached  time.Time
	warned   time.Time // that the server is away; zero while it is not
	wondered bool      // that it says nothing
}

// refusal is an answer that could not be put in force.
type refusal struct {
	digest [sha256.Size]byte
	err    error
}

// Follow waits for the first rules, as long as the address says. Without any it loads the
// cache; without one, and where a start does not need rules, the set is nil. A program that starts
// should end with its error. Call Run to follow changes.
func Follow(ctx context.Context, o Options) (*Follower, *rule.Set, error) {
	if o.Settle == 0 {
		o.Settle = 10 * time.Second
	}
	if o.Silence == 0 {
		o.Silence = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Follower{Held: rulesource.NewHeld(o.Address.String(), o.Logger), o: o, reload: make(chan struct{}, 1),
		reached: time.Now()}
	f.o.Rules.None, f.o.Rules.Kept = true, &f.kept
	err := f.begin(ctx)
	if err != nil && o.Address.Cache != "" {
		err = f.beginCached(err)
	}
	if err != nil {
		err = fmt.Errorf("rules: %w", err)
		if o.Address.Require == RequireStart {
			return nil, nil, err
		}
		o.Logger.Warn("no rules are in force: requests are not decided until they come", "error", err.Error())
	}
	set := f.first
	f.first, f.running = nil, true
	return f, set, nil
}

// begin waits for the first rules.
func (f *Follower) begin(ctx context.Context) error {
	wait := f.o.Address.Wait
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var last error
	for pause := time.Duration(0); f.first == nil && ctx.Err() == nil; {
		if err := f.session(ctx); ctx.Err() == nil {
			last = err
		}
		pause = longer(pause)
		if f.first == nil {
			f.rest(ctx, pause)
		}
	}
	switch {
	case f.first != nil:
		return nil
	case f.refused != nil:
		return fmt.Errorf("what %s holds cannot be in force: %w", f.o.Address, f.refused.err)
	case last != nil:
		return fmt.Errorf("none have come from %s within %v: %w", f.o.Address, wait, last)
	}
	return fmt.Errorf("none have come from %s within %v: it holds none for this node, or does not answer",
		f.o.Address, wait)
}

// beginCached loads the cache, where no rules have come because of missing.
func (f *Follower) beginCached(missing error) error {
	path := f.o.Address.Cache
	version, raw, err := readCache(path, f.o.Address.Node)
	if err == nil {
		var list []*resource
		if list, err = readAll(raw, nil); err == nil {
			_, err = f.load(list, version)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w; and there is no cache of them yet at %s", missing, path)
	case err != nil:
		return fmt.Errorf("%w; and the cache does not help: %s: %w", missing, path, err)
	}
	f.written = true
	f.refusedStays()
	f.o.Logger.Warn("rules come from the cache until the server gives others", "cache", path, "error", missing.Error())
	return nil
}

// Has reports whether any rules are in force; a set without a limit is one as well.
func (f *Follower) Has() bool { return f.has.Load() }

// Stats returns the present counts.
func (f *Follower) Stats() Stats {
	s := Stats{Changed: f.changed.Load(), Same: f.same.Load(), Refused: f.refusals.Load(), Unknown: int(f.unknown.Load()),
		Connected: f.connected.Load()}
	if at := f.last.Load(); at != 0 {
		s.Last = time.Unix(0, at)
	}
	return s
}

// Reload makes Run ask the server anew, over another connection.
func (f *Follower) Reload() {
	select {
	case f.reload <- struct{}{}:
	default: // one is on its way
	}
}

// Run follows the server until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	f.keep()
	for pause := time.Duration(0); ctx.Err() == nil; {
		began := time.Now()
		err := f.session(ctx)
		f.connected.Store(false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > longestPause {
			pause = 0
		}
		if errors.Is(err, errReload) {
			continue
		}
		f.away(err)
		pause = longer(pause)
		f.rest(ctx, pause)
	}
}

// longer is the pause after one.
func longer(pause time.Duration) time.Duration { return min(max(2*pause, shortestPause), longestPause) }

// rest waits for about as long as pause, so that not all nodes come at once.
func (f *Follower) rest(ctx context.Context, pause time.Duration) {
	t := time.NewTimer(pause/2 + rand.N(pause/2+1))
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-f.reload:
	case <-t.C:
	}
}

// away notes that the server is away.
func (f *Follower) away(err error) {
	since := time.Since(f.reached)
	f.SetAway(f.reached, err)
	if f.warned.IsZero() || time.Since(f.warned) >= lostAfter {
		f.warned = time.Now()
		f.o.Logger.Warn("rules cannot be followed; those in force stay", "path", f.o.Address.String(),
			"away", since.Round(time.Second).String(), "error", err.Error())
	}
	if since >= lostAfter {
		f.SetBehind(true)
	}
}

// reachable notes that the server is there.
func (f *Follower) reachable() {
	f.reached = time.Now()
	f.connected.Store(true)
	if !f.warned.IsZero() {
		f.warned = time.Time{}
		f.o.Logger.Info("rules are followed again", "path", f.o.Address.String())
	}
	f.SetAway(time.Time{}, nil)
	f.SetBehind(false)
}

// take puts an answer in force, unless that is the case already. again reports that the same
// contents were refused before; nothing is tried then.
func (f *Follower) take(s *stream, version string, raw []*anypb.Any) (again bool, err error) {
	before := f.Status()
	if f.running {
		defer func() { f.Tell(before, f.o.Looked) }()
	}
	digest := digestOf(raw)
	if f.refused != nil && f.refused.digest == digest {
		f.refusals.Add(1)
		return true, f.refused.err
	}
	list, err := readAll(raw, byHash(f.inForce))
	changed := false
	if err == nil {
		all, rest := s.settled(list, f.inForce)
		if changed, err = f.load(all, version); err == nil {
			s.held = rest
		}
	}
	if err != nil {
		f.refused = &refusal{digest, err}
		f.refusals.Add(1)
		f.Refused(err)
		return false, err
	}
	s.latest, f.refused = list, nil
	if changed {
		f.changed.Add(1)
	} else {
		f.same.Add(1)
	}
	return false, nil
}

// refusedStays keeps the last refused answer in the status, where something else was put in force
// meanwhile: the server's rules are still not those in force.
func (f *Follower) refusedStays() {
	if f.refused != nil {
		f.Refused(f.refused.err)
	}
}

// load puts resources in force, unless they are.
func (f *Follower) load(list []*resource, version string) (changed bool, err error) {
	if f.has.Load() && slices.EqualFunc(list, f.inForce, func(a, b *resource) bool { return a.hash == b.hash }) {
		f.Same()
		f.Named(version)
		return false, nil
	}
	files := sources(list)
	set, warnings, err := file.Load(files, f.o.Rules)
	if err != nil {
		return false, placed(err, list)
	}
	if !f.running {
		f.first = set
	} else if f.o.Changed != nil {
		f.o.Changed(set)
	}
	f.inForce, f.written = list, false
	f.has.Store(true)
	f.Took(files, version, placedAll(warnings, list))
	f.tellUnknown()
	if len(set.Rules()) == 0 {
		f.o.Logger.Warn("the server holds no rate limits: requests pass", "path", f.o.Address.String())
	}
	f.keep()
	return true, nil
}

// tellUnknown warns of fields that this version does not know: what they say is not done.
func (f *Follower) tellUnknown() {
	n, where := 0, ""
	for _, r := range f.inForce {
		if n += len(r.unknown); where == "" && len(r.unknown) > 0 {
			where = fmt.Sprintf("resource %q: %s", clip(r.name), r.unknown[0])
		}
	}
	if f.unknown.Swap(int64(n)); n > 0 {
		f.o.Logger.Warn("the rules say more than this version of weir understands, and that is not done",
			"fields", n, "first", where)
	}
}

// Remark is one line for an operator about the rules in force; "" for none.
func (f *Follower) Remark() string {
	n := f.unknown.Load()
	if n == 0 {
		return ""
	}
	return "the rules have " + human.Count(int(n), "field") + " that this version of weir does not understand"
}

// keep writes the rules in force to the cache.
func (f *Follower) keep() {
	path := f.o.Address.Cache
	if path == "" || f.written || !f.has.Load() || !f.running {
		return
	}
	raw := make([]*anypb.Any, len(f.inForce))
	for i, r := range f.inForce {
		raw[i] = r.raw
	}
	if err := writeCache(path, f.o.Address.Node, f.Status().Version, raw); err != nil {
		f.o.Logger.Warn("rules are not cached; a start while the server is away would be without rules", "cache", path,
			"error", err.Error())
		return
	}
	f.written = true
}

// digestOf names the contents of an answer, in any order.
func digestOf(raw []*anypb.Any) [sha256.Size]byte {
	hashes := make([]string, len(raw))
	for i, r := range raw {
		sum := sha256.Sum256(r.GetValue())
		hashes[i] = string(sum[:]) + r.GetTypeUrl()
	}
	slices.Sort(hashes)
	return sha256.Sum256([]byte(strings.Join(hashes, "\n")))
}

func byHash(list []*resource) map[[sha256.Size]byte]*resource {
	m := make(map[[sha256.Size]byte]*resource, len(list))
	for _, r := range list {
		m[r.hash] = r
	}
	return m
}
