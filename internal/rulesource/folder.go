package rulesource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strings"
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
	// Logger logs loads, warnings and errors; nil means nobody.
	Logger *slog.Logger
}

// Folder holds the rules of a folder in force and follows its changes. Make one with Open. Safe for
// concurrent use.
type Folder struct {
	*Held

	o      Options
	reload chan struct{}
	watch  watch
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
	f := &Folder{Held: NewHeld(o.Path, o.Logger), o: o, reload: make(chan struct{}, 1)}
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
	f.Took(sources, "", warnings)
	f.watch = watch{rest: o.Rest, seen: before, pending: true, since: time.Now()}
	return f, set, nil
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

// run is Run with its two ties to the file system as arguments: events reports changes, and follow
// is called before each look, so that events of new folders come too.
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
				f.SetBehind(true)
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
		f.SetBehind(f.watch.pending)
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
	before := f.Status()
	defer func() { f.Tell(before, f.o.Looked) }()
	sources, set, warnings, err := load(f.o.Path, f.o.Rules)
	if signature(f.o.Path) != sig {
		return
	}
	if err != nil {
		if f.waiting() && errors.Is(err, errNothing) {
			f.Same()
			return
		}
		f.Refused(err)
		return
	}
	f.found()
	if Equal(sources, f.Sources()) {
		f.Same()
		return
	}
	if f.o.Changed != nil {
		f.o.Changed(set)
	}
	f.Took(sources, "", warnings)
}

// errNothing reports a path that does not exist, or a folder without rule files.
var errNothing = errors.New("no rules lie there")

// nothing is an error that is errNothing too.
type nothing struct{ error }

func (n nothing) Unwrap() []error { return []error{n.error, errNothing} }

// load reads and compiles all rules of path. No rule at all is an error too (as an empty file is to
// file.Load): a broken copy or a full disk leaves that behind, and it would lift every limit.
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
	set, warnings, err := Load(path, sources, o)
	if err != nil {
		return nil, nil, nil, err
	}
	return sources, set, warnings, nil
}

// Load is file.Load for rules that are to be in force: files without a single rule are an error,
// which names where they come from.
func Load(from string, sources []file.Source, o file.Options) (*rule.Set, []rule.Problem, error) {
	set, warnings, err := file.Load(sources, o)
	if err != nil {
		return nil, nil, err
	}
	if len(set.Rules()) == 0 {
		return nil, nil, fmt.Errorf("rules: no rule is left in %s (files: %s)", from, names(sources))
	}
	return set, warnings, nil
}

// LoadBelow loads the rules of a version, among files, that lie in a folder, or below it.
func LoadBelow(files []file.Source, dir string) (*rule.Set, []rule.Problem, error) {
	var rules []file.Source
	for _, f := range files {
		name, below := strings.CutPrefix(f.Name, dir+"/")
		if (below || dir == ".") && IsRuleFile(path.Base(name)) {
			rules = append(rules, file.Source{Name: name, Data: f.Data})
		}
	}
	return Load("this version", rules, file.Options{})
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

// look takes the folder's signature at now. It reports whether to load, and else, if a change is
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
		fmt.Fprintf(&b, "%q %d %d %v %d\n", f.name, f.info.Size(), f.info.ModTime().UnixNano(), f.info.Mode(),
			inode(f.info))
	}
	return b.String()
}
