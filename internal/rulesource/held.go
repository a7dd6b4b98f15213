package rulesource

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// Status shows an operator where the rules come from and whether they are up to date.
type Status struct {
	Path     string
	Waiting  bool      // Options.Until are in force, since nothing lies at Path
	Files    []string  // the files of the rules in force, sorted
	Digest   string    // of the files of the rules in force: see Digest
	Version  string    // that the source gives them; "" of a folder, which gives none
	Loaded   time.Time // when the rules in force were loaded
	Loads    uint64    // successful loads, the first one included
	Failures uint64    // loads that failed
	Behind   bool      // the source holds a change that was not read yet, or cannot say
	Err      error     // why what lies in the source now is not in force; nil if it is
	Away     time.Time // since when the source cannot be reached; zero while it can
	AwayErr  error     // why not
}

// Held is a source's record of the rules in force, and of the last look at it. Make one with
// NewHeld. Safe for concurrent use, except that one goroutine makes all changes.
type Held struct {
	log *slog.Logger

	mu      sync.Mutex
	status  Status
	sources []file.Source // last loaded with success
}

// NewHeld returns a Held that holds nothing yet. Path names the source for people; log logs loads,
// warnings and errors.
func NewHeld(path string, log *slog.Logger) *Held { return &Held{log: log, status: Status{Path: path}} }

// Status returns the present status.
func (h *Held) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

// Sources returns the files of the rules in force, sorted by name, as they were loaded: what lies
// in the source now may be newer, or broken. The caller must not change them.
func (h *Held) Sources() []file.Source {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sources
}

// Took notes that the rules of these files are in force. Version is the source's name for them.
func (h *Held) Took(sources []file.Source, version string, warnings []rule.Problem) {
	files := make([]string, len(sources))
	for i, s := range sources {
		files[i] = s.Name
	}
	h.mu.Lock()
	h.sources = sources
	h.status.Files = files
	h.status.Digest = fmt.Sprintf("sha256:%x", Digest(sources))
	h.status.Version = version
	h.status.Loaded = time.Now()
	h.status.Loads++
	h.status.Err = nil
	path, waiting := h.status.Path, h.status.Waiting
	h.mu.Unlock()
	for _, w := range warnings {
		h.log.Warn("rules", "problem", w.Error())
	}
	if waiting {
		return
	}
	attributes := []any{"path", path, "files", len(files)}
	if version != "" {
		attributes = append(attributes, "version", version)
	}
	h.log.Info("rules loaded", attributes...)
}

// Refused notes that what lies in the source cannot be in force.
func (h *Held) Refused(err error) {
	h.mu.Lock()
	known := h.status.Err != nil && h.status.Err.Error() == err.Error()
	h.status.Err = err
	h.status.Failures++
	path := h.status.Path
	h.mu.Unlock()
	if !known {
		h.log.Error("rules not loaded, the last good ones stay in force", "path", path, "error", err.Error())
	}
}

// Same notes that the source holds the rules in force again.
func (h *Held) Same() {
	h.mu.Lock()
	had := h.status.Err != nil
	h.status.Err = nil
	path := h.status.Path
	h.mu.Unlock()
	if had {
		h.log.Info("rules are those in force again", "path", path)
	}
}

// Named notes another name that the source gives to the rules in force.
func (h *Held) Named(version string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Version = version
}

// Tell calls looked, unless that is nil, if a look at the source made a difference since the status
// was before: other rules came into force, or the source has another fault, or none any more.
func (h *Held) Tell(before Status, looked func(before, now Status)) {
	now := h.Status()
	if looked != nil && (now.Loads != before.Loads || fmt.Sprint(now.Err) != fmt.Sprint(before.Err)) {
		looked(before, now)
	}
}

// SetBehind notes whether a change waits to be read.
func (h *Held) SetBehind(behind bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Behind = behind
}

// waiting reports whether Options.Until are in force.
func (h *Held) waiting() bool { return h.Status().Waiting }

// found ends the wait for rules.
func (h *Held) found() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Waiting = false
}

// SetAway notes since when the source cannot be reached, and why; a zero time that it can.
func (h *Held) SetAway(since time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Away, h.status.AwayErr = since, err
}

// Equal reports whether two lists hold the same files with the same contents, in the same order.
func Equal(a, b []file.Source) bool {
	return slices.EqualFunc(a, b,
		func(x, y file.Source) bool { return x.Name == y.Name && bytes.Equal(x.Data, y.Data) })
}
