package ruledb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Bounds of a Follower.
const (
	// answerPatience is how long a query may take. A database that hangs is then left, and asked
	// anew.
	answerPatience = 5 * time.Second
	// probePatience is how long a message to itself may take.
	probePatience = 2 * time.Second
	// longestPause is between two attempts to connect.
	longestPause = 2 * time.Second
	// lostAfter is how long the database may be away before rules count as behind: what lies there
	// is not known.
	lostAfter = time.Minute
)

// FollowOptions configure Follow. Address is required; the zero value of the others means their
// default.
type FollowOptions struct {
	Address *Address
	Cache   string        // file with the version in force, for a start without the database; "" for none
	Rules   file.Options  // for file.Load
	Every   time.Duration // between two looks where no message comes; 0 means 5 s
	Node    func() string // the name of this node, read once when Run begins
	// Changed is called from Run with each rule set that is to be put into force. nil means nobody.
	Changed func(*rule.Set)
	// Looked is called from Run after a look that made a difference, as rulesource.Options.Looked
	// is.
	Looked func(before, now rulesource.Status)
	// Logger logs loads, warnings and errors; nil means nobody.
	Logger *slog.Logger
}

// Follower holds the rules of a space in force and follows its head. Make one with Follow. Safe for
// concurrent use. No decision ever waits for it, nor it for a decision.
type Follower struct {
	*rulesource.Held

	o    FollowOptions
	name string

	// Of Follow, and then of Run's goroutine.
	held    *Version // in force
	refused *Version // what could not be put in force; nil for none
	written *Version // in the cache; nil for none
	reached time.Time
	warned  time.Time // that the database is away; zero while it is not
	silent  bool      // messages do not arrive
	told    bool      // that this node may not report itself

	mu   sync.Mutex
	wake context.CancelFunc // ends the wait for a message
	ask  bool               // Reload was called
}

// Follow loads the rules once: from the head, else from the cache. A program that starts should end
// with its error. Call Run to follow changes.
func Follow(ctx context.Context, o FollowOptions) (*Follower, *rule.Set, error) {
	if o.Every == 0 {
		o.Every = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Follower{Held: rulesource.NewHeld(o.Address.String(), o.Logger), o: o, wake: func() {}, reached: time.Now()}
	v, set, warnings, err := f.begin(ctx)
	if err != nil {
		err = fmt.Errorf("rules: %w", err)
		if o.Cache == "" {
			return nil, nil, err
		}
		var missing error
		if v, set, warnings, missing = f.beginCached(); missing != nil {
			if errors.Is(missing, fs.ErrNotExist) {
				return nil, nil, fmt.Errorf("%w; and there is no cache of them yet at %s", err, o.Cache)
			}
			return nil, nil, fmt.Errorf("%w; and the cache does not help: %w", err, missing)
		}
		o.Logger.Warn("rules come from the cache until the database gives others", "cache", o.Cache,
			"version", v.Number, "error", err.Error())
		f.written = v
	}
	f.held = v
	f.Took(v.Rules(), versionText(v), warnings)
	return f, set, nil
}

// begin loads the head.
func (f *Follower) begin(ctx context.Context) (*Version, *rule.Set, []rule.Problem, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerPatience)
	defer cancel()
	c, err := f.o.Address.connect(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	defer func() { _ = c.Close(ctx) }()
	head, err := f.head(ctx, c)
	if err != nil {
		return nil, nil, nil, err
	}
	v, err := readVersion(ctx, c, f.o.Address.Space, head.Number)
	if err != nil {
		return nil, nil, nil, err
	}
	set, warnings, err := load(f.from(v), v.Rules(), f.o.Rules)
	return v, set, warnings, err
}

// beginCached loads the cache.
func (f *Follower) beginCached() (*Version, *rule.Set, []rule.Problem, error) {
	v, err := readCache(f.o.Cache, f.o.Address.Space)
	if err != nil {
		return nil, nil, nil, err
	}
	set, warnings, err := load(f.o.Cache, v.Rules(), f.o.Rules)
	return v, set, warnings, err
}

// head reads which version is in force.
func (f *Follower) head(ctx context.Context, c *pgx.Conn) (*Version, error) {
	v, err := (&DB{f.o.Address, c}).Head(ctx)
	if errors.Is(err, ErrNoRules) {
		return nil, fmt.Errorf("%w: %s; take a folder over with: weir rules import DIR", ErrNoRules, f.o.Address)
	}
	return v, err
}

func (f *Follower) from(v *Version) string {
	return fmt.Sprintf("version %d of %s", v.Number, f.o.Address)
}

func versionText(v *Version) string { return strconv.FormatInt(v.Number, 10) }

// Reload makes Run look at the database at once.
func (f *Follower) Reload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ask = true
	f.wake()
}

// Run follows the head until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	f.name = f.o.Node()
	f.keep()
	for pause := time.Duration(0); ctx.Err() == nil; {
		began := time.Now()
		err := f.session(ctx)
		if ctx.Err() != nil {
			return
		}
		f.away(err)
		if time.Since(began) > 10*longestPause {
			pause = 0
		}
		pause = min(2*pause+50*time.Millisecond, longestPause)
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)): // not all nodes at once
		}
	}
}

// away notes that the database is away.
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

// session follows the head over one connection, until that breaks.
func (f *Follower) session(ctx context.Context) error {
	c, err := within(ctx, 2*answerPatience, f.o.Address.connect)
	if err != nil {
		return err
	}
	defer f.leave(ctx, c)
	// The head is read after this, so that no move of it falls between.
	if _, err := within(ctx, answerPatience,
		func(ctx context.Context) (any, error) { return c.Exec(ctx, "listen "+channel) }); err != nil {
		return err
	}
	if err := f.look(ctx, c); err != nil {
		return err
	}
	p := f.probe(ctx)
	defer p.end()
	next := time.Now().Add(f.o.Every)
	for {
		until := next
		if !p.deadline.IsZero() && p.deadline.Before(until) {
			until = p.deadline
		}
		payload, err := f.wait(ctx, c, until)
		space, _, _ := strings.Cut(payload, " ")
		switch now := time.Now(); {
		case err != nil:
			return err
		case payload != "" && payload == p.payload:
			f.hear(&p, false)
		case space == f.o.Address.Space, !now.Before(next): // even if other spaces never rest
			if err := f.look(ctx, c); err != nil {
				return err
			}
			next = time.Now().Add(f.o.Every)
		case !p.deadline.IsZero() && !now.Before(p.deadline):
			f.hear(&p, true)
		}
	}
}

// within calls do with a bound on its time.
func within[T any](ctx context.Context, patience time.Duration, do func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx)
}

// wait waits for a message until an instant, or Reload. It returns "" if none came; a Reload is one
// of this space.
func (f *Follower) wait(ctx context.Context, c *pgx.Conn, until time.Time) (payload string, err error) {
	waiting, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	f.mu.Lock()
	f.wake = cancel
	asked := f.ask
	f.ask = false
	f.mu.Unlock()
	if asked {
		return f.o.Address.Space, nil
	}
	n, err := c.WaitForNotification(waiting)
	switch {
	case err == nil:
		return n.Payload, nil
	case ctx.Err() == nil && waiting.Err() != nil && !c.IsClosed():
		return "", nil
	}
	return "", err
}

// look puts the head in force, if it is new, and reports this node.
func (f *Follower) look(ctx context.Context, c *pgx.Conn) error {
	_, err := within(ctx, answerPatience, func(ctx context.Context) (any, error) { return nil, f.refresh(ctx, c) })
	if err != nil {
		return err
	}
	f.reached = time.Now()
	if !f.warned.IsZero() {
		f.warned = time.Time{}
		f.o.Logger.Info("rules are followed again", "path", f.o.Address.String())
	}
	f.SetBehind(false)
	f.SetAway(time.Time{}, nil)
	_, err = within(ctx, answerPatience, func(ctx context.Context) (any, error) { return nil, f.report(ctx, c) })
	return err
}

// refresh reads the head, and loads its version if it is neither in force nor known to be broken.
func (f *Follower) refresh(ctx context.Context, c *pgx.Conn) error {
	before := f.Status()
	defer func() { f.Tell(before, f.o.Looked) }()
	head, err := f.head(ctx, c)
	switch {
	case errors.Is(err, ErrNoRules):
		if was := f.Status().Err; was == nil || was.Error() != err.Error() {
			f.Refused(err) // somebody has emptied the database
		}
		return nil
	case err != nil:
		return err
	case sameFiles(head, f.held):
		f.refused = nil
		f.Same()
		return nil
	case f.refused != nil && sameFiles(head, f.refused):
		return nil
	}
	f.SetBehind(true)
	v, err := readVersion(ctx, c, f.o.Address.Space, head.Number)
	if err != nil {
		if !errors.Is(err, errDamaged) {
			return err // which may be over when it is asked again
		}
		f.refused = head
		f.Refused(err)
		return nil
	}
	set, warnings, err := load(f.from(v), v.Rules(), f.o.Rules)
	if err != nil {
		f.refused = v
		f.Refused(err)
		return nil
	}
	if f.o.Changed != nil {
		f.o.Changed(set)
	}
	f.held, f.refused = v, nil
	f.Took(v.Rules(), versionText(v), warnings)
	f.keep()
	return nil
}

// keep writes the version in force to the cache.
func (f *Follower) keep() {
	if f.o.Cache == "" || f.written != nil && sameFiles(f.written, f.held) {
		return
	}
	if err := writeCache(f.o.Cache, f.o.Address.Space, f.held); err != nil {
		f.o.Logger.Warn("rules are not cached; a start while the database is away would fail", "cache", f.o.Cache,
			"error", err.Error())
		return
	}
	f.written = f.held
}

// report writes this node's status. The time until the next report is generous: nobody waits for a
// node that is thought dead.
func (f *Follower) report(ctx context.Context, c *pgx.Conn) error {
	var refused *int64
	text := ""
	if f.refused != nil {
		refused = &f.refused.Number
		if err := f.Status().Err; err != nil {
			text = err.Error()
		}
		text = strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), 4096)], "\x00", ""), "")
	}
	_, err := c.Exec(ctx, `insert into weir_rules.node values ($1, $2, $3, $4, $5, $6, now(), now() + $7 * interval '1 microsecond')
		on conflict (space, node) do update set version = excluded.version, refused = excluded.refused, error = excluded.error,
			silent = excluded.silent, at = excluded.at, until = excluded.until`,
		f.o.Address.Space, f.name, f.held.Number, refused, text, f.silent,
		(2*f.o.Every + answerPatience).Microseconds())
	if err != nil && !c.IsClosed() && ctx.Err() == nil {
		if !f.told {
			f.told = true
			f.o.Logger.Warn("this node cannot report its rules, and weir rules status does not show it",
				"error", plain(err).Error())
		}
		return nil
	}
	return err
}

// leave ends a connection, and takes the node off the list if the program ends.
func (f *Follower) leave(ctx context.Context, c *pgx.Conn) {
	over := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if over && c.IsClosed() { // it ended in the middle of a question
		again, err := f.o.Address.dial(ctx)
		if err != nil {
			return
		}
		c = again
	}
	if over {
		_, _ = c.Exec(ctx, "delete from weir_rules.node where space = $1 and node = $2", f.o.Address.Space, f.name)
	}
	_ = c.Close(ctx)
}

// probe is a message to itself, on another connection: over the same one it would come back even
// through a pooler that swallows messages, as an answer does.
type probe struct {
	payload  string
	deadline time.Time // by when it has to arrive; zero once that is known
	end      func()
}

func (f *Follower) probe(ctx context.Context) probe {
	p := probe{payload: fmt.Sprintf("?%s %x", f.name, rand.Uint64()), deadline: time.Now().Add(probePatience)}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	var sent sync.WaitGroup
	sent.Go(func() {
		c, err := f.o.Address.dial(ctx)
		if err != nil {
			return // it does not arrive, which is said then
		}
		defer func() { _ = c.Close(ctx) }()
		_, _ = c.Exec(ctx, "select pg_notify($1, $2)", channel, p.payload)
	})
	p.end = func() { cancel(); sent.Wait() }
	return p
}

// hear notes whether messages arrive.
func (f *Follower) hear(p *probe, silent bool) {
	p.deadline = time.Time{}
	if silent && !f.silent {
		f.o.Logger.Warn(
			"no messages arrive from the database of rules, as behind a pooler in transaction mode: changes are seen by looking alone; "+
				"name the server itself, or a pooler in session mode", "path", f.o.Address.String(), "every",
			f.o.Every.String())
	}
	if !silent && f.silent {
		f.o.Logger.Info("messages arrive from the database of rules again", "path", f.o.Address.String())
	}
	f.silent = silent
}
