package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/sim"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// pageData is the data of the template, which escapes all text in it.
type pageData struct {
	Title    string
	Log      string
	Period   string
	Lead     string
	More     string
	Tiles    []tile
	Chart    template.HTML
	Bucket   string
	Denied   bool
	Sets     []setData
	Compare  []row
	Other    string // name of the second rule set
	First    string
	Paths    []row
	Peaks    []sim.Peak
	YAML     string
	Provisos []string
	Made     string
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
	Lead    string
}

type limitRow struct {
	Name, Allowance, Algorithm  string
	Shadow                      bool
	Allowed, Denied, Share      string
	Keys, KeysDenied, KeysShare string
	AllowedPart, DeniedPart     float64 // of the bar, in percent
	Spark                       template.HTML
	Title                       string
	Any                         bool
}

// row is one bar of a list.
type row struct {
	Label, Class        string
	Requests, Denied    string
	Share               string
	Allowed, DeniedPart float64 // percent of the longest bar
	Title               string
}

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
	shown := merge(&r.Timeline)
	d.Chart, d.Bucket = timeChart(r, shown), bucketName(shown.Seconds)
	if r.Compare != nil {
		d.Lead = unbroken(compared(r))
	} else if s := sentences(r, &r.Outcome); len(s) > 0 {
		d.Lead, d.More = unbroken(s[0]), unbroken(strings.Join(s[1:], " "))
	}
	d.tiles(r)
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
		s := setData{Name: o.Rules, Domain: o.Domain, Limits: limitRows(o), Clients: clientRows(o)}
		if r.Compare != nil {
			s.Lead = unbroken(strings.Join(sentences(r, o)[1:], " "))
		}
		d.Sets = append(d.Sets, s)
	}
	d.Paths = pathRows(r)
	if s := r.Suggestions; s != nil {
		d.Peaks, d.YAML = s.Peaks, s.YAML
	}
	return page.Execute(w, d)
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

func (d *pageData) tiles(r *sim.Report) {
	rate := ""
	if seconds := r.To.Sub(r.From).Seconds(); seconds > 0 {
		busiest := int64(0)
		for _, n := range r.Timeline.Requests {
			busiest = max(busiest, n)
		}
		rate = fmt.Sprintf("%s; at most %s in %s", rateOf(float64(r.Requests)/seconds), sim.Number(busiest), each(r.Timeline.Seconds))
	}
	d.Tiles = append(d.Tiles, tile{Label: "Requests", Value: sim.Number(r.Requests), Detail: rate, Share: -1})
	if len(r.Limits) > 0 {
		refused := tile{Label: "Would be refused", Value: percent(r.Denied, r.Requests), Detail: plural(r.Denied, "request"), Class: "refused", Share: share(r.Denied, r.Requests)}
		if r.Compare != nil {
			refused.Label = "Refused by " + r.Rules
		}
		d.Tiles = append(d.Tiles, refused)
	}
	if c := r.Compare; c != nil {
		d.Tiles = append(d.Tiles, tile{Label: "Refused by " + c.Rules, Value: percent(c.Denied, r.Requests), Detail: plural(c.Denied, "request"), Class: "second", Share: share(c.Denied, r.Requests)})
	}
	clients := tile{Label: "Clients", Value: sim.Number(r.Clients), Share: -1}
	if r.Clients > 0 {
		clients.Detail = fmt.Sprintf("%.3g requests each on average", float64(r.Requests)/float64(r.Clients))
	}
	d.Tiles = append(d.Tiles, clients)
	if len(r.Limits) > 0 && r.Compare == nil {
		d.Tiles = append(d.Tiles, tile{Label: "Clients refused", Value: sim.Number(r.ClientsDenied), Detail: percent(r.ClientsDenied, r.Clients) + " of all", Class: "refused", Share: share(r.ClientsDenied, r.Clients)})
	}
}

// rateOf writes a rate in the unit in which it is a handy number.
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
	add := func(label string, n int64, class, title string) {
		d.Compare = append(d.Compare, row{Label: label, Class: class, Denied: sim.Number(n), Share: percent(n, r.Requests), DeniedPart: share(n, most), Title: title})
	}
	add("refused by both", c.Both, "", "requests that both rule sets refuse")
	add("only by "+r.Rules, c.OnlyFirst, "", "requests that the first refuses and the second admits")
	add("only by "+c.Rules, c.OnlySecond, "v", "requests that the second refuses and the first admits")
}

func limitRows(o *sim.Outcome) []limitRow {
	most := int64(1)
	for _, l := range o.Limits {
		most = max(most, l.Allowed+l.Denied)
	}
	var rows []limitRow
	for i := range o.Limits {
		l := &o.Limits[i]
		met := l.Allowed + l.Denied
		rows = append(rows, limitRow{
			Name: l.Name, Allowance: allowance(l), Algorithm: strings.ReplaceAll(l.Algorithm, "_", " "), Shadow: l.Shadow,
			Allowed: sim.Number(l.Allowed), Denied: sim.Number(l.Denied), Share: percent(l.Denied, met),
			Keys: sim.Number(l.Keys), KeysDenied: sim.Number(l.KeysDenied), KeysShare: percent(l.KeysDenied, l.Keys),
			AllowedPart: share(l.Allowed, most), DeniedPart: share(l.Denied, most),
			Spark: spark(l.Series), Any: met > 0,
			Title: fmt.Sprintf("%s: %s admitted, %s refused (%s)\n%s, %s of them refused at times", l.Name, sim.Number(l.Allowed), sim.Number(l.Denied), percent(l.Denied, met), plural(l.Keys, "key"), sim.Number(l.KeysDenied)),
		})
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
			Label: clean(c.Value), Requests: sim.Number(c.Requests), Denied: sim.Number(c.Denied), Share: percent(c.Denied, c.Requests),
			Allowed: share(c.Requests-c.Denied, most), DeniedPart: share(c.Denied, most),
			Title: fmt.Sprintf("%s\n%s, %s refused (%s)", clean(c.Value), plural(c.Requests, "request"), sim.Number(c.Denied), percent(c.Denied, c.Requests)),
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
