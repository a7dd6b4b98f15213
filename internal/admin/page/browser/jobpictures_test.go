//go:build pictures

package browser

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule/file"
)

const jobRules = `domain: shop
limits:
  - { name: login, when: { path: /login }, per: [ip], allow: 5/min, algorithm: sliding_log }
  - { name: search, when: { path: /search }, per: [user], allow: 20/min, algorithm: sliding_log }
  - { name: images, when: { path: "/images/*" }, per: [user], allow: 600/min }
  - { name: api, per: [user], allow: 1000/h }
  - { name: api-tighter, per: [user], allow: 10/min, algorithm: sliding_log, on_limit: shadow }
`

// TestJobPictures makes the pictures of docs/operating/at-3-am.md, as TestPictures does of the
// views: what each job shows, on three nodes that share a Redis.
func TestJobPictures(t *testing.T) {
	out := os.Getenv("WEIR_PICTURES")
	d := chromium(t)
	redis := redistest.Start(t)
	var all [3]*server
	for i := range all {
		all[i] = serve(t, map[string]string{"rules/shop.yaml": jobRules}, "--store", redis.URL(), "--node-name", fmt.Sprint("web-", i+1))
	}
	for _, s := range all {
		patience.Until(t, "the nodes are known", func() bool {
			_, body := s.api("GET", "/api/v1/nodes", "")
			return strings.Contains(body, `"answered": 3`)
		})
	}
	traffic := func(rounds int) {
		for i := range rounds {
			s := all[i%3]
			for user := range 8 {
				s.ask("path", fmt.Sprint("/products/", i), "user", fmt.Sprintf("user-%02d", user), "ip", fmt.Sprint("203.0.113.", 10+user))
			}
			for range 3 {
				s.ask("path", "/search", "user", "batch-17", "ip", "203.0.113.40")
			}
			s.ask("path", "/search", "user", "batch-4", "ip", "203.0.113.41")
			for range 4 {
				s.ask("path", "/login", "method", "POST", "ip", "198.51.100.7")
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
	traffic(100)
	s := all[0]
	wide := look{"light", 1200, 640}
	find := func(name string, l look) {
		b := d.open(t, s.admin, l)
		b.visit("/")
		b.do(nil, "click", "selector", "#find")
		b.until("find is open", findIsOpen, nil)
		b.write("batch")
		b.until("the name is found", isChosen, []string{"user=batch-17", "in the last minute"})
		b.picture(out, name, l.height)
		b.clean(name)
	}
	find("job-find-light", look{"light", 1200, 400})
	find("job-find-phone", look{"light", 390, 700})

	b := d.open(t, s.admin, wide)
	b.visit("/keys/shop/user=batch-17")
	b.click("Grant at search")
	b.click("2 times the limit in force")
	b.dialogSays("Then 40/minute holds until")
	b.picture(out, "job-grant-light", 640)
	b.press("Escape")

	b.visit("/keys/shop/ip=198.51.100.7")
	b.do(nil, "click", "selector", "[aria-label='Ban, login']")
	b.set("whom", "its /24, 256 addresses")
	b.set("scope", "everywhere in the domain")
	b.picture(out, "job-ban-light", 640)
	b.press("Escape")
	b.visit("/keys?back=12h")
	for _, key := range []string{"ip=198.51.100.7 at login", "user=batch-17 at search"} {
		b.do(nil, "click", "selector", "[aria-label='Choose "+key+"']")
	}
	b.picture(out, "job-chosen-light", 420)
	b.clean("grant and ban")

	changed := strings.Replace(jobRules, "allow: 600/min", "allow: 700/min", 1)
	write := func(s *server, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(s.dir, "rules", "shop.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(all[2], changed)
	b.visit("/")
	b.sees("web-3 has another rule shop/images: 700 per minute there, 600 per minute here")
	b.until("the dot is amber", `() => document.getElementById('live').classList.contains('part')`, nil)
	b.picture(out, "job-differs-light", 420)
	write(all[0], changed)
	write(all[1], changed)
	patience.Until(t, "all nodes have the change", func() bool {
		_, body := s.api("GET", "/api/v1/insight?over=7d", "")
		return strings.Contains(body, "700/min") && !strings.Contains(body, `"differ"`)
	})
	b.visit("/history")
	b.sees("allow 600/min → 700/min")
	b.picture(out, "job-changed-light", 420)
	b.clean("differs and changed")

	redis.Kill()
	b = d.open(t, s.admin, look{"dark", 1200, 640})
	b.visit("/")
	for i := range 30 {
		s.ask("path", "/search", "user", fmt.Sprint("user-", i%4))
		time.Sleep(100 * time.Millisecond)
	}
	b.sees("Redis away since")
	b.until("the overview has a card", `() => [...document.querySelectorAll('.looks li')].some((e) => /Redis away since/.test(e.innerText))`, nil)
	b.picture(out, "job-outage-dark", 640)

	url, db := rulesDatabase(t)
	files := []file.Source{{Name: "shop.yaml", Data: []byte(jobRules)}}
	if _, err := db.Push(t.Context(), ruledb.Change{Files: files, Author: "bob", Origin: ruledb.Push}); err != nil {
		t.Fatal(err)
	}
	s = serve(t, nil, "--rules", url, "--node-name", "web-1")
	for i := range 240 {
		s.ask("path", "/products/1", "user", fmt.Sprintf("user-%02d", i%18))
	}
	b = d.open(t, s.admin, wide)
	b.visit("/rules/shop/api-tighter")
	b.sees("Would refuse")
	b.picture(out, "job-rollout-light", 600)
	b.clean("roll-out")
}
