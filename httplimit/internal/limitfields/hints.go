package limitfields

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// Hint is one limit as a server announces it.
type Hint struct {
	Name   string        // "" where the fields have no names
	Left   int64         // requests
	Reset  time.Duration // until it may be more
	Quota  int64         // requests; 0 if not known
	Window time.Duration // 0 if not known
	Whole  time.Duration // until all of the quota is there again, if that is later; else 0
}

// Bounds on the announcements of a server that are believed.
const (
	MaxHints     = 8         // limits
	maxHintBytes = 4 << 10   // of a field
	MaxReset     = time.Hour // a longer one is asked about again after it
	maxHintName  = 128       // longer ones are cut
)

// AppendHints appends the limits that h describes to dst, at most MaxHints of them, those with the
// least left; now is the instant at which h came. Of the forms that a server uses beside each other
// the newest counts: RateLimit (drafts 8 to 11, and their successors; then 7), RateLimit-Limit,
// -Remaining and -Reset (drafts 3 to 6), and X-RateLimit-Limit, -Remaining and -Reset or
// X-Rate-Limit-…, with the limits that providers of models name one by one (see appendNamed). The
// last of each three is a time as timeOf reads it. Malformed fields are ignored, and so are answers
// from a cache.
func AppendHints(dst []Hint, h http.Header, now time.Time) []Hint {
	start := len(dst)
	if len(h["Age"]) > 0 {
		return dst
	}
	if dst = appendStructured(dst, h); len(dst) > start {
		return dst
	}
	if dst = appendTriple(dst, h, Limit03, Remaining03, Reset03, now); len(dst) > start {
		if p := &dst[start]; p.Quota > 0 {
			p.Window = windowOf(h, p.Quota)
		}
		return dst
	}
	if dst = appendTriple(dst, h, Limit, Remaining, Reset, now); len(dst) == start {
		dst = appendTriple(dst, h, "X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset", now)
	}
	return appendNamed(dst, start, h, now)
}

// fieldOf returns the lines of a field; nil if there are none, or they are too long to be believed.
func fieldOf(h http.Header, name string) []string {
	size := 0
	for _, line := range h[name] {
		size += len(line)
	}
	if size > maxHintBytes {
		return nil
	}
	return h[name]
}

// appendStructured reads RateLimit, with the quotas of RateLimit-Policy.
func appendStructured(dst []Hint, h http.Header) []Hint {
	lines := fieldOf(h, RateLimit)
	if len(lines) == 0 {
		return dst
	}
	start := len(dst)
	list, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return append07(dst, lines)
	}
	for _, member := range list {
		item, ok := member.(httpsfv.Item)
		if !ok {
			continue
		}
		name, ok := item.Value.(string)
		if !ok {
			continue
		}
		left, ok := wholeParam(item.Params, "r")
		window := "t"
		if !ok {
			left, ok = wholeParam(item.Params, "a")
			window = "w"
		}
		reset, has := wholeParam(item.Params, window)
		if !ok || !has {
			continue
		}
		dst = addHint(dst, start, Hint{Name: name, Left: left, Reset: resetIn(reset)})
	}
	if len(dst) == start {
		return dst
	}
	policies, _ := httpsfv.UnmarshalList(fieldOf(h, Policy)) // none if they are malformed
	for _, member := range policies {
		if item, ok := member.(httpsfv.Item); ok {
			for i := range dst[start:] {
				if p := &dst[start+i]; item.Value == p.Name {
					p.Quota, _ = wholeParam(item.Params, "q")
					seconds, _ := wholeParam(item.Params, "w")
					p.Window = resetIn(seconds)
				}
			}
		}
	}
	for i := range dst[start:] {
		p := &dst[start+i]
		p.Name = strings.Clone(p.Name[:min(len(p.Name), maxHintName)]) // holds on to no header
	}
	return dst
}

// append07 reads what draft 7 has: limit=100, remaining=50, reset=5.
func append07(dst []Hint, lines []string) []Hint {
	dictionary, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil {
		return dst
	}
	whole := func(key string) (int64, bool) {
		member, _ := dictionary.Get(key)
		item, _ := member.(httpsfv.Item)
		n, ok := item.Value.(int64)
		return n, ok && n >= 0
	}
	left, ok := whole("remaining")
	reset, has := whole("reset")
	quota, _ := whole("limit")
	if !ok || !has {
		return dst
	}
	return append(dst, Hint{Left: left, Reset: resetIn(reset), Quota: quota})
}

// appendTriple reads the three fields that speak of one limit.
func appendTriple(dst []Hint, h http.Header, limit, remaining, reset string, now time.Time) []Hint {
	left, ok := leadingWhole(h, remaining)
	at, form := resetOf(h, reset, now)
	if !ok || form == noTime {
		return dst
	}
	quota, _ := leadingWhole(h, limit)
	return append(dst, Hint{Left: left, Quota: quota, Reset: at})
}

// windowOf returns the window that RateLimit-Policy of drafts 3 to 6 gives to a quota; 0 if none.
func windowOf(h http.Header, quota int64) time.Duration {
	policies, err := httpsfv.UnmarshalList(fieldOf(h, Policy))
	if err != nil {
		return 0
	}
	for _, member := range policies {
		if item, ok := member.(httpsfv.Item); ok && item.Value == quota {
			seconds, _ := wholeParam(item.Params, "w")
			return resetIn(seconds)
		}
	}
	return 0
}

// addHint appends p, or puts it in the place of the one that has the most left if there is no room.
func addHint(dst []Hint, start int, p Hint) []Hint {
	if len(dst)-start < MaxHints {
		return append(dst, p)
	}
	most := start
	for i := start; i < len(dst); i++ {
		if dst[i].Left > dst[most].Left {
			most = i
		}
	}
	if p.Left < dst[most].Left {
		dst[most] = p
	}
	return dst
}

func wholeParam(params *httpsfv.Params, key string) (int64, bool) {
	if params == nil {
		return 0, false
	}
	v, _ := params.Get(key)
	n, ok := v.(int64)
	return n, ok && n >= 0
}

// leadingWhole reads the whole number at the beginning of a field: some append policies to it, or a
// fraction.
func leadingWhole(h http.Header, name string) (int64, bool) {
	lines := fieldOf(h, name)
	if len(lines) == 0 {
		return 0, false
	}
	s := strings.TrimLeft(lines[0], " \t")
	end := 0
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	if end < len(s) && strings.IndexByte(",; .\t", s[end]) < 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(s[:end], 10, 64)
	return n, err == nil
}

func resetIn(seconds int64) time.Duration {
	return time.Duration(min(seconds, int64(MaxReset/time.Second))) * time.Second
}
