package snapshot

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// View answers questions from a snapshot of one node or of several. It implements Reader. Safe for
// concurrent use if Ask is.
type View struct {
	// Ask returns a snapshot that holds everything in want.
	Ask func(ctx context.Context, want Want) (*Snapshot, insight.Nodes, error)
	// Banned reports whether a key, as people read it, is banned now, so that nobody is to be told
	// of it once more. nil is never. It must be safe for concurrent use.
	Banned func(domain, rule, key string) bool
}

var _ insight.Reader = (*View)(nil)

// ask returns a snapshot, or ErrUnknown if no such domain is in force.
func (v *View) ask(ctx context.Context, want Want) (*Snapshot, insight.Nodes, error) {
	s, nodes, err := v.Ask(ctx, want)
	if err == nil && want.Domain != "" && want.Domain != insight.CommandDomain && len(s.Domains) == 0 {
		err = insight.ErrUnknown
	}
	return s, nodes, err
}

// wantAll is the question about all rules. Overview, Rules and Candidates ask the same one, so that
// they share an answer and have the same figures.
func wantAll(domain string, over time.Duration) Want {
	if over <= 0 {
		over = DefaultOver
	}
	return Want{Domain: domain, Over: over, Top: true, Clients: true}
}

// Overview implements Reader.
func (v *View) Overview(ctx context.Context, domain string, over time.Duration) (*insight.Overview, error) {
	s, nodes, err := v.ask(ctx, wantAll(domain, over))
	if err != nil {
		return nil, err
	}
	begin := s.begin()
	o := &insight.Overview{
		From: unixTime(begin), To: unixTime(s.Time), Step: int(s.Step), Nodes: nodes, Domain: domain,
		SampledFrom: unixTime(s.sampledFrom()),
		P99:         human.Digits(s.P99), StoreErrors: s.StoreErrors, Events: notNil(s.Events), NeedsALook: []insight.Verdict{},
	}
	var all Counts
	var recent Counts
	strip := make(Strip, (s.Time-s.From)/s.Step+1)
	before := &insight.Before{}
	for i := range s.Domains {
		d := &s.Domains[i]
		all.add(&d.Count)
		recent.add(&d.Recent)
		addStrip(strip, d.Series)
		before.Requests, before.Refused = before.Requests+d.Before[LaneMet], before.Refused+d.Before[LaneRefused]
		if !d.HasBefore {
			before = nil
			break
		}
	}
	if before == nil {
		all, recent, strip = Counts{}, Counts{}, make(Strip, len(strip))
		for i := range s.Domains {
			all.add(&s.Domains[i].Count)
			recent.add(&s.Domains[i].Recent)
			addStrip(strip, s.Domains[i].Series)
		}
	}
	o.Before = before
	o.Requests, o.Refused, o.Banned = all[LaneMet], all[LaneRefused], all[LaneBanned]
	o.PerSecond = s.perSecond(&recent)
	o.Series = seriesOf(s.From, s.Step, strip, true)
	for i := range s.Rules {
		r := &s.Rules[i]
		if r.unused() {
			continue
		}
		if len(r.Per) > 0 || r.Brought {
			o.Clients = max(o.Clients, uint64(r.Summary.Keys+0.5))
			if !r.shadow() { // which refuses nobody
				o.ClientsRefused = max(o.ClientsRefused, uint64(r.Summary.KeysRefused+0.5))
				o.Near = max(o.Near, r.nearNow(s))
			}
		}
		if !r.shadow() && !r.IsCommand() { // nothing tells how good clients of commands are
			o.GoodRefused.Add(&r.Summary.Good)
		}
		for _, x := range r.Verdicts {
			if insight.Alarming(x.Verdict) {
				o.NeedsALook = append(o.NeedsALook, x)
				break // the first is the one to show
			}
		}
	}
	slices.SortStableFunc(o.NeedsALook, func(a, b insight.Verdict) int {
		return cmp.Compare(slices.Index(insight.Verdicts, a.Verdict), slices.Index(insight.Verdicts, b.Verdict))
	})
	o.Sentences = append(wrongSentences(&nodes), v.sentencesOf(s, o, s.covered(begin, over))...)
	if s.Unknown > 0 { // the limits of none of these were asked: it comes first
		o.UnknownDomain = &insight.UnknownDomain{Requests: s.Unknown, Name: s.UnknownDomain}
		o.Sentences = append([]string{o.UnknownDomain.Sentence()}, o.Sentences...)
	}
	return o, nil
}

// unused reports whether the rule stands for limits that requests bring, and none did. It is no
// rule that somebody wrote.
func (r *Rule) unused() bool {
	return r.Brought && r.Count[LaneMet] == 0 && r.Sampled[LaneMet] == 0
}

// wrongSentences says first what is wrong with the nodes, whatever their figures are.
func wrongSentences(n *insight.Nodes) (list []string) {
	if n.Answered < n.Asked {
		list = append(list, fmt.Sprintf("Only %d of %s answered.", n.Answered, human.Count(uint64(n.Asked), "node")))
	}
	if n.Apart == nil {
		return list
	}
	if len(n.Apart.Broken) > 0 {
		list = append(list, "The rules as they lie in the source are not in force, since they have an error.")
	}
	if d := n.Apart.Differ; len(d) > 0 {
		list = append(list, fmt.Sprintf("The nodes do not have the same rules: %s.", d[0].String()))
	}
	return list
}

// shadow reports whether nothing enforces the rule: it refuses nobody, and tells nobody to come
// back.
func (r *Rule) shadow() bool { return r.Mode == insight.ModeShadow }

// nearNow returns how many of the keys that come near most often were near in the last minute.
func (r *Rule) nearNow(s *Snapshot) (n uint64) {
	for _, k := range r.Live[TopNear] {
		if s.since(&k) <= time.Minute && k.Fill <= 1 {
			n++
		}
	}
	return n
}

// since returns how long ago a key last came, by the store's clock, which dated it.
func (s *Snapshot) since(k *TopKey) time.Duration {
	now := s.StoreTime
	if now == 0 {
		now = s.Time * 1e6
	}
	return time.Duration(now-k.At) * time.Microsecond
}

// begin returns the time since which there are figures.
func (s *Snapshot) begin() int64 {
	begin := s.Time
	for i := range s.Domains {
		begin = min(begin, s.Domains[i].Since)
	}
	return max(begin, s.From)
}

// covered returns how much of the time asked for the figures cover: all of it, unless they begin
// later. (From may be up to a step later than asked for.)
func (s *Snapshot) covered(begin int64, over time.Duration) time.Duration {
	if begin > s.From {
		return time.Duration(s.Time-begin) * time.Second
	}
	if over <= 0 {
		over = DefaultOver
	}
	return min(over, MostOver)
}

// perSecond turns the counts of the last 10 s into a rate. For a server that started more recently,
// it uses the time since its start.
func (s *Snapshot) perSecond(recent *Counts) float64 {
	return human.Digits(float64(recent[LaneMet]) / float64(min(max(s.Time-s.Started, 1), RecentSeconds)))
}

// sentencesOf describes an overview in words, and says who is behind most refusals of limits: what
// bans refuse somebody has dealt with already.
func (v *View) sentencesOf(s *Snapshot, o *insight.Overview, covered time.Duration) []string {
	over := lastText(covered)
	if o.Requests == 0 {
		return []string{fmt.Sprintf("There were no requests in the last %s.", over)}
	}
	if o.Refused == 0 {
		return []string{fmt.Sprintf("Of %s in the last %s none was refused.", human.Count(o.Requests, "request"), over)}
	}
	text := fmt.Sprintf("Of %s in the last %s %s were refused", human.Count(o.Requests, "request"), over,
		human.Percent(human.Share(float64(o.Refused), float64(o.Requests))))
	sentences := clientSentences(o, text)
	refusals := "the refusals"
	if o.Banned > 0 {
		sentences = slices.Insert(sentences, 1, banSentence(o))
		refusals = "the refusals by limits"
	}
	var most *Rule
	all := uint64(0)
	for i := range s.Rules {
		r := &s.Rules[i]
		all += r.Count[LaneRefused]
		if most == nil || r.Count[LaneRefused] > most.Count[LaneRefused] {
			most = r
		}
	}
	if all == 0 {
		return sentences
	}
	by := most.Name
	if slices.ContainsFunc(s.Rules, func(r Rule) bool { return r.Name == by && r.Domain != most.Domain }) {
		by = most.Domain + "/" + by
	}
	if most.IsCommand() {
		by = "commands that bring their limit (" + insight.CommandRule + ")"
	} else {
		mention(o, insight.Mention{Text: by, Kind: insight.MentionsRule, Domain: most.Domain, Name: by})
	}
	text = fmt.Sprintf("%s %s were by %s", human.Portion(float64(most.Count[LaneRefused]), float64(all)), refusals, by)
	if key, least, total := v.busiest(s, most); least*2 > total {
		text += fmt.Sprintf("; in the last minute %s them hit %s", human.Portion(float64(least), float64(total)), key)
		o.Named = key
		mention(o, insight.Mention{Text: key, Kind: insight.MentionsKey, Domain: most.Domain, Name: key})
	}
	text += "."
	return append(sentences, human.Upper(text))
}

// banSentence says how many requests bans refused, and how many limits did.
func banSentence(o *insight.Overview) string {
	text := human.Number(o.Banned) + " of these"
	limits := o.Refused - min(o.Banned, o.Refused)
	if limits == 0 {
		text = "all of these"
	}
	mention(o, insight.Mention{Text: "Bans refused " + text, Kind: insight.MentionsBans})
	if limits == 0 {
		return "Bans refused " + text + "."
	}
	return fmt.Sprintf("Bans refused %s, limits %s.", text, human.Number(limits))
}

func mention(o *insight.Overview, m insight.Mention) { o.Mentions = append(o.Mentions, m) }

// clientSentences adds which clients were refused. Client numbers come from samples, which usually
// cover another period; the sentence then says so.
func clientSentences(o *insight.Overview, text string) []string {
	g := &o.GoodRefused
	if o.Clients == 0 {
		return []string{text + "."}
	}
	who := fmt.Sprintf("%s of %s", human.Number(o.ClientsRefused), human.Count(o.Clients, "client"))
	if o.From.Equal(o.SampledFrom) {
		list := []string{text + ", of " + who + "."}
		if g.Clients > 0 {
			list = append(list,
				fmt.Sprintf("About %s of these refusals hit clients that behave well.", human.Number(g.Requests)))
		}
		return list
	}
	sampled := fmt.Sprintf("In the last %s %s were refused", lastText(o.To.Sub(o.SampledFrom)), who)
	if g.Clients > 0 {
		sampled += fmt.Sprintf(", and about %s of %s hit clients that behave well", human.Number(g.Requests),
			human.Count(g.Of, "refusal"))
	}
	return []string{text + ".", sampled + "."}
}

// busiest returns the key that a rule refused most in the last minute; "" if that is banned now.
// least is how many refusals are certainly its own, and total how many are certain over all keys in
// the list.
func (v *View) busiest(s *Snapshot, r *Rule) (key string, least, total uint64) {
	for i := range r.Live[TopRefused] {
		k := &r.Live[TopRefused][i]
		if s.since(k) > time.Minute {
			continue
		}
		n := k.Count - k.Over
		if total += n; n > least {
			key, least = k.Text, n
		}
	}
	if key == "" || v.Banned != nil && v.Banned(r.Domain, r.Name, key) {
		return "", 0, total
	}
	return key, least, total
}

// Rules implements Reader.
func (v *View) Rules(
	ctx context.Context, domain string, over time.Duration,
) ([]insight.RuleReport, insight.Nodes, error) {
	s, nodes, err := v.ask(ctx, wantAll(domain, over))
	if err != nil {
		return nil, nodes, err
	}
	list := []insight.RuleReport{}
	for i := range s.Rules {
		if r := &s.Rules[i]; !r.unused() {
			list = append(list, r.report(s))
		}
	}
	return list, nodes, nil
}

// Rule implements Reader.
func (v *View) Rule(
	ctx context.Context, domain, rule string, over time.Duration,
) (*insight.RuleReport, insight.Nodes, error) {
	s, nodes, err := v.Ask(ctx, Want{Domain: domain, Rule: rule, Over: over, Series: true, Top: true, Samples: true})
	if err != nil {
		return nil, nodes, err
	}
	if len(s.Rules) == 0 || s.Rules[0].IsCommand() {
		return nil, nodes, insight.ErrUnknown
	}
	r := &s.Rules[0]
	out := r.report(s)
	series := seriesOf(s.From, s.Step, r.Series, false)
	out.Series = &series
	out.Curve, out.CurveOf = r.curve()
	for _, w := range r.Windows {
		out.Windows = append(out.Windows, insight.WindowReport{
			Name: w.Name, Allows: w.Allows, Limit: w.Limit, Window: w.Window.Seconds(), Refused: w.Refused,
			MaxFill: human.Digits(float64(w.MaxFill)),
		})
	}
	out.By = map[string][]insight.Count{"door": notNil(r.ByDoor)}
	out.Top = r.keyCounts(r.Long[TopRefused], 10, func(*TopKey) bool { return true })
	out.NearNow = r.keyCounts(r.Live[TopNear], 10, func(k *TopKey) bool { return s.since(k) <= time.Minute })
	return &out, nodes, nil
}

func (r *Rule) report(s *Snapshot) insight.RuleReport {
	out := insight.RuleReport{
		Domain: r.Domain, Name: r.Name, File: r.File, Line: r.Line, Since: unixTime(r.Since), Mode: r.Mode, Per: r.Per,
		Limits: []string{},
		From:   unixTime(max(s.From, min(r.Since, s.Time))),
		Met:    r.Count[LaneMet], Refused: r.Count[LaneRefused], RefusedAlone: r.Count[LaneAlone],
		Soft: r.Count[LaneSoft],
		Near: r.Count[LaneNear], Banned: r.Count[LaneBanned], WouldRefuse: r.Count[LaneWould], Errors: r.Errors,
		SampledFrom: unixTime(max(s.sampledFrom(), min(r.Since, s.Time))),
		Keys:        uint64(r.Summary.Keys + 0.5), KeysRefused: uint64(r.Summary.KeysRefused + 0.5),
		KeysError: r.Summary.KeysError,
		Fill:      r.Summary.Fill, MaxFill: r.Summary.MaxFill, Episodes: r.Summary.Episodes, Good: r.Summary.Good,
		Trend: slices.Clone(r.Trend[:]), PerSecond: s.perSecond(&r.Recent), OKShare: -1, Verdicts: notNil(r.Verdicts),
	}
	out.Command = r.IsCommand()
	if r.Trial.Since != 0 {
		c := r.candidate()
		out.Trial = &c
	}
	for _, w := range r.Windows {
		if !out.Command {
			out.Limits = append(out.Limits, w.Allows)
		}
		out.MaxFill = max(out.MaxFill, float64(w.MaxFill))
	}
	g := &out.Good
	if r.Drawn > 0 {
		out.KnownShare = float64(r.DrawnKnown) / float64(r.Drawn)
	}
	if r.Answers > 0 {
		out.OKShare = float64(r.Well) / float64(r.Answers)
	}
	for _, x := range []*float64{&out.MaxFill, &out.KeysError, &out.KnownShare, &out.OKShare, &g.Share, &g.Low, &g.High,
		&g.PlusMinus} {
		*x = human.Digits(*x)
	}
	return out
}

// Keys implements Reader.
func (v *View) Keys(ctx context.Context, q insight.KeysQuery) ([]insight.KeyCount, insight.Nodes, error) {
	s, nodes, err := v.ask(ctx, Want{Domain: q.Domain, Over: time.Hour, OnlyTop: true})
	if err != nil {
		return nil, nodes, err
	}
	kind := TopRefused
	switch q.By {
	case insight.ByAsked:
		kind = TopAsked
	case insight.ByNear:
		kind = TopNear
	}
	n := q.N
	if n <= 0 {
		n = 50
	}
	live := q.Over <= time.Minute
	list := []insight.KeyCount{}
	found := q.Limit == ""
	for i := range s.Rules {
		r := &s.Rules[i]
		window, limit := "", q.Limit
		if q.Domain == "" { // it may stand behind its domain
			limit = strings.TrimPrefix(limit, r.Domain+"/")
		}
		if limit != "" && r.Name != limit {
			if !slices.ContainsFunc(r.Windows, func(w Window) bool { return w.Name == limit }) {
				continue
			}
			window = limit
		}
		found = true
		if kind == TopRefused && q.Limit == "" && r.shadow() {
			continue // it refuses nobody; it is shown if Limit names it
		}
		keys := r.Long[kind]
		if live {
			keys = r.Live[kind]
		}
		list = append(list, r.keyCounts(keys, n, func(k *TopKey) bool {
			return (window == "" || r.windowName(k.Window) == window) && (!live || s.since(k) <= 2*time.Minute)
		})...)
	}
	if !found {
		return nil, nodes, insight.ErrUnknown
	}
	slices.SortStableFunc(list, func(a, b insight.KeyCount) int { return cmp.Compare(b.Count, a.Count) })
	return list[:min(len(list), n)], nodes, nil
}

// keyCounts returns the first n keys of a list that fit.
func (r *Rule) keyCounts(keys []TopKey, n int, fits func(*TopKey) bool) []insight.KeyCount {
	list := []insight.KeyCount{}
	for i := range keys {
		k := &keys[i]
		if len(list) == n || !fits(k) {
			continue
		}
		out := insight.KeyCount{
			Domain: r.Domain, Rule: r.Name, Limit: r.windowName(k.Window), Key: k.Text, Count: k.Count, Over: k.Over,
			Fill: human.Digits(float64(k.Fill)), Known: k.Known, Obey: human.Digits(k.obey()), Shadow: r.shadow(),
			Estimated: k.Estimated,
		}
		// Only the lists by requests count both the admitted and the refused ones of a key.
		asked := k
		for _, all := range [...][]TopKey{r.Long[TopAsked], r.Live[TopAsked]} {
			if at := slices.IndexFunc(all, func(x TopKey) bool { return x.Hash == k.Hash }); at >= 0 {
				asked = &all[at]
			}
		}
		if asked.Asked > 0 {
			out.RefusedShare = human.Digits(min(float64(asked.Refused)/float64(asked.Asked), 1))
		}
		list = append(list, out)
	}
	return list
}

// windowName returns the name of a limit of the rule.
func (r *Rule) windowName(place uint16) string {
	if int(place) < len(r.Windows) {
		return r.Windows[place].Name
	}
	return r.Name
}

// Key implements Reader.
func (v *View) Key(ctx context.Context, domain, key string) (*insight.KeyReport, insight.Nodes, error) {
	s, nodes, err := v.ask(ctx, Want{Domain: domain, Over: time.Hour, Top: true, Key: key})
	if err != nil {
		return nil, nodes, err
	}
	out := &insight.KeyReport{Domain: domain, Key: key, Limits: []insight.KeyLimit{}, Obey: -1}
	for i := range s.Rules {
		s.Rules[i].addKey(out, key)
	}
	if n := out.Episodes.Obeyed + out.Episodes.Early; n > 0 {
		out.Obey = human.Digits(float64(out.Episodes.Obeyed) / float64(n))
	}
	return out, nodes, nil
}

// addKey adds what is known of a key under a rule.
func (r *Rule) addKey(out *insight.KeyReport, key string) {
	limit := insight.KeyLimit{Rule: r.Name}
	found := false
	for kind := range TopKinds {
		for _, k := range r.Long[kind] {
			if k.Text != key {
				continue
			}
			found = true
			switch kind {
			case TopAsked:
				limit.Asked = k.Count
			case TopRefused:
				limit.Refused = k.Count
			case TopNear:
				limit.Near = k.Count
			}
			if fill := human.Digits(float64(k.Fill)); limit.Limit == "" || fill > limit.Fill {
				limit.Fill, limit.Limit = fill, r.windowName(k.Window)
			}
			out.Known = out.Known || k.Known
		}
	}
	for i := range r.Refused.Keys {
		if k := &r.Refused.Keys[i]; k.Text == key {
			found, out.Sampled = true, true
			out.Known = out.Known || k.Known
			out.Episodes.Add(&k.Episodes)
			limit.Refused = max(limit.Refused, k.Refused)
		}
	}
	if found {
		limit.Asked, limit.Limit = max(limit.Asked, limit.Refused), cmp.Or(limit.Limit, r.Name)
		if r.shadow() {
			limit.Refused, limit.WouldRefuse = 0, limit.Refused
		}
		out.Limits = append(out.Limits, limit)
	}
}

// seriesOf makes a Series of a strip. In the strip of a domain, refused includes refusals by bans.
func seriesOf(from, step int64, strip Strip, domain bool) insight.Series {
	n := len(strip)
	s := insight.Series{
		T: make([]int64, n), Admitted: make([]uint32, n), Near: make([]uint32, n), Refused: make([]uint32, n),
		Shadow: make([]uint32, n), Banned: make([]uint32, n),
	}
	for i := range strip {
		b := &strip[i]
		s.T[i] = from + int64(i)*step
		s.Admitted[i] = b[LaneMet] - min(b[LaneRefused], b[LaneMet])
		s.Near[i] = b[LaneNear] + b[LaneSoft]
		s.Refused[i], s.Shadow[i], s.Banned[i] = b[LaneRefused], b[LaneWould], b[LaneBanned]
		if !domain {
			s.Refused[i] += b[LaneBanned]
		}
	}
	return s
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// examplesOf formats the ids of decisions.
func examplesOf(ids []uint64) []string {
	out := []string{}
	for _, id := range ids {
		if id != 0 {
			out = append(out, weir.DecisionID(id).String())
		}
	}
	return out
}

// lastText writes a duration for "in the last …": "2 min", and "minute" for one.
func lastText(d time.Duration) string {
	switch d {
	case time.Second:
		return "second"
	case time.Minute:
		return "minute"
	case time.Hour:
		return "hour"
	}
	return human.Lasted(max(d, time.Second))
}
