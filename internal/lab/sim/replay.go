package sim

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/rule"
)

// RuleSet is a set of rules with the name and the domain under which to replay it.
type RuleSet struct {
	Name   string // as the report calls it
	Domain string
	Set    *rule.Set
	// Texts are the files of the set, by the names that positions use, so that proposals can
	// include a patch. May be nil.
	Texts map[string]string
}

// ReplayOptions configure Replay.
type ReplayOptions struct {
	Suggest *SuggestOptions // propose limits; nil for none
	Top     int             // clients and paths to list; 0 means 20
}

const (
	clientBound = 200_000
	pathBound   = 50_000
)

// Replay runs a log through one or two rule sets, or through none, in virtual time. Its memory does
// not grow with the log.
func Replay(ctx context.Context, log *accesslog.Log, sets []RuleSet, o ReplayOptions) (*Report, error) {
	if len(sets) > maxSets {
		return nil, fmt.Errorf("sim: at most %d rule sets can be compared", maxSets)
	}
	if o.Top <= 0 {
		o.Top = 20
	}
	r := &replay{clients: newTally(clientBound), paths: newTally(pathBound), options: o}
	r.requests = r.timeline.column()
	defer r.close()
	for i := range sets {
		if err := r.addSet(i, sets[i]); err != nil {
			return nil, err
		}
	}
	if o.Suggest != nil {
		r.survey = newSurvey()
	}
	for n := 0; ; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		entry, err := log.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if err := r.step(entry); err != nil {
			return nil, err
		}
	}
	rep := r.report(log.Stats())
	rep.noteReading(log)
	if r.survey != nil {
		domain := ""
		if len(r.sets) > 0 {
			domain = r.sets[0].Domain
		}
		var err error
		if rep.Suggestions, err = (&suggester{survey: r.survey}).suggest(ctx, domain, o.Suggest); err != nil {
			return nil, err
		}
	}
	return rep, nil
}

// replay is the state of a Replay.
type replay struct {
	options   ReplayOptions
	sets      []*outcome
	attribute attributes
	count     int64
	from, to  int64
	clients   *tally
	distinct  [maxSets + 1]keySet // clients; those denied by set i are in i
	paths     *tally
	timeline  timeline
	requests  int     // column
	survey    *survey // for proposals
	both      int64
	only      [maxSets]int64
	user      bool // the current request has one
	spread    spread
}

// outcome is the state of one rule set.
type outcome struct {
	RuleSet
	number   int
	engine   *Engine
	request  weir.Request
	paths    bool // rule.Fields.Paths
	decision weir.Decision
	limits   []limitState
	byWindow map[*rule.Window]int
	// attributes that rules of the Lyft form need, and that no request has had so far
	unseen map[string]bool
	// attributes that the rules read, in order, until a request has one of them; nil after that
	reads     []string
	column    int
	allowed   int64
	denied    int64
	exempt    int64
	unlimited int64
	delayed   int64
	maxDelay  int64
	failures  []Failure
	place     map[failure]int       // in failures
	alike     map[*rule.Alike]int64 // further failures of rules that are alike
	tallies   map[*rule.Rule]*ruleTally
	refusing  []*ruleTally // of the request at hand
	answers   answers
}

// failure identifies an expression.
type failure struct {
	rule *rule.Rule
	key  string
}

// countFailures counts the expressions that failed on a request. Rules that are alike share one
// count, except for the first failure, which counts for each of them.
func (x *outcome) countFailures(m *rule.Matches) {
	for _, f := range m.Failures() {
		if f.Alike == nil {
			x.failed(f.Rule, f.Key, f.Err)
		} else if n, known := x.alike[f.Alike]; known {
			x.alike[f.Alike] = n + 1
		} else {
			x.alike[f.Alike] = 0
			for _, r := range f.Alike.Rules {
				x.failed(r, f.Key, f.Err)
			}
		}
	}
}

// shareFailures adds the shared count of alike rules to each of them.
func (x *outcome) shareFailures() {
	for a, n := range x.alike {
		for _, r := range a.Rules {
			x.failures[x.place[failure{r, "if"}]].Count += n
			if t := x.tallies[r]; t != nil {
				t.facts.Errors += uint64(n)
			}
		}
	}
	clear(x.alike)
}

// failed counts an expression that failed.
func (x *outcome) failed(r *rule.Rule, key string, err error) {
	k := failure{r, key}
	i, ok := x.place[k]
	if !ok {
		i = len(x.failures)
		x.place[k] = i
		x.failures = append(x.failures, Failure{Rule: r.Name, Key: key, First: harmless(err.Error())})
	}
	x.failures[i].Count++
	if t := x.tallies[r]; t != nil {
		t.failed(key, err)
	}
}

// harmless spells an error, which may quote any text of the log, so that it is short and does not
// steer a terminal.
func harmless(text string) string {
	const most = 200
	var b strings.Builder
	for _, r := range text {
		if b.Len() >= most {
			b.WriteString("…")
			break
		}
		if unicode.IsPrint(r) && r != utf8.RuneError {
			b.WriteRune(r)
		} else {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

type limitState struct {
	window  *rule.Window
	allowed int64
	denied  int64
	banned  int64
	keys    keySet
	column  int // 0 means not set yet: column 0 holds the requests
}

func (r *replay) addSet(number int, s RuleSet) error {
	engine, err := NewEngine(s.Set)
	if err != nil {
		return err
	}
	x := &outcome{RuleSet: s, number: number, engine: engine, byWindow: make(map[*rule.Window]int),
		column: r.timeline.column(),
		place:  map[failure]int{}, alike: map[*rule.Alike]int64{}}
	x.request = weir.Request{Domain: s.Domain, Attributes: &r.attribute, Hits: 1, MaxDelay: weir.RuleDelay}
	fields := s.Set.Fields(s.Domain)
	x.paths = fields != nil && fields.Paths
	if names, all := s.Set.Reads(s.Domain); !all {
		x.reads = names
	}
	var rules []*rule.Rule
	for _, rl := range s.Set.Rules() {
		if rl.Domain == s.Domain {
			rules = append(rules, rl)
		}
	}
	x.tallies = make(map[*rule.Rule]*ruleTally, len(rules))
	for _, rl := range rules {
		x.tallies[rl] = newRuleTally(rl, max(sampleBound/len(rules), fewestSampled))
		x.expect(rl)
		for _, w := range rl.Windows {
			if w.Limit != nil {
				x.limit(w)
			}
		}
	}
	r.sets = append(r.sets, x)
	return nil
}

func (r *replay) close() {
	for _, x := range r.sets {
		x.engine.Close()
	}
}

// limit returns the place of a window in x.limits. A window of an override counts under its name as
// if it belonged to the rule itself.
func (x *outcome) limit(w *rule.Window) int {
	if i, ok := x.byWindow[w]; ok {
		return i
	}
	at := -1
	for i := range x.limits {
		if x.limits[i].window.Rule == w.Rule && x.limits[i].window.Name == w.Name {
			at = i
			break
		}
	}
	if at < 0 {
		at = len(x.limits)
		x.limits = append(x.limits, limitState{window: w})
	}
	x.byWindow[w] = at
	return at
}

// step replays one entry.
func (r *replay) step(e *accesslog.Entry) error {
	r.attribute.entry = e
	if r.count == 0 {
		r.from = e.Time
	}
	r.to = e.Time
	if len(r.sets) > 0 {
		r.spread.add(r.count, e)
	}
	r.count++
	bucket := r.timeline.at(e.Time)
	r.timeline.columns[r.requests][bucket]++

	client, user := e.Get(accesslog.FieldIP), e.Get(accesslog.FieldUser)
	if client == nil {
		client = user
	}
	r.user = user != nil
	clientHash := uint64(0)
	if client != nil {
		clientHash = xxhash.Sum64(client)
		r.distinct[maxSets].add(clientHash, false)
	}
	var denied [maxSets]bool
	for i, x := range r.sets {
		allowed, err := x.decide(r, e.Time, bucket)
		if err != nil {
			return err
		}
		x.look(&r.attribute)
		denied[i] = !allowed
		if !allowed && client != nil {
			r.distinct[i].add(clientHash, true)
		}
	}
	if len(r.sets) == maxSets {
		switch {
		case denied[0] && denied[1]:
			r.both++
		case denied[0]:
			r.only[0]++
		case denied[1]:
			r.only[1]++
		}
	}
	if client != nil {
		r.clients.at(chars.View(client)).count(&denied)
	}
	if path := e.Get(accesslog.FieldPath); path != nil {
		r.paths.at(rule.NormalPath(chars.View(path))).count(&denied)
	}
	if r.survey != nil {
		r.survey.add(e)
	}
	return nil
}

func (t *tallyEntry) count(denied *[maxSets]bool) {
	t.requests++
	for i, d := range denied {
		if d {
			t.denied[i]++
		}
	}
}

// decide decides the request that r.attribute holds.
func (x *outcome) decide(r *replay, now int64, bucket int) (bool, error) {
	x.engine.SetTime(now)
	d := &x.decision
	if x.request.Also = nil; x.paths {
		path, _ := r.attribute.Attribute("path")
		x.request.Also = door.ReadParameters(&r.attribute, path, nil)
	}
	if err := x.engine.Decide(&x.request, d); err != nil {
		return false, err
	}
	x.countFailures(&d.Matches)
	for i := range d.Limits {
		l := &d.Limits[i]
		at, ok := x.byWindow[l.Window]
		if !ok {
			at = x.limit(l.Window)
		}
		s := &x.limits[at]
		if d.Banned.Rule != nil {
			s.banned++
			continue
		}
		s.keys.add(xxhash.Sum64(d.Matches.Hits[i].Key), !l.Allowed)
		if l.Allowed {
			s.allowed++
			continue
		}
		s.denied++
		if s.column == 0 {
			s.column = r.timeline.column()
		}
		r.timeline.columns[s.column][bucket]++
	}
	x.judged(d, r.attribute.entry, now, r.user)
	switch {
	case d.Exempt:
		x.exempt++
	case len(d.Limits) == 0:
		x.unlimited++
	}
	if !d.Allowed {
		x.denied++
		r.timeline.columns[x.column][bucket]++
		return false, nil
	}
	x.allowed++
	if d.Delay > 0 {
		x.delayed++
		x.maxDelay = max(x.maxDelay, d.Delay)
	}
	return true, nil
}

// report returns the result.
func (r *replay) report(s accesslog.Stats) *Report {
	rep := &Report{Requests: r.count, Skipped: s.Skipped, SkippedLines: s.Faults, MissingFields: s.Missing,
		Late: s.Late}
	if s.Skipped > 0 {
		rep.SkippedShare = 100 * float64(s.Skipped) / float64(s.Skipped+r.count)
	}
	if r.count > 0 {
		rep.From, rep.To = time.UnixMicro(r.from).UTC(), time.UnixMicro(r.to).UTC()
	}
	var estimated bool
	rep.Clients, _, estimated = r.distinct[maxSets].counts()
	rep.Estimated = estimated || r.clients.pruned || r.paths.pruned
	rep.Timeline = Timeline{
		Start:    time.UnixMicro(r.timeline.first * r.timeline.width()).UTC(),
		Seconds:  r.timeline.width() / 1_000_000,
		Requests: r.series(r.requests),
	}
	rep.Paths = counted(r.paths.top(r.options.Top, func(e *tallyEntry) int64 { return e.requests }), 0)
	for i, x := range r.sets {
		o := r.outcome(x, rep)
		switch i {
		case 0:
			rep.Outcome = o
			rep.Timeline.Denied = r.series(x.column)
		case 1:
			rep.Compare = &Comparison{Outcome: o, Both: r.both, OnlyFirst: r.only[0], OnlySecond: r.only[1]}
			rep.Timeline.DeniedOther = r.series(x.column)
		}
	}
	if len(r.sets) == 0 {
		rep.Allowed, rep.Unlimited = r.count, r.count
		rep.Limits, rep.TopDenied = []Limit{}, []Counted{}
		rep.Timeline.Denied = make([]int64, len(rep.Timeline.Requests))
	}
	return rep
}

func (r *replay) series(column int) []int64 {
	if r.timeline.used == 0 {
		return []int64{}
	}
	return r.timeline.columns[column][:r.timeline.used]
}

func (r *replay) outcome(x *outcome, rep *Report) Outcome {
	o := Outcome{Rules: x.Name, Domain: x.Domain, Allowed: x.allowed, Denied: x.denied, Exempt: x.exempt,
		Unlimited: x.unlimited,
		Delayed:   x.delayed, MaxDelay: float64(x.maxDelay) / 1e6, Limits: []Limit{}}
	x.shareFailures()
	var estimated bool
	_, o.ClientsDenied, estimated = r.distinct[x.number].counts()
	rep.Estimated = rep.Estimated || estimated
	for i := range x.limits {
		s := &x.limits[i]
		c := s.window.Limit.Config()
		l := Limit{Name: s.window.Name, Allowed: s.allowed, Denied: s.denied, Banned: s.banned,
			Algorithm: c.Algorithm.String(), Limit: c.Capacity(),
			Window: c.Window.Seconds(), Rate: c.N, Period: c.Period(), Shadow: inShadow(s.window.Rule)}
		if c.Algorithm.HasSlots() {
			l.Window = 0
			if l.Allowed+l.Denied > 0 {
				rep.note(
					fmt.Sprintf(
						"%s counts requests in flight. A log does not tell when they ended: each held its slot for the time-out of %s.", l.Name, c.Timeout))
			}
		}
		rep.noteKinds(s.window)
		l.Keys, l.KeysDenied, estimated = s.keys.counts()
		rep.Estimated = rep.Estimated || estimated
		if s.column > 0 {
			l.Series = r.series(s.column)
		}
		o.Limits = append(o.Limits, l)
	}
	if x.unlimited == r.count {
		o.Lacking = x.reads
	}
	o.ByRule = x.byRule(r)
	rep.noteUnseen(x)
	rep.noteRegional(x)
	o.Failures = x.failures
	for _, f := range o.Failures {
		effect := "the rule was not met then"
		if f.Key == "cost" {
			effect = "it counted as 1, or as 0 if below"
		}
		rep.note(fmt.Sprintf("%s: %s failed on %d of %d requests, so that %s. The first error: %s", f.Rule, f.Key,
			f.Count, r.count, effect, f.First))
	}
	if st := x.engine.Stats(); st.Evictions > 0 || st.Overflows > 0 {
		rep.note(
			fmt.Sprintf(
				"%s counted more keys at once than fit in memory: %d were forgotten early, %d decisions were made on shared counters.", x.Name, st.Evictions, st.Overflows))
	}
	o.TopDenied = counted(r.clients.top(r.options.Top, func(e *tallyEntry) int64 { return e.denied[x.number] }),
		x.number)
	return o
}

func (rep *Report) note(s string) { rep.Notes = append(rep.Notes, s) }

// noteKinds adds notes on properties of a limit that a log cannot show.
func (rep *Report) noteKinds(w *rule.Window) {
	r := w.Rule
	if w.Limit.Scheduled() {
		rep.note(
			fmt.Sprintf(
				"%s follows a schedule, by the times in the log; the numbers shown for it are of one part of the week.", w.Name))
	}
	if len(r.Windows) > 0 && w != r.Windows[0] {
		return
	}
	if r.Elastic != nil {
		rep.note(
			fmt.Sprintf(
				"%s follows the signal %s, which a log does not hold: it was replayed at 100 %% of its numbers.", r.Name, r.Elastic.Signal))
	}
	if r.CostAfter != "" {
		rep.note(
			fmt.Sprintf(
				"%s learns costs from responses, which a log does not hold: it was replayed with its estimates.", r.Name))
	}
	if r.Defer != "" || r.Wait > 0 && !w.Limit.Delays() {
		rep.note(
			fmt.Sprintf("%s keeps requests that it would refuse, and lets them in later; they count as denied here.",
				r.Name))
	}
}

func counted(entries []tallyEntry, number int) []Counted {
	list := []Counted{}
	for _, e := range entries {
		list = append(list, Counted{Value: e.value, Requests: e.requests, Denied: e.denied[number],
			DeniedOther: e.denied[1-number]})
	}
	return list
}
