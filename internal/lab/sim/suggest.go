package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

// SuggestOptions say how limits are proposed. That takes three passes over the log. The first, the
// replay itself, learns the routes and the behaviour of each client (survey.go). The second
// measures how much each key asks for, and the third counts what the proposals would refuse.
type SuggestOptions struct {
	// Open opens the log anew.
	Open func() (*accesslog.Log, error)
	// Load reads a rule file.
	Load func(text string) (*rule.Set, error)
}

// suggester measures how much each key asks for at its busiest, as the default algorithm counts.
// With N at a key's peak the key is never refused; with a smaller N it is.
type suggester struct {
	survey *survey
	scopes []*scope
	mixed  bool // some requests have a user, others none
}

// scope is one kind of key on some of the requests.
type scope struct {
	name   string
	per    string // "" of a limit that all share
	writes bool
	route  *route // nil for all
	// general scopes are always proposed, whatever they would refuse
	general bool
	index   map[uint64]int32
	keys    []keyRates
	gone    [len(rateWindows)]map[int64]int64 // peaks of dropped keys: peak → keys
	// requests by hour of clients without anything against them, for a limit that all share
	hours map[int64]int64

	ordinary, outliers int // keys, when measured
	limits             [len(rateWindows)]int64
	peaks              []Peak
	allow              []string
}

var rateWindows = [...]struct {
	name, unit string
	size       int64 // µs
}{{"minute", "min", 60e6}, {"hour", "hour", 3600e6}, {"day", "day", 86400e6}}

// keyRates is the state of one key.
type keyRates struct {
	hash        uint64
	windows     [len(rateWindows)]judge.Demand
	last        int64
	ok, answers int32
	requests    int32
	suspect     int32 // requests of clients of a crowd
}

const (
	rateBound  = 200_000
	fewestKeys = 20 // with fewer, nothing is proposed: the busiest would set the limit
	manyKeys   = 1000
	// ordinaryPart of all keys must be ordinary: a quarter.
	ordinaryPart = 4
	// An ordinary key does not ask for more than outlierTimes p99 (see high).
	outlierTimes = 3
	// A limit that all share on a route is shareTimes the busiest ordinary hour, but at least
	// fewestShared, so that somebody can use the route even if nobody ordinary did.
	shareTimes   = 1.5
	fewestShared = 5
)

func newScope(name, per string) *scope {
	x := &scope{name: name, per: per, index: make(map[uint64]int32), hours: map[int64]int64{}}
	for i := range x.gone {
		x.gone[i] = make(map[int64]int64)
	}
	return x
}

// plan chooses what to measure.
func (s *suggester) plan() {
	general := func(name, per string, writes bool) {
		x := newScope(name, per)
		x.writes, x.general = writes, true
		s.scopes = append(s.scopes, x)
	}
	general("per-client", "ip", false)
	general("writes-per-client", "ip", true)
	v := s.survey
	s.mixed = v.users > 0 && v.users*20 > v.requests && v.users*20 < 19*v.requests
	if s.mixed {
		general("per-user-or-client", "user|ip", false)
	} else {
		general("per-user", "user", false)
	}
	names := map[string]int{}
	for _, r := range v.candidates() {
		name := r.slug()
		if names[name]++; names[name] > 1 {
			name += "-" + strconv.Itoa(names[name])
		}
		each := newScope(name+"-per-client", "ip")
		each.route, each.writes = r, r.write
		s.scopes = append(s.scopes, each)
		if r.write && (r.crowd > 0 || r.abused()) {
			all := newScope(name, "")
			all.route, all.writes = r, true
			s.scopes = append(s.scopes, all)
		}
	}
}

// add counts a request in the second pass.
func (s *suggester) add(e *accesslog.Entry) {
	ip, user := e.Get(accesslog.FieldIP), e.Get(accesslog.FieldUser)
	path, _ := routePath(e)
	write := isWrite(e.Get(accesslog.FieldMethod))
	client := s.survey.client(ip, user)
	for _, x := range s.scopes {
		if x.writes && !write || x.route != nil && (x.route.write != write || x.route.path != path) {
			continue
		}
		key := ip
		switch x.per {
		case "":
			if !client.suspect() {
				x.hours[e.Time/3600e6]++
			}
			continue
		case "user":
			key = user
		case "user|ip":
			if user != nil {
				key = user
			}
		}
		if key != nil {
			x.add(xxhash.Sum64(key), e, client.suspect())
		}
	}
}

func isWrite(method []byte) bool {
	switch string(method) {
	case "POST", "PUT", "PATCH", "DELETE":
		return true
	}
	return false
}

func (x *scope) add(hash uint64, e *accesslog.Entry, suspect bool) {
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
	k.requests++
	k.last = e.Time
	if suspect {
		k.suspect++
	}
	if tells, good := answered(e); tells {
		k.answers++
		if good {
			k.ok++
		}
	}
	for i := range k.windows {
		k.windows[i].Add(e.Time, rateWindows[i].size, 1)
	}
}

// ordinaryBy reports whether nothing speaks against the key, except perhaps its demand.
func (k *keyRates) ordinaryBy() bool {
	return 2*k.suspect < k.requests && !poor(k.ok, k.answers)
}

// prune drops the half of the keys that have been idle longest. It keeps the peaks of ordinary
// ones.
func (x *scope) prune() {
	slices.SortStableFunc(x.keys, func(a, b keyRates) int { return cmp.Compare(b.last, a.last) })
	keep := len(x.keys) / 2
	for i := range x.keys[keep:] {
		k := &x.keys[keep+i]
		if !k.ordinaryBy() {
			x.outliers++
			continue
		}
		for i := range k.windows {
			x.gone[i][coarse(k.windows[i].Peak())]++
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

// demands returns the peaks of keys in one window, ascending: of the keys that ordinaryBy accepts,
// or of all.
func (x *scope) demands(window int, all bool) []int64 {
	var list []int64
	for i := range x.keys {
		if k := &x.keys[i]; all || k.ordinaryBy() {
			list = append(list, k.windows[window].Peak())
		}
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
// exceed.
func percentile(list []int64, p int64) int64 {
	n := int64(len(list))
	return list[max((n*p+999)/1000, 1)-1]
}

// measure finds the limits of a scope: for each window the limit that 99.9 % of the ordinary keys
// stay below, if there are at least 1,000 of them, or else the peak of the busiest ordinary key.
func (x *scope) measure() bool {
	if x.per == "" {
		busiest := int64(0)
		for _, n := range x.hours {
			busiest = max(busiest, n)
		}
		n := max(roundUp(int64(float64(busiest)*shareTimes+0.999)), fewestShared)
		x.allow = []string{fmt.Sprintf("%d/hour", n)}
		x.ordinary = int(busiest)
		return true
	}
	// If most keys are not ordinary, the ordinary ones say little.
	if n := len(x.demands(0, false)); n < fewestKeys || n*ordinaryPart < len(x.demands(0, true)) {
		return false
	}
	for i, w := range rateWindows {
		all, list := x.demands(i, true), x.demands(i, false)
		most := outlierTimes * percentile(list, high(len(list)))
		for len(list) > 0 && list[len(list)-1] > most {
			list = list[:len(list)-1]
		}
		p := Peak{Scope: x.name, Per: x.per, Window: w.name, Keys: int64(len(all)), P50: percentile(all, 500),
			P90: percentile(all, 900),
			P99: percentile(all, 990), P999: percentile(all,
				999), Max: all[len(all)-1], Ordinary: int64(len(list)), OrdinaryMax: list[len(list)-1]}
		x.peaks = append(x.peaks, p)
		x.limits[i] = roundUp(percentile(list, 999))
		// A key is an outlier if it is one in any window.
		if i == 0 || len(list) < x.ordinary {
			x.ordinary = len(list)
		}
		x.outliers = len(all) - x.ordinary
	}
	x.allow = worthwhile(x.limits)
	return true
}

// high returns the percentile that shows what is usual among n keys, in thousandths: the 99th, or
// one that leaves out at least three keys.
func high(n int) int64 {
	switch {
	case n >= 300:
		return 990
	case n >= 60:
		return 950
	}
	return 850
}

// condition writes the scope's when in YAML; "" for none.
func (x *scope) condition() string {
	var parts []string
	if x.writes {
		parts = append(parts, "method: [POST, PUT, PATCH, DELETE]")
	}
	if x.route != nil {
		if !x.route.write {
			parts = append(parts, "method: [GET, HEAD]")
		}
		parts = append(parts, "path: "+x.route.pattern())
	}
	if parts == nil {
		return ""
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}

// rule writes the proposal as a rule; with shadow it refuses nothing.
func (x *scope) rule(shadow bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  - name: %s\n", x.name)
	if when := x.condition(); when != "" {
		fmt.Fprintf(&b, "    when: %s\n", when)
	}
	if x.per != "" {
		fmt.Fprintf(&b, "    per: [%s]\n", x.per)
	}
	fmt.Fprintf(&b, "    allow: [%s]\n", strings.Join(x.allow, ", "))
	if shadow {
		b.WriteString("    on_limit: shadow\n")
	}
	return b.String()
}

// suggest proposes limits.
func (s *suggester) suggest(ctx context.Context, domain string, o *SuggestOptions) (*Suggestions, error) {
	out := &Suggestions{Peaks: []Peak{}, Limits: []SuggestedLimit{}}
	s.plan()
	if err := s.read(ctx, o.Open); err != nil {
		return nil, err
	}
	s.scopes = slices.DeleteFunc(s.scopes, func(x *scope) bool { return !x.measure() })
	if len(s.scopes) == 0 {
		return out, nil
	}
	reports, err := s.try(ctx, o)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	if domain != "" {
		fmt.Fprintf(&b, "domain: %s\n", strconv.Quote(domain))
	}
	b.WriteString("limits:\n")
	for _, x := range s.scopes {
		r := reports[x.name]
		if r == nil || !x.general && r.WouldRefuse == 0 {
			continue
		}
		if x.route != nil && x.per != "" && r.WouldRefuse < fewestTold {
			continue
		}
		if x.per == "" && x.route.crowd == 0 {
			// If a limit for each client stops most of the abuse, a limit that all share would only
			// let those few clients shut out the others.
			if each := reports[x.name+"-per-client"]; each != nil && 2*int64(each.WouldRefuse) >= x.route.bad {
				continue
			}
		}
		l := SuggestedLimit{Name: x.name, When: x.condition(), Per: x.per, Allow: x.allow, Requests: int64(r.Met),
			Refused: int64(r.WouldRefuse),
			Status:  r.By["status"], Keys: int64(r.Keys), KeysRefused: int64(r.KeysRefused)}
		if x.per != "" {
			l.Outliers = int64(x.outliers)
		}
		if x.route != nil {
			l.Crowd = int64(x.route.crowd)
		}
		out.Peaks, out.Limits = append(out.Peaks, x.peaks...), append(out.Limits, l)
		for _, line := range x.words(r) {
			fmt.Fprintf(&b, "  # %s\n", line)
		}
		b.WriteString(x.rule(false))
	}
	if len(out.Limits) > 0 {
		out.YAML = b.String()
	}
	return out, nil
}

// fewestTold is the number of refusals that justifies a limit for one route.
const fewestTold = 20

// read is the second pass over the log.
func (s *suggester) read(ctx context.Context, open func() (*accesslog.Log, error)) error {
	log, err := open()
	if err != nil {
		return err
	}
	defer log.Close()
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		e, err := log.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.add(e)
	}
}

// try replays the proposals, each by itself, in a third pass.
func (s *suggester) try(ctx context.Context, o *SuggestOptions) (map[string]*insight.RuleReport, error) {
	var b strings.Builder
	b.WriteString("limits:\n")
	for _, x := range s.scopes {
		b.WriteString(x.rule(true))
	}
	set, err := o.Load(b.String())
	if err != nil {
		return nil, fmt.Errorf("the proposals are no rules: %w", err)
	}
	log, err := o.Open()
	if err != nil {
		return nil, err
	}
	defer log.Close()
	rep, err := Replay(ctx, log, []RuleSet{{Name: "suggested", Domain: set.Domains()[0], Set: set}}, ReplayOptions{})
	if err != nil {
		return nil, err
	}
	reports := map[string]*insight.RuleReport{}
	for i := range rep.ByRule {
		reports[rep.ByRule[i].Name] = &rep.ByRule[i]
	}
	return reports, nil
}

// words explains a proposal in comments: its basis, what it would refuse, and what not.
func (x *scope) words(r *insight.RuleReport) []string {
	var lines []string
	noun := map[string]string{"ip": "client", "user": "user", "user|ip": "client"}[x.per]
	switch {
	case x.per == "":
		lines = append(lines, fmt.Sprintf("%.0f %% of the requests there are answered 401, 403, 429 or 5xx.",
			100*x.route.badShare()))
		if x.route.crowd > 0 {
			lines = []string{"A crowd on one form: " + human.Count(x.route.crowd,
				"client") + " did hardly anything else, each of them seldom,",
				"so that a limit for each stops none. Take this one only if they are not your users: it", "makes no difference between them and others."}
		}
		lines = append(lines, "All others together sent "+human.Count(x.ordinary, "request")+" in their busiest hour.")
	default:
		head := fmt.Sprintf("%s, %s of them ordinary.", human.Count(len(x.demands(0, true)), noun),
			human.Number(int64(x.ordinary)))
		if x.ordinary < manyKeys {
			head += " With fewer than 1,000 the 99.9th percentile is the maximum:"
			lines = append(lines, head, "the limits fit all ordinary ones.")
		} else {
			lines = append(lines, head+" The limits fit 99.9 % of those.")
		}
		for _, p := range x.peaks {
			lines = append(lines, fmt.Sprintf("  %-6s  median %d, p90 %d, p99 %d, busiest %d; busiest ordinary one %d",
				p.Window, p.P50, p.P90, p.P99, p.Max, p.OrdinaryMax))
		}
	}
	if r.WouldRefuse == 0 {
		return append(lines, "In this log it would refuse nothing.")
	}
	refuse := fmt.Sprintf("Would refuse %s of %s%s", human.Number(int64(r.WouldRefuse)), human.Count(r.Met, "request"),
		byStatus(r.By["status"]))
	if x.per != "" {
		refuse += fmt.Sprintf(", of %s of %s", human.Number(int64(r.KeysRefused)), human.Count(r.Keys, noun))
	}
	lines = append(lines, refuse+".")
	if spared := x.outliers - int(r.KeysRefused); x.per != "" && spared > 0 {
		lines = append(lines, fmt.Sprintf("Would not stop %s of %s that are not ordinary.", human.Number(int64(spared)),
			human.Number(int64(x.outliers))))
	} else if x.per == "" {
		lines = append(lines, fmt.Sprintf("Would let %s pass.", human.Count(r.Met-r.WouldRefuse, "request")))
	}
	return lines
}

// byStatus formats refused requests by status: " (200: 12, 302: 3)".
func byStatus(list []insight.Count) string {
	var parts []string
	for i, c := range list {
		if i == 4 {
			parts = append(parts, "…")
			break
		}
		parts = append(parts, c.Value+": "+human.Number(int64(c.Count)))
	}
	if parts == nil {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// worthwhile returns the limits that no other window makes redundant. A longer window does if it
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
