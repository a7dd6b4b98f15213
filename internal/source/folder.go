package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Options configure Open. Path is required; the zero value of the others means their default.
type Options struct {
	Path string // folder of rule files, or one file
	// Until are the rules in force as long as Path is not there, or is a folder without rule files;
	// once it holds rules, they are in force for good. nil means that Path must be there from the
	// start.
	Until []file.Source
	Rules file.Options  // for file.Load
	Every time.Duration // between two looks at the folder where no event comes; 0 means 5 s
	Rest  time.Duration // how long the files must have rested before they are read; 0 means 100 ms
	// Changed is called from Run with each rule set that is to be put into force. nil means nobody.
	Changed func(*rule.Set)
	// Looked is called from Run after a look at the folder that made a difference: other rules came
	// into force, or what lies there is wrong in another way, or no longer. nil means nobody.
	Looked func(before, now Status)
	// Logger is told of loads, warnings and errors; nil means nobody.
	Logger *slog.Logger
}

// Status tells an operator where the rules come from and whether they are up to date.
type Status struct {
	Path     string
	Waiting  bool      // Options.Until are in force, since nothing lies at Path
	Files    []string  // the files of the rules in force, sorted
	Digest   string    // of the files of the rules in force: see Digest
	Version  string    // that the source gives them; "" of a folder, which gives none
	Loaded   time.Time // when the rules in force were loaded
	Loads    uint64    // successful loads, the first one included
	Failures uint64    // loads that failed
	Behind   bool      // the folder holds a change that was not read yet
	Err      error     // why what lies in the folder now is not in force; nil if it is
}

// Folder holds the rules of a folder in force and follows its changes. Make one with Open. Safe for
// concurrent use.
type Folder struct {
	o      Options
	reload chan struct{}

	mu     sync.Mutex
	status Status
	// sources are what was last loaded with success. Only Open and Run's goroutine change it.
	sources []file.Source
	watch   watch
}

// Open loads the rules once. A program that starts should end with its error, which is a
// rule.Problems or one sentence. Call Run to follow changes.
func Open(o Options) (*Folder, *rule.Set, error) {
	if o.Every == 0 {
		o.Every = 5 * time.Second
	}
	if o.Rest == 0 {
		o.Rest = 100 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Folder{o: o, reload: make(chan struct{}, 1), status: Status{Path: o.Path}}
	before := signature(o.Path)
	sources, set, warnings, err := load(o.Path, o.Rules)
	if o.Until != nil && errors.Is(err, errNothing) {
		f.status.Waiting = true
		sources = o.Until
		set, warnings, err = file.Load(sources, o.Rules)
	}
	if err != nil {
		return nil, nil, err
	}
	f.succeeded(sources, warnings)
	f.watch = watch{rest: o.Rest, seen: before, pending: true, since: time.Now()}
	return f, set, nil
}

// Status returns the present status.
func (f *Folder) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

// Sources returns the files of the rules in force, sorted by name, as they were loaded: what lies
// in the folder now may be newer, or broken. The caller must not change them.
func (f *Folder) Sources() []file.Source {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sources
}

// Reload makes Run read the folder as soon as its files have rested, even if no change was noticed,
// and put it into force if its contents changed.
func (f *Folder) Reload() {
	select {
	case f.reload <- struct{}{}:
	default: // one is on its way
	}
}

// Run follows the folder until ctx ends.
func (f *Folder) Run(ctx context.Context) {
	n := newNotifier(f.o.Path, f.o.Logger)
	defer n.close()
	f.run(ctx, n.events, n.follow)
}

// run is Run with its two ties to the file system as arguments: events tells that something
// changed, and follow is called before each look, so that events of new folders come too.
func (f *Folder) run(ctx context.Context, events <-chan event, follow func()) {
	follow()
	timer := time.NewTimer(f.o.Rest)
	defer timer.Stop()
	deadline := time.Now().Add(f.o.Rest)
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			now := time.Now()
			if e == touched {
				f.watch.touch(now)
				f.setBehind(true)
				deadline = now.Add(f.o.Rest)
			} else if soon := now.Add(f.o.Rest); soon.Before(deadline) {
				deadline = soon
			}
			timer.Reset(time.Until(deadline))
			continue
		case <-f.reload:
			f.watch.pending = true
		case <-timer.C:
		}
		follow()
		sig := signature(f.o.Path)
		ready, wait := f.watch.look(time.Now(), sig)
		if ready {
			f.refresh(sig)
			// What changed while it was read is seen here, and looked at again after it has rested.
			_, wait = f.watch.look(time.Now(), signature(f.o.Path))
		}
		f.setBehind(f.watch.pending)
		if wait == 0 {
			wait = f.o.Every
		}
		deadline = time.Now().Add(wait)
		timer.Reset(wait)
	}
}

// refresh loads what lies in the folder, whose signature was sig, and hands it over if it is good
// and new. Files that change while they are read are left for the next look.
func (f *Folder) refresh(sig string) {
	if f.o.Looked != nil {
		before := f.Status()
		defer func() {
			if now := f.Status(); now.Loads != before.Loads || fmt.Sprint(now.Err) != fmt.Sprint(before.Err) {
				f.o.Looked(before, now)
			}
		}()
	}
	sources, set, warnings, err := load(f.o.Path, f.o.Rules)
	if signature(f.o.Path) != sig {
		return
	}
	if err != nil {
		if f.waiting() && errors.Is(err, errNothing) {
			f.recovered()
			return
		}
		f.failed(err)
		return
	}
	f.found()
	unchanged := slices.EqualFunc(sources, f.sources, func(a, b file.Source) bool {
		return a.Name == b.Name && bytes.Equal(a.Data, b.Data)
	})
	if unchanged {
		f.recovered()
		return
	}
	if f.o.Changed != nil {
		f.o.Changed(set)
	}
	f.succeeded(sources, warnings)
}

func (f *Folder) succeeded(sources []file.Source, warnings []rule.Problem) {
	files := make([]string, len(sources))
	for i, s := range sources {
		files[i] = s.Name
	}
	f.mu.Lock()
	f.sources = sources
	f.status.Files = files
	f.status.Digest = fmt.Sprintf("sha256:%x", Digest(sources))
	f.status.Loaded = time.Now()
	f.status.Loads++
	f.status.Err = nil
	f.mu.Unlock()
	for _, w := range warnings {
		f.o.Logger.Warn("rules", "problem", w.Error())
	}
	if !f.waiting() {
		f.o.Logger.Info("rules loaded", "path", f.o.Path, "files", len(files))
	}
}

// setBehind notes whether a change waits to be read.
func (f *Folder) setBehind(behind bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Behind = behind
}

// waiting reports whether Options.Until are in force.
func (f *Folder) waiting() bool { return f.Status().Waiting }

// found ends the wait for rules at Path.
func (f *Folder) found() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Waiting = false
}

func (f *Folder) failed(err error) {
	f.mu.Lock()
	known := f.status.Err != nil && f.status.Err.Error() == err.Error()
	f.status.Err = err
	f.status.Failures++
	f.mu.Unlock()
	if !known {
		f.o.Logger.Error("rules not loaded, the last good ones stay in force", "path", f.o.Path, "error", err.Error())
	}
}

// recovered notes that the folder holds again what is in force.
func (f *Folder) recovered() {
	f.mu.Lock()
	had := f.status.Err != nil
	f.status.Err = nil
	f.mu.Unlock()
	if had {
		f.o.Logger.Info("rules are those in force again", "path", f.o.Path)
	}
}

// errNothing reports a path that does not exist, or a folder without rule files.
var errNothing = errors.New("no rules lie there")

// nothing is an error that is errNothing too.
type nothing struct{ error }

func (n nothing) Unwrap() []error { return []error{n.error, errNothing} }

// load reads and compiles all rules of path. No rule at all is an error too (as an empty file is to
// file.Load): it is what a broken copy or a full disk leaves behind, and would lift every limit.
func load(path string, o file.Options) ([]file.Source, *rule.Set, []rule.Problem, error) {
	sources, err := ReadDir(path)
	if err != nil {
		err = fmt.Errorf("rules: %w; name a folder of rule files, or one file", err)
		if errors.Is(err, fs.ErrNotExist) {
			err = nothing{err}
		}
		return nil, nil, nil, err
	}
	if len(sources) == 0 {
		return nil, nil, nil, nothing{fmt.Errorf("rules: %s holds no rule file (*.yaml or *.yml)", path)}
	}
	set, warnings, err := file.Load(sources, o)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(set.Rules()) == 0 {
		return nil, nil, nil, fmt.Errorf("rules: no rule is left in %s (files: %s)", path, names(sources))
	}
	return sources, set, warnings, nil
}

func names(sources []file.Source) string {
	var b strings.Builder
	for i, s := range sources {
		if i == 5 {
			fmt.Fprintf(&b, " and %d more", len(sources)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(s.Name)
	}
	return b.String()
}

// watch decides when what lies in the folder has rested long enough to be read. It is pure: time
// and signatures come from outside.
type watch struct {
	rest    time.Duration
	seen    string // signature at the last look
	pending bool   // something changed that was not loaded yet
	told    bool   // by touch, since the last look
	since   time.Time
}

// touch notes that a file was written at now, even if its signature will not show it.
func (w *watch) touch(now time.Time) { w.pending, w.told, w.since = true, true, now }

// look is told the folder's signature at now. It reports whether to load, and else, if something is
// pending, how long to wait before the next look.
func (w *watch) look(now time.Time, signature string) (ready bool, wait time.Duration) {
	if signature != w.seen {
		w.seen = signature
		w.pending = true
		if !w.told { // when it happened nobody knows: it counts from now
			w.since = now
		}
	}
	w.told = false
	if !w.pending {
		return false, 0
	}
	if left := w.rest - now.Sub(w.since); left > 0 {
		return false, left
	}
	w.pending = false
	return true, 0
}

// signature names the state of the rule files under path by names, sizes, times and identities,
// without reading them.
func signature(path string) string {
	files, _, err := list(path)
	if err != nil {
		return "error: " + err.Error()
	}
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "%q %d %d %v %d\n", f.name, f.info.Size(), f.info.ModTime().UnixNano(), f.info.Mode(), inode(f.info))
	}
	return b.String()
}
