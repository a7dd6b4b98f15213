package browser

import (
	"encoding/json"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/rule/file"
)

const outageRules = `domain: shop
limits:
  - { name: search, when: { path: /search }, per: [user], allow: 20/day, algorithm: sliding_log }
  - { name: open, when: { path: /open }, per: [user], allow: 20/day, on_store_error: allow }
  - { name: shut, when: { path: /shut }, per: [user], allow: 20/day, on_store_error: deny }
`

// TestOutage: while Redis is away, a banner says on each view how the node decides, and the
// overview has a card. Afterwards the card tells what all nodes decided alone, and each chart and
// the history have the outage.
func TestOutage(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	redis := redistest.Start(t)
	var all [2]*server
	for i := range all {
		all[i] = serve(t, map[string]string{"rules/shop.yaml": outageRules}, "--store", redis.URL(), "--store-deadline", "30s",
			"--store-timeout", "30s")
	}
	for _, s := range all {
		patience.Until(t, "both nodes are known", func() bool {
			_, body := s.api("GET", "/api/v1/nodes", "")
			return strings.Contains(body, `"answered": 2`)
		})
		s.ask("path", "/search", "user", "before")
	}
	b := d.open(t, all[0].admin, desktop)
	b.visit("/")
	b.until("the overview is there", `() => document.querySelector('.tiles')`, nil)
	// A node that does not answer in time has a banner, too.
	if b.has(`() => document.querySelector('#banner').innerText.includes('Redis') || document.querySelector('main').innerText.includes('Outages')`, nil) {
		t.Error("there is an outage without one")
	}

	redis.Kill()
	alone := 0
	for _, s := range all {
		patience.Until(t, "the node finds out", func() bool {
			s.ask("path", "/search", "user", "ada")
			_, body := s.api("GET", "/api/v1/outages", "")
			return strings.Contains(body, `"title": "Redis away"`)
		})
		s.ask("path", "/open", "user", "ada")
		s.ask("path", "/shut", "user", "ada")
	}
	const does = "admits 1/2 of each limit under 1 rule, fails open (admits all) under 1 rule, fails closed (refuses all) under 1 rule."
	b.until("the banner says what the node does",
		`(does) => { const e = document.querySelector('#banner.bad'); return e?.checkVisibility() && /^Redis away since (\d+ \w+, )?\d\d:\d\d:\d\d\. Meanwhile \S+ /.test(e.innerText) && e.innerText.includes(does); }`, does)
	b.until("the overview has a card",
		`() => [...document.querySelectorAll('.looks li')].some((e) => /^!?\s*Redis away since (\d+ \w+, )?\d\d:\d\d:\d\d: [\d,]+ decided alone/.test(e.innerText))`, nil)
	b.from().took("see that Redis is away, and what each node does")
	b.accessible("an outage that lasts")
	for _, view := range []string{"/nodes", "/rules/shop/search"} {
		b.visit(view)
		b.until("the banner is on each view",
			`(does) => document.querySelector('#banner').checkVisibility() && document.querySelector('#banner').innerText.includes(does)`, does)
	}
	b.clean("an outage that lasts")

	redis.Restart()
	var o struct {
		Alone int `json:"alone"`
		To    *string
		Nodes []struct{ Node string }
		Lost  bool `json:"counters_lost"`
	}
	patience.Until(t, "the outage is over on both nodes", func() bool {
		_, body := all[0].api("GET", "/api/v1/outages", "")
		var list struct{ Outages []json.RawMessage }
		if err := json.Unmarshal([]byte(body), &list); err != nil || len(list.Outages) != 1 {
			t.Fatal(err, body)
		}
		o.To = nil
		if err := json.Unmarshal(list.Outages[0], &o); err != nil {
			t.Fatal(err)
		}
		alone = o.Alone
		return o.To != nil && len(o.Nodes) == 2 && o.Lost
	})
	const told = `(alone) => new RegExp('^!?\\s*Redis away (\\d+ \\w+, )?\\d\\d:\\d\\d:\\d\\d to (\\d+ \\w+, )?\\d\\d:\\d\\d:\\d\\d: ' + alone.toLocaleString('en-GB') + ' decided alone,[^]* counters lost')`
	b.until("the banner is gone", `() => !document.querySelector('#banner').checkVisibility()`, nil)
	b.until("the chart of the rule has it",
		`(alone) => (`+told+`)(alone).test(document.querySelector('.chart + .away')?.innerText ?? '') && document.querySelector('.chart canvas')`, alone)
	for _, l := range []look{looks["light"], looks["dark"], looks["phone"]} {
		b := d.open(t, all[1].admin, l)
		b.visit("/")
		b.until("the card tells what both decided",
			`(alone) => [...document.querySelectorAll('.looks li')].some((e) => (`+told+`)(alone).test(e.innerText))`, alone)
		b.until("the chart has it", `() => document.querySelector('.chart + .away')?.checkVisibility() && document.querySelector('.chart canvas')`, nil)
		b.until("the band is drawn over the chart's height", band, nil)
		counted := b.from()
		counted.took("see what an outage of Redis did")
		b.accessible("an outage")
		if wide := b.sideways(); wide > 0 {
			t.Errorf("the page is %d px too wide", wide)
		}
		counted.click("History", "nav [data-view=history]")
		b.until("the history has it",
			`(alone) => [...document.querySelectorAll('.looks li')].some((e) => (`+told+`)(alone).test(e.innerText))`, alone)
		counted.took("find an outage in the history")
		b.accessible("an outage in the history")
		b.clean("an outage")
	}
}

// band reports whether the canvas has pixels of the edge of a band: its colour over some rows at
// the top of the plot.
const band = `() => {
	const canvas = document.querySelector('.chart canvas');
	const probe = document.createElement('span');
	probe.className = 'c-away';
	document.body.append(probe);
	const [r, g, b] = getComputedStyle(probe).color.match(/\d+/g).map(Number);
	probe.remove();
	const { data, width } = canvas.getContext('2d').getImageData(0, 0, canvas.width, 40);
	let n = 0;
	for (let i = 0; i < data.length; i += 4) if (data[i + 3] === 255 && Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 12) n++;
	return n >= 8;
}`

// others is an outage of something else than the store of counters.
type others struct {
	title, does, summary string
	metric               string // its line
	away, back           func(value float64) bool
	cut, mend            func()
}

// TestOutageRegion: while another region is cut off, the page, the terminal, the API and the
// metrics say so, and afterwards from when to when. Decisions go on.
func TestOutageRegion(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	eu, us := redistest.Start(t), redistest.Start(t)
	link := redistest.Proxy(t, us.Addr())
	in := func(region, own, peer, url string) *server {
		return serve(t, map[string]string{"rules/shop.yaml": regionalRules}, "--store", own, "--store-deadline", "30s", "--store-timeout", "30s",
			"--region", region, "--regions-weights", "eu=2,us=1", "--regions-stores", peer+"="+url)
	}
	s := in("eu", eu.URL(), "us", "redis://"+link.Addr())
	far := in("us", us.URL(), "eu", eu.URL())
	outageOf(t, d, s, others{
		title: "Region us away", does: "limits by earlier reports, and by the ceilings.",
		summary: "what it admitted was not heard, and ceilings held instead",
		metric:  `weir_region_staleness_seconds{peer="us"}`,
		away:    func(v float64) bool { return v > 3 },
		back:    func(v float64) bool { return v >= 0 && v < 3 },
		cut:     func() { link.Refuse(); link.Cut() }, mend: link.Pass,
	})
	// The other region has heard this one all the while.
	if _, body := far.api("GET", "/api/v1/outages", ""); strings.Contains(body, "Region eu") {
		t.Error(body)
	}
}

// TestOutageRules: the same of a PostgreSQL that holds the rules, while the store stays.
func TestOutageRules(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	server := pgtest.Start(t)
	address, err := ruledb.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ruledb.Init(t.Context(), address); err != nil {
		t.Fatal(err)
	}
	db, err := ruledb.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	files := []file.Source{{Name: "shop.yaml", Data: []byte(outageRules)}}
	_, err = db.Push(t.Context(), ruledb.Change{Files: files, Author: "bob", Origin: ruledb.Push})
	_ = db.Close()
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, nil, "--rules", server.URL(), "--rules-db-every", "300ms", "--store", redistest.Start(t).URL(), "--store-deadline", "30s",
		"--store-timeout", "30s")
	outageOf(t, d, s, others{
		title: "Database of the rules away", does: "goes on by the rules in force.",
		summary: "the rules in force stayed, and no change of them arrived",
		metric:  "weir_rules_behind", // after a minute
		away:    func(v float64) bool { return v == 1 },
		back:    func(v float64) bool { return v == 0 },
		cut:     server.Kill, mend: server.Restart,
	})
}

// metric is the value of a line of the metrics; -1 if there is none.
func (s *server) metric(line string) float64 {
	s.t.Helper()
	_, body := s.api("GET", "/metrics", "")
	for text := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(text, line+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return v
		}
	}
	return -1
}

func outageOf(t *testing.T, d *driver, s *server, x others) {
	t.Helper()
	b := d.open(t, s.admin, desktop)
	b.visit("/")
	b.until("the overview is there", `() => document.querySelector('.tiles')`, nil)
	patience.Until(t, "nothing is away", func() bool {
		_, body := s.api("GET", "/api/v1/outages", "")
		return x.back(s.metric(x.metric)) && !strings.Contains(body, `"to": null`)
	})
	_, before := s.api("GET", "/api/v1/outages", "")
	earlier := strings.Count(before, x.title) // it was not heard when it had not started yet

	x.cut()
	patience.Until(t, "the node finds out", func() bool {
		_, body := s.api("GET", "/api/v1/outages", "")
		return strings.Contains(body, x.title) && strings.Contains(body, `"to": null`)
	})
	patience.Until(t, "the metrics say so", func() bool { return x.away(s.metric(x.metric)) })
	if status, _ := s.ask("path", "/search", "user", "ada"); status != 200 {
		t.Errorf("a request meanwhile: %d", status)
	}
	const since = `([title, rest]) => new RegExp('^!?\\s*' + title + ' since (\\d+ \\w+, )?\\d\\d:\\d\\d:\\d\\d' + rest)`
	b.until("the banner says what the node does",
		`(x) => { const e = document.querySelector('#banner.bad'); return e?.checkVisibility() && (`+since+`)(x).test(e.innerText); }`,
		[]string{x.title, `\. Meanwhile \S+ ` + x.does})
	b.until("the overview has a card",
		`(x) => [...document.querySelectorAll('.looks li')].some((e) => (`+since+`)(x).test(e.innerText))`, []string{x.title, ": " + x.summary})
	b.accessible("an outage that lasts")
	b.clean("an outage that lasts")
	if out := s.top(t); !strings.Contains(out, "\n"+x.title+" since ") || !strings.Contains(out, ": "+x.summary) {
		t.Errorf("weir top says\n%s", out)
	}

	x.mend()
	patience.Until(t, "the outage is over", func() bool {
		_, body := s.api("GET", "/api/v1/outages", "")
		return !strings.Contains(body, `"to": null`)
	})
	patience.Until(t, "the metrics say so", func() bool { return x.back(s.metric(x.metric)) })
	if _, after := s.api("GET", "/api/v1/outages", ""); strings.Count(after, x.title) > earlier+1 {
		t.Errorf("one outage is told as several: %s", after)
	}
	b.until("the banner is gone", `() => !document.querySelector('#banner').checkVisibility()`, nil)
	const told = `([title, summary]) => [...document.querySelectorAll('.looks li')].some((e) => new RegExp('^!?\\s*' + title + ' (\\d+ \\w+, )?\\d\\d:\\d\\d:\\d\\d to (\\d+ \\w+, )?\\d\\d:\\d\\d:\\d\\d: ' + summary).test(e.innerText))`
	for _, l := range []look{desktop, looks["phone"]} {
		b := d.open(t, s.admin, l)
		for _, view := range []string{"/", "/history"} {
			b.visit(view)
			b.until("the outage has its times on "+view, told, []string{x.title, x.summary})
			b.accessible("an outage on " + view)
			if wide := b.sideways(); wide > 0 {
				t.Errorf("%s is %d px too wide", view, wide)
			}
		}
		b.clean("an outage")
	}
	if out := s.top(t); strings.Contains(out, x.title+" since ") || !strings.Contains(out, x.title+" from ") {
		t.Errorf("weir top says afterwards\n%s", out)
	}
}

// top is what weir top prints.
func (s *server) top(t *testing.T) string {
	t.Helper()
	program, err := built()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "top", "--batch", "--server="+s.admin)
	cmd.Env = testproc.Environ()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
