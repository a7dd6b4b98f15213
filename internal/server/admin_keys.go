package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// KeyState is the state of one key.
type KeyState struct {
	Key     []byte
	Result  algo.Result // of a peek
	Refused bool        // a cost of 1 would be refused now
}

// KeyStore lets an operator look into the counters. An error means that they cannot be reached.
type KeyStore interface {
	// Hottest returns up to n keys that have used most of their limit, most used first.
	Hottest(ctx context.Context, c *rule.Counter, n int) ([]KeyState, error)
	// Peek returns the state of one key; ok is false if it is fresh.
	Peek(ctx context.Context, c *rule.Counter, key []byte) (s KeyState, ok bool, err error)
	// Reset forgets one key; ok is false if there was nothing to forget.
	Reset(ctx context.Context, c *rule.Counter, key []byte) (ok bool, err error)
}

// seconds is a time of µs in JSON: seconds, null for never.
type seconds int64

// MarshalJSON implements json.Marshaler.
func (s seconds) MarshalJSON() ([]byte, error) { return appendSeconds(nil, int64(s)), nil }

// keyInfo is one key in the answers under /api/v1/keys.
type keyInfo struct {
	Domain     string   `json:"domain"`
	Limit      string   `json:"limit"`
	Key        string   `json:"key"`  // for people
	Path       string   `json:"path"` // of its state on this port
	Parts      []string `json:"parts"`
	Used       int64    `json:"used"`
	Capacity   int64    `json:"capacity"`
	Remaining  int64    `json:"remaining"`
	Refused    bool     `json:"refused"` // a cost of 1 would be refused now
	ResetAfter seconds  `json:"reset_after"`
}

func newKeyInfo(w *rule.Window, s KeyState) keyInfo {
	parts := w.KeyParts(s.Key)
	if parts == nil {
		parts = []string{}
	}
	return keyInfo{
		Domain:     w.Counter.Domain,
		Limit:      w.Name,
		Key:        strings.Join(parts, ","),
		Path:       KeyPath(w.Counter.Domain, w.Name, parts),
		Parts:      parts,
		Used:       s.Result.Limit - s.Result.Remaining,
		Capacity:   s.Result.Limit,
		Remaining:  s.Result.Remaining,
		Refused:    s.Refused,
		ResetAfter: seconds(s.Result.ResetAfter),
	}
}

// KeyPath is the path of a key's state on the admin port; parts are those of rule.Window.KeyParts.
func KeyPath(domain, limit string, parts []string) string {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escapePart(p)
	}
	return keyPrefix + escapePart(domain) + "/" + escapePart(limit) + "/" + strings.Join(escaped, ",")
}

// escapePart escapes a part for a path segment in which "," separates. A segment of dots would not survive clients
// that resolve them.
func escapePart(s string) string {
	s = strings.ReplaceAll(url.PathEscape(s), ",", "%2C")
	if s == "." || s == ".." {
		s = strings.ReplaceAll(s, ".", "%2E")
	}
	return s
}

// windowsNamed returns the limits of that name, each with a counter of its own: one for each domain, and those of
// overrides with another window.
func windowsNamed(set *rule.Set, domain, name string) []*rule.Window {
	if set == nil {
		return nil
	}
	var found []*rule.Window
	for _, r := range set.Rules() {
		if domain != "" && r.Domain != domain {
			continue
		}
		add := func(w *rule.Window) {
			if (w.Name == name || r.Name == name) && w.Limit != nil &&
				!slices.ContainsFunc(found, func(have *rule.Window) bool { return have.Counter == w.Counter }) {
				found = append(found, w)
			}
		}
		for _, w := range r.Windows {
			add(w)
		}
		for i := range r.Overrides {
			for _, w := range r.Overrides[i].Windows {
				add(w)
			}
		}
	}
	return found
}

// topKeys is the default of ?top=, mostKeys its bound.
const (
	topKeys  = 20
	mostKeys = 10_000
)

// How long the store is asked for one key, and for the hottest of all.
const (
	keyPatience  = 5 * time.Second
	keysPatience = time.Minute
)

// unreachable answers for counters that cannot be reached. The operator may know why.
func unreachable(w http.ResponseWriter, err error) {
	problem(w, http.StatusServiceUnavailable, "the counters cannot be reached: "+err.Error(), "")
}

func (a *admin) keys(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	top := topKeys
	if s := q.Get("top"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > mostKeys {
			problem(w, http.StatusBadRequest, fmt.Sprintf("top: must be a number from 1 to %d", mostKeys), "top")
			return
		}
		top = n
	}
	name := q.Get("limit")
	if name == "" {
		problem(w, http.StatusBadRequest, "limit: is missing; name a limit of /api/v1/rules", "limit")
		return
	}
	set, _ := a.limiter.Rules()
	windows := windowsNamed(set, q.Get("domain"), name)
	if len(windows) == 0 {
		problem(w, http.StatusNotFound, "limit: no rule in force has a limit of this name in this domain; /api/v1/rules lists them", "limit")
		return
	}
	answer := struct {
		Keys []keyInfo `json:"keys"`
	}{Keys: []keyInfo{}}
	ctx, cancel := context.WithTimeout(r.Context(), keysPatience)
	defer cancel()
	for _, win := range windows {
		states, err := a.o.Keys.Hottest(ctx, win.Counter, top)
		if err != nil {
			unreachable(w, err)
			return
		}
		for _, s := range states {
			answer.Keys = append(answer.Keys, newKeyInfo(win, s))
		}
	}
	used := func(k *keyInfo) float64 { return float64(k.Used) / float64(max(k.Capacity, 1)) }
	slices.SortStableFunc(answer.Keys, func(x, y keyInfo) int { return cmp.Compare(used(&y), used(&x)) })
	answer.Keys = answer.Keys[:min(top, len(answer.Keys))]
	writeJSON(w, answer)
}

// splitKeyPath finds the key that an escaped path names, and the limits under whose counters it may be: several if an
// override has another window. The status is 0 if it did.
func (a *admin) splitKeyPath(escaped string) (windows []*rule.Window, key []byte, status int, detail string) {
	segments := strings.Split(strings.TrimPrefix(escaped, keyPrefix), "/")
	if len(segments) != 3 {
		return nil, nil, http.StatusNotFound, "the path is /api/v1/keys/{domain}/{limit}/{key}, each of them URL-escaped"
	}
	domain, err1 := url.PathUnescape(segments[0])
	name, err2 := url.PathUnescape(segments[1])
	if err1 != nil || err2 != nil {
		return nil, nil, http.StatusBadRequest, "the path holds a bad percent-encoding"
	}
	set, _ := a.limiter.Rules()
	for _, w := range windowsNamed(set, domain, name) {
		if w.Name == name && domain != "" {
			windows = append(windows, w)
		}
	}
	if len(windows) == 0 {
		return nil, nil, http.StatusNotFound, "no rule in force has a limit of this name in this domain; /api/v1/rules lists them"
	}
	var parts []string
	if segments[2] != "" {
		for p := range strings.SplitSeq(segments[2], ",") {
			part, err := url.PathUnescape(p)
			if err != nil {
				return nil, nil, http.StatusBadRequest, "key: holds a bad percent-encoding"
			}
			parts = append(parts, part)
		}
	}
	key, err := windows[0].AppendKey(nil, parts)
	if err != nil {
		return nil, nil, http.StatusBadRequest, "key: " + err.Error()
	}
	return windows, key, 0, ""
}

// key serves the state of one key, and its reset.
func (a *admin) key(w http.ResponseWriter, r *http.Request) {
	windows, key, status, detail := a.splitKeyPath(r.URL.EscapedPath())
	if status != 0 {
		problem(w, status, detail, "")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	if r.Method == http.MethodDelete {
		reset := false
		for _, win := range windows {
			ok, err := a.o.Keys.Reset(ctx, win.Counter, key)
			if err != nil {
				unreachable(w, err)
				return
			}
			reset = reset || ok
		}
		if !reset {
			problem(w, http.StatusNotFound, "key: nothing is counted for it", "key")
			return
		}
		w.WriteHeader(http.StatusNoContent)
		return
	}
	for _, win := range windows {
		s, ok, err := a.o.Keys.Peek(ctx, win.Counter, key)
		if err != nil {
			unreachable(w, err)
			return
		}
		if ok {
			s.Key = key
			writeJSON(w, newKeyInfo(win, s))
			return
		}
	}
	problem(w, http.StatusNotFound, "key: nothing is counted for it", "key")
}
