package httplimit

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"
)

// hint is one limit as a server announces it.
type hint struct {
	name   string        // "" where the fields have no names
	left   int64         // requests
	reset  time.Duration // until it may be more
	quota  int64         // requests; 0 if not known
	window time.Duration // 0 if not known
	whole  time.Duration // until all of the quota is there again, if that is later; else 0
}

// Bounds on the announcements of a server that are believed.
const (
	maxHints     = 8         // limits
	maxHintBytes = 4 << 10   // of a field
	maxReset     = time.Hour // a longer one is asked about again after it
	maxHintName  = 128       // longer ones are cut
)

// appendHints appends the limits that h describes to dst, at most maxHints of them, those with the
// least left; now is the instant at which h came. Of the forms that a server uses beside each other
// the newest counts: RateLimit (drafts 8 to 11, and their successors; then 7), RateLimit-Limit,
// -Remaining and -Reset (drafts 3 to 6), and X-RateLimit-Limit, -Remaining and -Reset or
// X-Rate-Limit-…, with the limits that providers of models name one by one (see appendNamed). The
// last of each three is a time as timeOf reads it. Malformed fields are ignored, and so are answers
// from a cache.
func appendHints(dst []hint, h http.Header, now time.Time) []hint {
	start := len(dst)
	if len(h["Age"]) > 0 {
		return dst
	}
	if dst = appendStructured(dst, h); len(dst) > start {
		return dst
	}
	if dst = appendTriple(dst, h, hdr03Limit, hdr03Remains, hdr03Reset, now); len(dst) > start {
		if p := &dst[start]; p.quota > 0 {
			p.window = windowOf(h, p.quota)
		}
		return dst
	}
	if dst = appendTriple(dst, h, hdrLimit, hdrRemaining, hdrReset, now); len(dst) == start {
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
func appendStructured(dst []hint, h http.Header) []hint {
	lines := fieldOf(h, hdrRateLimit)
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
		dst = addHint(dst, start, hint{name: name, left: left, reset: resetIn(reset)})
	}
	if len(dst) == start {
		return dst
	}
	policies, _ := httpsfv.UnmarshalList(fieldOf(h, hdrPolicy)) // none if they are malformed
	for _, member := range policies {
		if item, ok := member.(httpsfv.Item); ok {
			for i := range dst[start:] {
				if p := &dst[start+i]; item.Value == p.name {
					p.quota, _ = wholeParam(item.Params, "q")
					seconds, _ := wholeParam(item.Params, "w")
					p.window = resetIn(seconds)
				}
			}
		}
	}
	for i := range dst[start:] {
		p := &dst[start+i]
		p.name = strings.Clone(p.name[:min(len(p.name), maxHintName)]) // holds on to no header
	}
	return dst
}

// append07 reads what draft 7 has: limit=100, remaining=50, reset=5.
func append07(dst []hint, lines []string) []hint {
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
	return append(dst, hint{left: left, reset: resetIn(reset), quota: quota})
}

// appendTriple reads the three fields that speak of one limit.
func appendTriple(dst []hint, h http.Header, limit, remaining, reset string, now time.Time) []hint {
	left, ok := leadingWhole(h, remaining)
	at, form := resetOf(h, reset, now)
	if !ok || form == noTime {
		return dst
	}
	quota, _ := leadingWhole(h, limit)
	return append(dst, hint{left: left, quota: quota, reset: at})
}

// windowOf returns the window that RateLimit-Policy of drafts 3 to 6 gives to a quota; 0 if none.
func windowOf(h http.Header, quota int64) time.Duration {
	policies, err := httpsfv.UnmarshalList(fieldOf(h, hdrPolicy))
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
func addHint(dst []hint, start int, p hint) []hint {
	if len(dst)-start < maxHints {
		return append(dst, p)
	}
	most := start
	for i := start; i < len(dst); i++ {
		if dst[i].left > dst[most].left {
			most = i
		}
	}
	if p.left < dst[most].left {
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
	return time.Duration(min(seconds, int64(maxReset/time.Second))) * time.Second
}
