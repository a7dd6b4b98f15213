package browser

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
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
