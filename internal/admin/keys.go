package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// KeyInfo is one key in the answers under /api/v1/keys.
type KeyInfo struct {
	Domain     string         `json:"domain"`
	Limit      string         `json:"limit"`
	Key        string         `json:"key"`  // for people
	Path       string         `json:"path"` // of its state on this port
	Parts      []string       `json:"parts"`
	Used       int64          `json:"used"` // including leased units and usage of the soft margin
	Capacity   int64          `json:"capacity"`
	SoftLimit  int64          `json:"soft_limit,omitempty"` // with the soft margin while it is open
	Remaining  int64          `json:"remaining"`
	Refused    bool           `json:"refused"` // a request with a cost of 1 would be refused now
	RetryAfter recent.Seconds `json:"retry_after"`
	ResetAfter recent.Seconds `json:"reset_after"`
	Shadow     bool           `json:"shadow,omitempty"` // counted, never refused
	// by a grant, or at this time of the schedule: the numbers mean nothing
	Unlimited bool `json:"unlimited,omitempty"`
	// Leased has the units of it that are lent to all nodes together; nil if none are.
	Leased *Leased `json:"leased,omitempty"`
	// Regions is the state of the key in this region and in all; nil for a limit of one region.
	Regions *KeyRegions `json:"regions,omitempty"`
	// Ban is the ban that refuses the key outright, and Grant the grant that gives it other
	// numbers; nil for none.
	Ban   *ListedBan   `json:"ban,omitempty"`
	Grant *ListedGrant `json:"grant,omitempty"`
}

// Leased are the units of a key that the store has lent to nodes, which have not reported them yet
// and whose lease has not ended.
type Leased struct {
	Units       int64     `json:"units"`
	Generations int       `json:"generations"` // 1, or 2 that end one after the other
	Until       time.Time `json:"until"`       // when the last of them ends, by the store's clock
}

// KeyRegions is the state of a key under a limit that holds over several regions.
type KeyRegions struct {
	Region string `json:"region"` // this one
	// Own is this region's usage of its ceiling. It includes what others borrowed from it, and
	// leaves out what it borrowed. nil if there is no ceiling.
	Own *KeyUse `json:"own,omitempty"`
	// All is the usage of the limit by all regions, as far as they have reported it; nil if it does
	// not decide.
	All *KeyUse `json:"all,omitempty"`
}

// KeyUse is the number of used units, and the limit.
type KeyUse struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit"`
}

func newKeyRegions(r *store.KeyRegions) *KeyRegions {
	if r == nil {
		return nil
	}
	return &KeyRegions{Region: r.Region, Own: (*KeyUse)(r.Own), All: (*KeyUse)(r.All)}
}

func newLeased(n algo.Lent) *Leased {
	l := &Leased{Units: n.Out()}
	until := n.End
	if n.Older > 0 {
		l.Generations++
	}
	if n.Newer > 0 {
		l.Generations++
		until = n.Last
	}
	if l.Generations == 0 {
		return nil
	}
	l.Until = time.UnixMicro(until).UTC()
	return l
}

func newKeyInfo(k *weir.KeyInfo, now time.Time) KeyInfo {
	parts := k.Parts
	if parts == nil {
		parts = []string{}
	}
	info := KeyInfo{
		Domain:     k.Window.Rule.Domain,
		Limit:      k.Window.Name,
		Key:        strings.Join(parts, ","),
		Path:       KeyPath(k.Window.Rule.Domain, k.Window.Name, parts),
		Parts:      parts,
		Used:       k.Used,
		Capacity:   k.Result.Limit,
		Remaining:  k.Result.Remaining,
		ResetAfter: recent.Seconds(k.Result.ResetAfter),
		Shadow:     k.Mode == rule.Shadow,
		Unlimited:  k.Limit == nil || k.Result.Off,
		Leased:     newLeased(k.Lent),
		Regions:    newKeyRegions(k.Regions),
	}
	refused, after := k.Refused(now.UnixMicro())
	info.Refused, info.RetryAfter = refused, recent.Seconds(after)
	if k.Result.SoftLimit > k.Result.Limit && !info.Unlimited {
		info.SoftLimit = k.Result.SoftLimit
	}
	if info.Unlimited {
		info.Used, info.Capacity, info.Remaining, info.ResetAfter, info.Regions = 0, 0, 0, 0, nil
	}
	if k.Ban != nil {
		info.Ban = newListedBan(*k.Ban, now)
	}
	if k.Grant != nil {
		info.Grant = newListedGrant(*k.Grant, now)
	}
	return info
}

// KeyList is the answer of GET /api/v1/keys.
type KeyList struct {
	Keys []KeyInfo `json:"keys"`
	// For the hottest keys only: how many keys of the store were looked at, of about how many, and
	// whether these were all. Banned is how many keys of the limit are banned; most of them have no
	// counter.
	Looked   int  `json:"looked_at,omitempty"`
	Of       int  `json:"of,omitempty"`
	Complete bool `json:"complete,omitempty"`
	Banned   int  `json:"banned,omitempty"`
	// Rules are the rules that the name stands for, each behind its domain: shop/login.
	Rules []string `json:"rules,omitempty"`
	// Refused are the keys that limits refused most within the last minute, from memory.
	Refused []insight.KeyCount `json:"refused,omitempty"`
	// Limits are the limits to choose from, if none was named.
	Limits []string `json:"limits,omitempty"`
}

func newKeyList(infos []weir.KeyInfo) KeyList {
	list, now := KeyList{Keys: []KeyInfo{}}, time.Now()
	for i := range infos {
		list.Keys = append(list.Keys, newKeyInfo(&infos[i], now))
	}
	return list
}

// KeyPath returns the path of a key's state on the admin port. parts are as from
// rule.Window.KeyParts.
func KeyPath(domain, limit string, parts []string) string {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escapePart(p)
	}
	return keyPrefix + escapePart(domain) + "/" + escapePart(limit) + "/" + strings.Join(escaped, ",")
}

// escapePart escapes a part for a path segment in which "," separates parts. It also escapes a
// segment of dots, which clients would resolve.
func escapePart(s string) string {
	s = strings.ReplaceAll(url.PathEscape(s), ",", "%2C")
	if s == "." || s == ".." {
		s = strings.ReplaceAll(s, ".", "%2E")
	}
	return s
}

// mostKeys bounds ?top=.
const mostKeys = 10_000

// Time limits for the store: for one key, and for the hottest of all.
const (
	keyPatience  = 5 * time.Second
	keysPatience = time.Minute
)

// keyProblem answers for a key that cannot be shown or reset. If the counters cannot be reached, an
// operator sees why.
func keyProblem(w http.ResponseWriter, err error) {
	text := strings.TrimPrefix(err.Error(), "weir: ")
	switch {
	case errors.Is(err, weir.ErrNoSuchLimit):
		answer.Problem(w, http.StatusNotFound, text, "limit")
	case errors.Is(err, weir.ErrBadKey):
		answer.Problem(w, http.StatusBadRequest, text, "key")
	case errors.Is(err, weir.ErrNotFound):
		answer.Problem(w, http.StatusNotFound, "key: nothing is counted for it, and it is not banned", "key")
	case errors.Is(err, store.ErrNoInspector):
		answer.Problem(w, http.StatusNotFound, text, "")
	case errors.Is(err, weir.ErrListing):
		w.Header().Set("Retry-After", strconv.Itoa(int(keyPatience/time.Second)))
		answer.Problem(w, http.StatusServiceUnavailable, strings.TrimPrefix(weir.ErrListing.Error(), "weir: "), "")
	default:
		answer.Problem(w, http.StatusServiceUnavailable, "the counters cannot be reached: "+text, "")
	}
}

// number reads a parameter that is a number from 1 to most; 0 if it is absent.
func number(w http.ResponseWriter, q url.Values, name string, most int) (n int, ok bool) {
	s := q.Get(name)
	if s == "" {
		return 0, true
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		answer.Problem(w, http.StatusBadRequest, fmt.Sprintf("%s: must be a number from 1 to %d", name, most), name)
		return 0, false
	}
	return n, true
}

// keys serves the hottest keys of a limit or, with ?key=, the state of one key and its reset.
func (a *Handler) keys(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		c, err := readChange(w, r)
		if err == nil && c.sets() {
			err = errors.New("a reset takes domain, limit, key and reason, and nothing else")
		}
		if err != nil {
			answer.BadRequest(w, err)
			return
		}
		a.resetKey(w, r, c.Domain, c.Limit, c.Key, c.Reason)
		return
	}
	q := r.URL.Query()
	name := q.Get("limit")
	role := sender(r).Role
	if q.Has("key") {
		switch {
		case role < auth.Support: // this role must not learn whether the key exists
			answer.Problem(w, http.StatusForbidden,
				"a single key needs the role support; you are "+role.String(), "key")
		case name == "":
			a.showKeyEverywhere(w, r, q.Get("domain"), q["key"])
		default:
			a.showKey(w, r, q.Get("domain"), name, q["key"], false)
		}
		return
	}
	var o weir.HottestOptions
	var ok bool
	if o.Keys, ok = number(w, q, "top", mostKeys); !ok {
		return
	}
	if q.Get("look") == "all" {
		o.Look = -1
	} else if o.Look, ok = number(w, q, "look", 1<<31-1); !ok {
		return
	}
	if name == "" {
		a.limitsToAsk(w, r, q.Get("domain"))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), keysPatience)
	defer cancel()
	found, err := a.limiter.Keys().Hottest(ctx, q.Get("domain"), name, o)
	if err != nil {
		keyProblem(w, err)
		return
	}
	list := newKeyList(found.Keys)
	m := a.maskFor(role)
	for i := range list.Keys {
		m.keyInfo(&list.Keys[i])
	}
	list.Refused = a.refusedMost(ctx, q.Get("domain"), name, role)
	list.Looked, list.Of, list.Complete, list.Banned = found.Looked, found.Of, found.Complete, found.Banned
	for _, r := range found.Rules {
		list.Rules = append(list.Rules, r.Domain+"/"+r.Name)
	}
	writeJSON(w, list)
}

// refusedMost returns the keys of a limit that were refused most within the last minute; none if
// that is not known.
func (a *Handler) refusedMost(ctx context.Context, domain, limit string, role auth.Role) []insight.KeyCount {
	if a.o.Insight == nil {
		return nil
	}
	list, err := a.listTopKeys(ctx,
		insight.KeysQuery{Domain: domain, Limit: limit, By: insight.ByRefused, Over: time.Minute,
			N: refusedShown}, role)
	if err != nil {
		return nil
	}
	return list.Keys
}

// refusedShown bounds KeyList.Refused.
const refusedShown = 20

// limitsToAsk answers a request for keys that names no limit: with the limits to choose from, and
// the keys that were refused most.
func (a *Handler) limitsToAsk(w http.ResponseWriter, r *http.Request, domain string) {
	if !a.known(w, domain, "") {
		return
	}
	list := KeyList{Keys: []KeyInfo{}, Limits: []string{}}
	set, _ := a.limiter.Rules()
	if set != nil {
		for _, r := range set.Rules() {
			if name := r.Domain + "/" + r.Name; (domain == "" || domain == r.Domain) &&
				!slices.Contains(list.Limits, name) {
				list.Limits = append(list.Limits, name)
			}
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	list.Refused = a.refusedMost(ctx, domain, "", sender(r).Role)
	writeJSON(w, list)
}

// splitKeyPath splits an escaped path that names a key. status is 0 if the path is valid.
func splitKeyPath(escaped string) (domain, limit string, parts []string, status int, detail string) {
	segments := strings.Split(strings.TrimPrefix(escaped, keyPrefix), "/")
	if len(segments) != 3 || segments[0] == "" {
		return "", "", nil, http.StatusNotFound,
			"the path is /api/v1/keys/{domain}/{limit}/{key}, each of them URL-escaped"
	}
	domain, err1 := url.PathUnescape(segments[0])
	limit, err2 := url.PathUnescape(segments[1])
	if err1 != nil || err2 != nil {
		return "", "", nil, http.StatusBadRequest, "the path holds a bad percent-encoding"
	}
	if segments[2] != "" {
		for p := range strings.SplitSeq(segments[2], ",") {
			part, err := url.PathUnescape(p)
			if err != nil {
				return "", "", nil, http.StatusBadRequest, "key: holds a bad percent-encoding"
			}
			parts = append(parts, part)
		}
	}
	return domain, limit, parts, 0, ""
}

// key serves the state of one key, and its reset, by its path.
func (a *Handler) key(w http.ResponseWriter, r *http.Request) {
	domain, limit, parts, status, detail := splitKeyPath(r.URL.EscapedPath())
	switch {
	case status != 0:
		answer.Problem(w, status, detail, "")
	case r.Method == http.MethodDelete:
		a.resetKey(w, r, domain, limit, parts, r.URL.Query().Get("reason"))
	default:
		a.showKey(w, r, domain, limit, parts, true)
	}
}

// showKey answers with a list of the state of a key under each window of a limit. If bare, it
// answers with the state alone for a limit of a single window.
func (a *Handler) showKey(w http.ResponseWriter, r *http.Request, domain, limit string, parts []string, bare bool) {
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	infos, err := a.limiter.Keys().Get(ctx, domain, limit, parts)
	if err != nil {
		keyProblem(w, err)
		return
	}
	list := newKeyList(infos)
	if bare && len(list.Keys) == 1 {
		writeJSON(w, list.Keys[0])
		return
	}
	writeJSON(w, list)
}

// mostMet bounds the rules that are asked about a key at once.
const mostMet = 256

// showKeyEverywhere answers with a list of the state of a key under each limit whose keys have the
// same parts. The list is empty if no limit counts the key.
func (a *Handler) showKeyEverywhere(w http.ResponseWriter, r *http.Request, domain string, parts []string) {
	if !a.known(w, domain, "") {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	var infos []weir.KeyInfo
	asked := map[[2]string]bool{} // rules with one name are asked for together
	if set, _ := a.limiter.Rules(); set != nil {
		for _, x := range set.Rules() {
			name := [2]string{x.Domain, x.Name}
			if domain != "" && domain != x.Domain || asked[name] || len(asked) == mostMet {
				continue
			}
			found, err := a.limiter.Keys().Get(ctx, x.Domain, x.Name, parts)
			switch {
			case errors.Is(err, weir.ErrBadKey), errors.Is(err, weir.ErrNoSuchLimit):
				continue // it counts other keys, or is gone meanwhile
			case err != nil && !errors.Is(err, weir.ErrNotFound):
				keyProblem(w, err)
				return
			}
			asked[name] = true
			infos = append(infos, found...)
		}
	}
	writeJSON(w, newKeyList(infos))
}

// counted is the state of a key under a window before its reset, in an audit record.
type counted struct {
	Limit string `json:"limit"`
	Used  int64  `json:"used"`
}

// resetKey resets a key under all windows of a limit.
func (a *Handler) resetKey(w http.ResponseWriter, r *http.Request, domain, limit string, parts []string,
	reason string) {
	ctx, cancel := context.WithTimeout(r.Context(), keyPatience)
	defer cancel()
	infos, err := a.limiter.Keys().Get(ctx, domain, limit, parts)
	if errors.Is(err, weir.ErrNotFound) {
		answer.Problem(w, http.StatusNotFound, "key: nothing is counted for it", "key")
		return
	}
	if err != nil {
		keyProblem(w, err)
		return
	}
	var before []counted
	for i := range infos {
		info := newKeyInfo(&infos[i], time.Now())
		if infos[i].Counted {
			before = append(before, counted{info.Limit, info.Used})
		}
	}
	if before == nil { // banned, and nothing else
		answer.Problem(w, http.StatusNotFound, "key: nothing is counted for it", "key")
		return
	}
	first := &infos[0]
	e, ok := a.record(w, r, audit.Entry{
		What: "key reset", Domain: first.Window.Rule.Domain, Limit: limit, Key: strings.Join(first.Parts, ","),
		Before: before, Note: reason,
	})
	if !ok {
		return
	}
	_, err = a.limiter.Keys().Reset(ctx, domain, limit, parts)
	if errors.Is(err, weir.ErrNotFound) { // it was forgotten meanwhile
		err = nil
	}
	a.made(e, err)
	if err != nil {
		keyProblem(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
