package admin

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/insight"
)

const versionsPath = "/api/v1/rules/versions"

// versionPatience bounds the time that the database of rules may take.
const versionPatience = 10 * time.Second

// Versions gives access to the versions of rules in a database. Safe for concurrent use.
type Versions interface {
	// List returns the last n versions, newest first.
	List(ctx context.Context, n int) (VersionList, error)
	// Push makes a version and puts it in force. Wrong rules are a CheckError. If another version
	// than c.Base is in force, the CheckError has Conflict.
	Push(ctx context.Context, c VersionChange) (Pushed, error)
	// Diff compares two versions; 0 is nothing. A version that cannot be had is a CheckError.
	Diff(ctx context.Context, from, to int64) (VersionDiff, error)
	// Rollback makes a version with the files of an earlier one, and puts it in force.
	Rollback(ctx context.Context, to int64, author, note string) (Pushed, error)
}

// VersionList is the answer of GET /api/v1/rules/versions.
type VersionList struct {
	Space    string    `json:"space"`
	Head     int64     `json:"head"` // the version to be put in force; 0 for none
	Versions []Version `json:"versions"`
}

// Version is one of VersionList.
type Version struct {
	Number int64     `json:"number"`
	Parent int64     `json:"parent,omitempty"` // the version before
	Author string    `json:"author"`
	Note   string    `json:"note,omitempty"`
	Origin string    `json:"origin"` // push, page, rollback or import
	Made   time.Time `json:"made"`
}

// VersionDiff is the answer of GET /api/v1/rules/diff.
type VersionDiff struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
	insight.RuleChanges
	Broken string `json:"broken,omitempty"` // why there are no Changes: one of the versions cannot be loaded
	Diff   string `json:"diff"`             // of the files, unified
	Cut    bool   `json:"cut,omitempty"`    // Diff is only the beginning
}

// VersionChange is the body of POST /api/v1/rules/versions.
type VersionChange struct {
	Base   int64             `json:"base"`  // the version that is changed
	Files  map[string]string `json:"files"` // rules; the tests of Base are kept
	Note   string            `json:"note"`
	Shadow bool              `json:"shadow"` // put what is new or changed in shadow, or nothing
	Author string            `json:"-"`
}

// Pushed is the answer of a change.
type Pushed struct {
	Version  int64    `json:"version"`
	Shadowed []string `json:"shadowed,omitempty"` // limits that were put in shadow, as domain/rule
	// InForce names what came into force, or is otherwise in force than before: limits as
	// domain/rule, other parts of a file as file: part.
	InForce []string `json:"in_force,omitempty"`
}

// CheckError says why rules are not put in force.
type CheckError struct {
	Message  string
	Conflict bool // another version came meanwhile
}

func (e *CheckError) Error() string { return e.Message }

// versions answers GET and POST of /api/v1/rules/versions.
func (a *Handler) versions(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), versionPatience)
	defer cancel()
	if r.Method != http.MethodPost {
		n, ok := number(w, r.URL.Query(), "n", 1000)
		if !ok {
			return
		}
		if n == 0 {
			n = 50
		}
		list, err := a.o.Versions.List(ctx, n)
		if err != nil {
			versionProblem(w, err)
			return
		}
		if list.Versions == nil {
			list.Versions = []Version{}
		}
		writeJSON(w, list)
		return
	}
	var c VersionChange
	if !readObject(w, r, &c, `{"base": 42, "files": {"shop.yaml": "…"}, "note": "…", "shadow": false}`) {
		return
	}
	if len(c.Files) == 0 {
		answer.Problem(w, http.StatusBadRequest, "files: is missing; it holds the text of each file by its name",
			"files")
		return
	}
	if !keepable(w, c.Note) {
		return
	}
	c.Author = a.author(r)
	a.changeVersion(w, r, audit.Entry{What: "rules pushed", Before: map[string]int64{"version": c.Base}, Note: c.Note},
		func() (Pushed, error) { return a.o.Versions.Push(ctx, c) })
}

// mostDiff bounds the bytes of VersionDiff.Diff.
const mostDiff = 256 << 10

// versionDiff answers GET /api/v1/rules/diff.
func (a *Handler) versionDiff(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), versionPatience)
	defer cancel()
	var sides [2]int64
	for i, name := range []string{"from", "to"} {
		n, err := strconv.ParseInt(r.URL.Query().Get(name), 10, 64)
		if err != nil || n < 0 {
			answer.Problem(w, http.StatusBadRequest, name+": must be the number of a version, or 0 for nothing", name)
			return
		}
		sides[i] = n
	}
	d, err := a.o.Versions.Diff(ctx, sides[0], sides[1])
	if err != nil {
		versionProblem(w, err)
		return
	}
	if len(d.Diff) > mostDiff {
		d.Diff, d.Cut = d.Diff[:strings.LastIndexByte(d.Diff[:mostDiff], '\n')+1], true
	}
	writeJSON(w, d)
}

// rollback answers POST /api/v1/rules/rollback.
func (a *Handler) rollback(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), versionPatience)
	defer cancel()
	var c struct {
		To   int64  `json:"to"`
		Note string `json:"note"`
	}
	if !readObject(w, r, &c, `{"to": 41, "note": "…"}`) {
		return
	}
	if c.To < 1 {
		answer.Problem(w, http.StatusBadRequest, "to: must be the number of a version", "to")
		return
	}
	if !keepable(w, c.Note) {
		return
	}
	a.changeVersion(w, r, audit.Entry{What: "rules rolled back", After: map[string]int64{"files of version": c.To},
		Note: c.Note}, func() (Pushed, error) {
		return a.o.Versions.Rollback(ctx, c.To, a.author(r), c.Note)
	})
}

// keepable reports whether a database can keep a note, and answers if not. Text from JSON is always
// UTF-8.
func keepable(w http.ResponseWriter, note string) bool {
	if strings.Contains(note, "\x00") {
		answer.Problem(w, http.StatusBadRequest, `note: must hold no zero byte (\u0000)`, "note")
		return false
	}
	return true
}

// changeVersion records a change, makes it, and answers.
func (a *Handler) changeVersion(w http.ResponseWriter, r *http.Request, e audit.Entry, do func() (Pushed, error)) {
	e, ok := a.record(w, r, e)
	if !ok {
		return
	}
	pushed, err := do()
	a.made(e, err)
	if err != nil {
		versionProblem(w, err)
		return
	}
	writeJSON(w, pushed)
}

// author returns who asks for a change, for the history of the rules: the token's name, or else the
// address.
func (a *Handler) author(r *http.Request) string {
	if name := sender(r).Name; name != "" {
		return name
	}
	return a.address(r)
}

func versionProblem(w http.ResponseWriter, err error) {
	if e, ok := errors.AsType[*CheckError](err); ok {
		status := http.StatusUnprocessableEntity
		if e.Conflict {
			status = http.StatusConflict
		}
		answer.Problem(w, status, e.Message, "")
		return
	}
	answer.Problem(w, http.StatusServiceUnavailable, "the database of rules: "+err.Error(), "")
}
