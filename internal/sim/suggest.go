package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/internal/accesslog"
)

// suggester measures how much each key asks for at its busiest, as the default algorithm counts:
// with N at a key's peak that key is never refused, with N below it is.
type suggester struct {
	scopes []*scope
}

// scope is one kind of key.
type scope struct {
	name   string
	per    string
	when   string // condition in YAML; "" for none
	writes bool
	index  map[uint64]int32
	keys   []keyRates
	gone   [len(rateWindows)]map[int64]int64 // peaks of keys that were dropped: peak → keys
}

var rateWindows = [...]struct {
	name, unit string
	size       int64 // µs
}{{"minute", "min", 60e6}, {"hour", "hour", 3600e6}, {"day", "day", 86400e6}}

// keyRates is the state of one key: for each window a sliding_window of one bucket without a limit.
type keyRates struct {
	hash    uint64
	windows [len(rateWindows)]rateWindow
}

type rateWindow struct {
	index             int64 // of the current window
	current, previous int64
	peak              int64
}

const (
	rateBound  = 200_000
	fewestKeys = 20 // fewer propose nothing: the busiest of them would set the limit
)

func newSuggester() *suggester {
	s := &suggester{scopes: []*scope{
		{name: "per-client", per: "ip"},
		{name: "writes-per-client", per: "ip", when: "{ method: [POST, PUT, PATCH, DELETE] }", writes: true},
		{name: "per-user", per: "user"},
	}}
	for _, x := range s.scopes {
		x.index = make(map[uint64]int32)
		for i := range x.gone {
			x.gone[i] = make(map[int64]int64)
		}
	}
	return s
}

func (s *suggester) add(e *accesslog.Entry, client uint64) {
	ip := e.Get(accesslog.FieldIP) != nil
	if ip {
		s.scopes[0].add(client, e.Time)
	}
	if ip && isWrite(e.Get(accesslog.FieldMethod)) {
		s.scopes[1].add(client, e.Time)
	}
	if user := e.Get(accesslog.FieldUser); user != nil {
		s.scopes[2].add(xxhash.Sum64(user), e.Time)
	}
}

func isWrite(method []byte) bool {
	switch string(method) {
	case "POST", "PUT", "PATCH", "DELETE":
		return true
	}
	return false
}

func (x *scope) add(hash uint64, now int64) {
	i, ok := x.index[hash]
	if !ok {
		if len(x.keys) == rateBound {
			x.prune()
		}
		i = int32(len(x.keys))
		x.index[hash] = i
		x.keys = append(x.keys, keyRates{hash: hash})
	}
	k := &x.keys[i]
	for i := range k.windows {
		k.windows[i].add(now, rateWindows[i].size)
	}
}

func (w *rateWindow) add(now, size int64) {
	if n := now / size; n != w.index {
		if n == w.index+1 {
			w.previous = w.current
		} else {
			w.previous = 0
		}
		w.index, w.current = n, 0
	}
	w.current++
	if w.current+w.previous > w.peak {
		overlap := size - now%size
		// previous × overlap fits: a window holds far fewer than 2^63 / 86400e6 requests of one
		// key.
		w.peak = max(w.peak, w.current+w.previous*overlap/size)
	}
}

// prune drops the half of the keys that have been idle longest; their peaks stay.
func (x *scope) prune() {
	last := len(rateWindows) - 1
	slices.SortStableFunc(x.keys, func(a, b keyRates) int {
		return cmp.Or(cmp.Compare(b.windows[0].index, a.windows[0].index), cmp.Compare(b.windows[last].current, a.windows[last].current))
	})
	keep := len(x.keys) / 2
	for _, k := range x.keys[keep:] {
		for i, w := range k.windows {
			x.gone[i][coarse(w.peak)]++
		}
	}
	x.keys = x.keys[:keep]
	clear(x.index)
	for i := range x.keys {
		x.index[x.keys[i].hash] = int32(i)
	}
}

// coarse rounds a peak up to three digits, so that there are few different ones.
func coarse(n int64) int64 {
	step := int64(1)
	for n/step >= 1000 {
		step *= 10
	}
	return (n + step - 1) / step * step
}

// peaks returns the peaks of all keys in one window, ascending.
func (x *scope) peaks(window int) []int64 {
	var list []int64
	for i := range x.keys {
		list = append(list, x.keys[i].windows[window].peak)
	}
	for peak, n := range x.gone[window] {
		for range n {
			list = append(list, peak)
		}
	}
	slices.Sort(list)
	return list
}

// percentile returns the smallest value that at least the share p/1000 of the sorted list does not
// pass.
func percentile(list []int64, p int64) int64 {
	n := int64(len(list))
	return list[max((n*p+999)/1000, 1)-1]
}

// suggest proposes limits: for each kind of key the 99.9th percentile of the keys' peaks where
// there are at least 1,000 of them, else the 99th, rounded up.
func (s *suggester) suggest(domain string) *Suggestions {
	out := &Suggestions{Peaks: []Peak{}}
	var b strings.Builder
	if domain != "" {
		fmt.Fprintf(&b, "domain: %s\n", strconv.Quote(domain))
	}
	b.WriteString("limits:\n")
	any := false
	for _, x := range s.scopes {
		total := len(x.keys)
		for _, n := range x.gone[0] {
			total += int(n)
		}
		if total < fewestKeys {
			continue
		}
		any = true
		share, rank := "99 %", int64(990)
		if total >= 1000 {
			share, rank = "99.9 %", 999
		}
		var comment strings.Builder
		var limits [len(rateWindows)]int64
		for i, w := range rateWindows {
			list := x.peaks(i)
			p := Peak{Scope: x.name, Per: x.per, Window: w.name, Keys: int64(len(list)), P50: percentile(list, 500), P90: percentile(list, 900),
				P99: percentile(list, 990), P999: percentile(list, 999), Max: list[len(list)-1]}
			out.Peaks = append(out.Peaks, p)
			limits[i] = roundUp(percentile(list, rank))
			over := len(list) - upTo(list, limits[i])
			fmt.Fprintf(&comment, "  #   %-6s  median %d, p90 %d, p99 %d, p99.9 %d, busiest %d; more than %d: %s\n", w.name, p.P50, p.P90, p.P99, p.P999, p.Max, limits[i], plural(over, x.per))
		}
		allow := worthwhile(limits)
		fmt.Fprintf(&b, "  # %s. Requests of one in its busiest minute, hour and day; the limits fit %s of them.\n", plural(total, x.per), share)
		b.WriteString(comment.String())
		fmt.Fprintf(&b, "  - name: %s\n", x.name)
		if x.when != "" {
			fmt.Fprintf(&b, "    when: %s\n", x.when)
		}
		fmt.Fprintf(&b, "    per: [%s]\n    allow: [%s]\n", x.per, strings.Join(allow, ", "))
	}
	if !any {
		return out
	}
	out.YAML = b.String()
	return out
}

// worthwhile writes the limits that no other window makes redundant. A longer window does if it
// allows no more, and a shorter one if it allows no more over the whole of this window.
func worthwhile(limits [len(rateWindows)]int64) []string {
	var allow []string
next:
	for i, w := range rateWindows {
		for k, other := range rateWindows {
			if k > i && limits[k] <= limits[i] || k < i && limits[k]*(w.size/other.size) <= limits[i] {
				continue next
			}
		}
		allow = append(allow, fmt.Sprintf("%d/%s", limits[i], w.unit))
	}
	return allow
}

// upTo counts the values of a sorted list that are at most n.
func upTo(list []int64, n int64) int {
	at, _ := slices.BinarySearch(list, n+1)
	return at
}

func plural(n int, per string) string {
	noun := map[string]string{"ip": "client", "user": "user"}[per]
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%s %s", Number(int64(n)), noun)
}

// Number writes n with commas.
func Number(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// roundUp rounds up to a number that a person would choose: two digits, above ten in steps of five.
func roundUp(n int64) int64 {
	step := int64(1)
	for n/step >= 100 {
		step *= 10
	}
	if n > 10 && n < 100 {
		step = 5
	}
	return (n + step - 1) / step * step
}
