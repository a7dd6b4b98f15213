package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/lab/sim"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

//go:embed page.html
var pageText string

var page = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(pageText)) })

// pageData is the data of the template, which escapes all text in it.
type pageData struct {
	Title     string
	Log       string
	Period    string
	Lead      string
	More      string
	Tiles     []tile
	Chart     template.HTML // for a wide screen
	Narrow    template.HTML // for a phone
	Figures   []figures     // of the charts
	Bucket    string
	Denied    bool
	Sets      []setData
	Compare   []row
	Other     string // name of the second rule set
	First     string
	Paths     []row
	Peaks     []sim.Peak
	Suggested []suggestedRow
	YAML      string
	Provisos  []string
	Made      string
}

type tile struct {
	Label, Value, Detail string
	Class                string
	Share                float64 // of a bar, in percent; below 0: no bar
}

type setData struct {
	Name    string
	Domain  string
	Limits  []limitRow
	Clients []row
	Rules   []ruleRow
	Others  string // rules that Rules leaves out
	Lead    string
}

type limitRow struct {
	Name, Allowance, Algorithm  string
	Shadow                      bool
	Allowed, Denied, Share      string
	Keys, KeysDenied, KeysShare string
	AllowedPart, DeniedPart     float64 // of the bar, in percent
	Spark                       template.HTML
	Peak                        string // what the highest point of Spark is
	Banned                      string // "" for none
	Any                         bool
}

// row is one bar of a list.
type row struct {
	Label, Class        string
	Requests, Denied    string
	Share               string
	Allowed, DeniedPart float64 // percent of the longest bar
}

// figures are the figures of one bucket.
type figures struct{ Time, Requests, Denied, Share, Other string }

// Page writes r as a self-contained page: no script, no font, no request. logs are the names of the
// replayed logs.
func Page(w io.Writer, r *sim.Report, logs []string, made time.Time) error {
	d := pageData{
		Title:    "Replay of " + name(logs),
		Log:      name(logs),
		Period:   period(r),
		Denied:   r.Denied > 0 || r.Compare != nil && r.Compare.Denied > 0,
		First:    r.Rules,
		Provisos: provisos(r),
		Made:     made.UTC().Format("2 January 2006 15:04") + " UTC",
	}
	shown := merge(&r.Timeline, wide.buckets)
	d.Chart, d.Narrow, d.Bucket = timeChart(r, &wide), timeChart(r, &narrow), each(shown.Seconds)
	d.Figures = figuresOf(shown)
	if r.Compare != nil {
		d.Lead = unbroken(compared(r))
	} else if s := sentences(r, &r.Outcome); len(s) > 0 {
		d.Lead, d.More = unbroken(s[0]), unbroken(strings.Join(s[1:], " "))
	}
	d.tiles(r, shown)
	outcomes := []*sim.Outcome{&r.Outcome}
	if r.Compare != nil {
		outcomes = append(outcomes, &r.Compare.Outcome)
		d.Other = r.Compare.Rules
		d.compare(r)
	}
	for _, o := range outcomes {
		if len(o.Limits) == 0 && r.Compare == nil {
			continue
		}
		s := setData{Name: o.Rules, Domain: o.Domain, Limits: limitRows(r, o), Clients: clientRows(o),
			Rules: ruleRows(o)}
		if len(o.ByRule) > toldRules {
			s.Rules, s.Others = alarming(s.Rules)
		}
		if r.Compare != nil {
			s.Lead = unbroken(strings.Join(sentences(r, o)[1:], " "))
		}
		d.Sets = append(d.Sets, s)
	}
	d.Paths = pathRows(r)
	if s := r.Suggestions; s != nil {
		d.Peaks, d.YAML, d.Suggested = s.Peaks, s.YAML, suggestedRows(s)
	}
	return page().Execute(w, d)
}

func name(logs []string) string {
	switch len(logs) {
	case 0:
		return "a log"
	case 1:
		if logs[0] == "-" {
			return "standard input"
		}
		return filepath.Base(logs[0])
	}
	return fmt.Sprintf("%s and %d more", filepath.Base(logs[0]), len(logs)-1)
}

// unbroken keeps numbers and their percent signs on one line.
func unbroken(s string) string { return strings.ReplaceAll(s, " %", "\u00a0%") }

func share(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

func (d *pageData) tiles(r *sim.Report, shown *sim.Timeline) {
	rate := ""
	if seconds := r.To.Sub(r.From).Seconds(); seconds > 0 {
		busiest := int64(0)
		for _, n := range shown.Requests {
			busiest = max(busiest, n)
		}
		rate = fmt.Sprintf("%s; at most %s in %s", rateOf(float64(r.Requests)/seconds), human.Number(busiest),
			each(shown.Seconds))
	}
	d.Tiles = append(d.Tiles, tile{Label: "Requests", Value: human.Number(r.Requests), Detail: rate, Share: -1})
	if len(r.Limits) > 0 {
		refused := tile{Label: "Would be refused", Value: percent(r.Denied, r.Requests),
			Detail: human.Count(r.Denied, "request"), Class: "refused", Share: share(r.Denied, r.Requests)}
		if r.Compare != nil {
			refused.Label = "Refused by " + r.Rules
		}
		d.Tiles = append(d.Tiles, refused)
	}
	if c := r.Compare; c != nil {
		d.Tiles = append(d.Tiles,
			tile{Label: "Refused by " + c.Rules, Value: percent(c.Denied, r.Requests),
				Detail: human.Count(c.Denied, "request"), Class: "second", Share: share(c.Denied, r.Requests)})
	}
	clients := tile{Label: "Clients", Value: human.Number(r.Clients), Share: -1}
	if r.Clients > 0 {
		clients.Detail = fmt.Sprintf("%.3g requests each on average", float64(r.Requests)/float64(r.Clients))
	}
	d.Tiles = append(d.Tiles, clients)
	if len(r.Limits) > 0 && r.Compare == nil {
		d.Tiles = append(d.Tiles,
			tile{Label: "Clients refused", Value: human.Number(r.ClientsDenied),
				Detail: percent(r.ClientsDenied, r.Clients) + " of all", Class: "refused",
				Share: share(r.ClientsDenied, r.Clients)})
	}
}

// rateOf formats a rate in the unit that gives a handy number.
func rateOf(perSecond float64) string {
	switch {
	case perSecond >= 1:
		return fmt.Sprintf("%.3g a second", perSecond)
	case perSecond >= 1.0/60:
		return fmt.Sprintf("%.3g a minute", perSecond*60)
	case perSecond >= 1.0/3600:
		return fmt.Sprintf("%.3g an hour", perSecond*3600)
	}
	return fmt.Sprintf("%.3g a day", perSecond*86400)
}

func (d *pageData) compare(r *sim.Report) {
	c := r.Compare
	most := max(c.Both, c.OnlyFirst, c.OnlySecond, 1)
	add := func(label string, n int64, class string) {
		d.Compare = append(d.Compare,
			row{Label: label, Class: class, Denied: human.Number(n), Share: percent(n, r.Requests),
				DeniedPart: share(n, most)})
	}
	add("refused by both", c.Both, "")
	add("only by "+r.Rules, c.OnlyFirst, "")
	add("only by "+c.Rules, c.OnlySecond, "v")
}

func limitRows(r *sim.Report, o *sim.Outcome) []limitRow {
	most := int64(1)
	for _, l := range o.Limits {
		most = max(most, l.Allowed+l.Denied)
	}
	var rows []limitRow
	for i := range o.Limits {
		l := &o.Limits[i]
		met := l.Allowed + l.Denied
		rows = append(rows, limitRow{
			Name: l.Name, Allowance: allowance(l), Algorithm: strings.ReplaceAll(l.Algorithm, "_", " "),
			Shadow:  l.Shadow,
			Allowed: human.Number(l.Allowed), Denied: human.Number(l.Denied), Share: percent(l.Denied, met),
			Keys: human.Number(l.Keys), KeysDenied: human.Number(l.KeysDenied),
			KeysShare:   percent(l.KeysDenied, l.Keys),
			AllowedPart: share(l.Allowed, most), DeniedPart: share(l.Denied, most),
			Spark: spark(l.Series), Peak: peak(l.Series, &r.Timeline), Any: met > 0,
		})
		if l.Banned > 0 {
			rows[len(rows)-1].Banned = human.Number(l.Banned) + " by its ban"
		}
	}
	return rows
}

const listed = 15

func bars(list []sim.Counted, length func(*sim.Counted) int64) []row {
	most := int64(1)
	for i := range list {
		most = max(most, length(&list[i]))
	}
	var rows []row
	for i := range list[:min(listed, len(list))] {
		c := &list[i]
		rows = append(rows, row{
			Label: clean(c.Value), Requests: human.Number(c.Requests), Denied: human.Number(c.Denied),
			Share:   percent(c.Denied, c.Requests),
			Allowed: share(c.Requests-c.Denied, most), DeniedPart: share(c.Denied, most),
		})
	}
	return rows
}

func clientRows(o *sim.Outcome) []row {
	return bars(o.TopDenied, func(c *sim.Counted) int64 { return c.Requests })
}

func pathRows(r *sim.Report) []row {
	return bars(r.Paths, func(c *sim.Counted) int64 { return c.Requests })
}

// suggestedRow is one proposal.
type suggestedRow struct {
	Name, What, Allow, Refused, Status, Requests, Keys, KeysRefused, Outliers string
}

func suggestedRows(s *sim.Suggestions) []suggestedRow {
	var rows []suggestedRow
	for i := range s.Limits {
		l := &s.Limits[i]
		row := suggestedRow{Name: l.Name, Allow: strings.Join(l.Allow, ", "), Refused: human.Number(l.Refused),
			Requests: human.Number(l.Requests)}
		row.What = "for all together"
		if l.Per != "" {
			row.What = "per " + l.Per
			row.Keys, row.KeysRefused, row.Outliers = human.Number(l.Keys), human.Number(l.KeysRefused),
				human.Number(l.Outliers)
		}
		if l.When != "" {
			row.What += ", " + strings.Trim(l.When, "{ }")
		}
		for i, c := range l.Status[:min(3, len(l.Status))] {
			if i > 0 {
				row.Status += ", "
			}
			row.Status += fmt.Sprintf("%s: %s", c.Value, human.Number(c.Count))
		}
		rows = append(rows, row)
	}
	return rows
}

// figuresOf lists the buckets of a timeline in which there were requests.
func figuresOf(t *sim.Timeline) []figures {
	layout := "2 Jan 15:04"
	switch {
	case t.Seconds < 60:
		layout = "2 Jan 15:04:05"
	case t.Seconds >= 86400:
		layout = "2 Jan 2006"
	}
	var list []figures
	for i, n := range t.Requests {
		if n == 0 {
			continue
		}
		f := figures{Time: start(t, i).UTC().Format(layout), Requests: human.Number(n),
			Denied: human.Number(t.Denied[i]), Share: percent(t.Denied[i], n)}
		if t.DeniedOther != nil {
			f.Other = human.Number(t.DeniedOther[i])
		}
		list = append(list, f)
	}
	return list
}

// peak describes the highest point of a series.
func peak(series []int64, t *sim.Timeline) string {
	most, at := int64(0), 0
	for i, n := range series {
		if n > most {
			most, at = n, i
		}
	}
	if most == 0 {
		return ""
	}
	return fmt.Sprintf("at most %s in %s, %s", human.Number(most), each(t.Seconds),
		start(t, at).UTC().Format("2 Jan 15:04"))
}

// ruleRow is a rule with its verdicts.
type ruleRow struct {
	Name, Allowance string
	Shadow          bool
	Verdicts        []verdictRow
	Status          string
	Refuses         string
	Fill            []fillBar
	Fullest         string
	alarming        bool
	verdict         string
}

type verdictRow struct {
	Name, Class, Mark string
	Sentence          string
	Proposal, Patch   string
	Low               bool
}

// fillBar is a bin of a fill histogram.
type fillBar struct {
	Label, Count string
	Height       float64 // percent of the highest
	Over         bool
}

func ruleRows(o *sim.Outcome) []ruleRow {
	var rows []ruleRow
	for i := range o.ByRule {
		r := &o.ByRule[i]
		if len(r.Verdicts) == 0 {
			continue
		}
		row := ruleRow{Name: r.Name, Allowance: strings.Join(r.Limits, ", "), Shadow: r.Mode == "shadow",
			Status: unbroken(statuses(r)), Refuses: refusesVerb(r),
			alarming: insight.Alarming(r.Verdicts[0].Verdict), verdict: human.Verdict(r.Verdicts[0].Verdict)}
		for _, v := range r.Verdicts {
			x := verdictRow{Name: human.Verdict(v.Verdict), Sentence: unbroken(clean(v.Sentence)),
				Low: v.Confidence == insight.Low}
			x.Class, x.Mark = "fine", "✓"
			switch {
			case insight.Alarming(v.Verdict):
				x.Class, x.Mark = "look", "!"
			case v.Verdict == insight.TooEarly, v.Verdict == insight.NeverBinding:
				x.Class, x.Mark = "open", "–"
			}
			if p := v.Proposal; p != nil {
				x.Proposal, x.Patch = unbroken(p.Sentence), p.Patch
			}
			row.Verdicts = append(row.Verdicts, x)
		}
		most := uint64(0)
		for _, n := range r.Fill {
			most = max(most, n)
		}
		if most > 0 && len(r.Per) > 0 {
			for i, n := range r.Fill {
				row.Fill = append(row.Fill,
					fillBar{Label: fillEdges[i], Count: human.Number(n), Height: 100 * float64(n) / float64(most),
						Over: i == 10})
			}
		}
		if r.Met > 0 {
			row.Fullest = fmt.Sprintf("%.0f\u00a0%%", 100*r.MaxFill)
		}
		rows = append(rows, row)
	}
	return rows
}

// alarming returns the rules that somebody should look at, and counts the others.
func alarming(rows []ruleRow) (left []ruleRow, others string) {
	counts := map[string]int{}
	for _, r := range rows {
		if r.alarming {
			left = append(left, r)
		} else {
			counts[r.verdict]++
		}
	}
	return left, strings.Join(tallied(counts), ", ")
}
