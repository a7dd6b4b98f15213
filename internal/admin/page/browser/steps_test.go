package browser

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// stepsOf is how many steps each job takes at the page, from the overview on. TestStepsInDocs holds
// that docs/operating/at-3-am.md says the same, and the tests of the jobs that it is so.
var stepsOf = map[string]int{
	"see what limits a customer":                             2,
	"read why it was refused":                                4,
	"grant it twice as much":                                 6,
	"ban whom the first sentence names":                      3,
	"ban its network, everywhere in the domain":              5,
	"ban two of the keys refused most":                       4,
	"see that Redis is away, and what each node does":        0,
	"see what an outage of Redis did":                        0,
	"find an outage in the history":                          1,
	"see which node differs, and in which rule":              0,
	"see what changed, and on which nodes":                   1,
	"see which author changed what, between two versions":    2,
	"see whether lint proves rules useless":                  0,
	"list the rules without a request":                       2,
	"enforce a rule that is in shadow on 10 % of its keys":   3,
	"see which line to change for that, of rules in folders": 2,
}

// steps counts what a reader does to get somewhere: keys, clicks, texts, and choices in lists.
type steps struct {
	*tab
	made  []string
	began time.Time
}

// steps opens the overview, from which steps are counted.
func (d *driver) steps(t *testing.T, s *server, l look) *steps {
	t.Helper()
	b := &steps{tab: d.open(t, s.admin, l)}
	b.visit("/")
	b.began = time.Now()
	return b
}

// from counts from now on, in a tab that shows the overview.
func (b *tab) from() *steps {
	b.t.Helper()
	b.until("the overview is shown", `() => document.querySelector('h1')?.textContent === 'Overview'`, nil)
	return &steps{tab: b, began: time.Now()}
}

func (s *steps) press(key string) {
	s.t.Helper()
	s.tab.press(key)
	s.made = append(s.made, key)
}

// click clicks what a selector of Playwright finds, once it is there, stands still, and nothing
// lies over it.
func (s *steps) click(what, selector string) {
	s.t.Helper()
	s.do(nil, "click", "selector", selector)
	s.made = append(s.made, "click "+what)
}

// tap clicks what may be gone when a click by its place arrives, as figures of the last minute may:
// it is looked for and clicked at once, where a finger would hit it. Meanwhile is done before each
// look.
func (s *steps) tap(what, find, arg string, meanwhile func()) {
	s.t.Helper()
	patience.Until(s.t, what+" can be clicked", func() bool {
		meanwhile()
		return s.has(`(arg) => {
			const e = `+find+`;
			e?.scrollIntoView({ block: 'center' });
			const r = e?.getClientRects()[0];
			if (!r || !e.contains(document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2))) return false;
			e.click();
			return true;
		}`, arg)
	})
	s.made = append(s.made, "click "+what)
}

func (s *steps) write(text string) {
	s.t.Helper()
	s.tab.write(text)
	s.made = append(s.made, "type "+text)
}

// choose chooses in a list of the dialog.
func (s *steps) choose(field, value string) {
	s.t.Helper()
	s.do(nil, "select", "selector", "dialog select[name="+field+"]", "value", value)
	s.made = append(s.made, "choose "+value)
}

// took fails if the job took more steps than stepsOf says, or fewer.
func (s *steps) took(job string) {
	s.t.Helper()
	s.t.Logf("%s: %d steps in %.1f s: %q", job, len(s.made), time.Since(s.began).Seconds(), s.made)
	n, ok := stepsOf[job]
	if !ok {
		s.t.Fatalf("the job %q is not in stepsOf", job)
	}
	if len(s.made) != n {
		s.t.Errorf("%s takes %d steps, stepsOf says %d: %q", job, len(s.made), n, s.made)
	}
}

// TestStepsInDocs: the table of steps in at-3-am.md has each job, with as many steps as the tests
// count, and as many named.
func TestStepsInDocs(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "..", "..", "docs", "operating", "at-3-am.md")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \| (\d+) \| ([^|]+) \|$`).FindAllStringSubmatch(string(data), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		said[m[1]] = n
		if named := len(strings.Split(m[3], ", ")); n > 0 && named != n {
			t.Errorf("%s: %d steps are named: %s", m[1], named, m[3])
		}
	}
	if !maps.Equal(said, stepsOf) {
		for _, job := range slices.Sorted(maps.Keys(stepsOf)) {
			if n, ok := said[job]; !ok || n != stepsOf[job] {
				t.Errorf("%s: %q is %d steps (there: %v), the tests count %d", file, job, n, ok, stepsOf[job])
			}
			delete(said, job)
		}
		if len(said) > 0 {
			t.Errorf("%s: no test counts the steps of %v", file, said)
		}
	}
}

// stepRules have a rule that lint proves useless, one that nobody meets, and two to refuse.
const stepRules = `domain: shop
limits:
  - { name: search, when: { path: /search }, per: [ip], allow: 5/min, algorithm: sliding_log }
  - { name: search-wider, when: { path: /search }, per: [ip], allow: 50/min, algorithm: sliding_log }
  - { name: api, per: [user], allow: 5/min, algorithm: sliding_log }
  - { name: old-import, when: { path: /old }, per: [ip], allow: 9/min }
`

// TestSteps counts the steps of a grant, of bans, and of finding useless rules: with a keyboard and
// a mouse, and on a phone. The other jobs are counted where they are tested.
func TestSteps(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	for name, l := range map[string]look{"desktop": desktop, "phone": {"dark", 390, 844}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, map[string]string{"rules/shop.yaml": stepRules})
			ask := func(times int, attributes ...string) {
				t.Helper()
				for range times {
					s.ask(attributes...)
				}
			}
			overview := func() *steps { t.Helper(); return d.steps(t, s, l) }
			enter := func(b *steps, what, selector string) {
				t.Helper()
				if name == "phone" {
					b.click(what, selector)
				} else {
					b.press("Enter")
				}
			}

			patience.Until(t, "lint's finding is a verdict", func() bool {
				_, body := s.api("GET", "/api/v1/insight", "")
				return strings.Contains(body, `"adds_nothing"`)
			})
			b := overview()
			b.sees("search-wider: adds nothing")
			b.took("see whether lint proves rules useless")
			b.click("Rules", "nav [data-view=rules]")
			b.click("without a request", "main .lead a:has-text('without a request')")
			b.until("the rules that nobody met are listed", `() => document.querySelector('main table')?.innerText.includes('old-import')`, nil)
			b.took("list the rules without a request")

			ask(12, "path", "/", "user", "ada")
			b = overview()
			if name == "phone" {
				b.click("find", "#find")
			} else {
				b.press("/")
			}
			b.until("find is open", findIsOpen, nil)
			b.write("ada")
			b.until("the key is found", isChosen, []string{"user=ada"})
			enter(b, "the key", "[role=option]")
			b.click("Grant at api", "text=Grant at api")
			b.click("×2", "dialog >> text=×2")
			b.until("the limit is twice as much", `() => document.querySelector('dialog [name=allow]').value === '10/minute'`, nil)
			b.click("Grant", "dialog button[type=submit]")
			b.dialogSays("Granted at api: user=ada has 10/minute until")
			b.took("grant it twice as much")

			named := func(ip string) *steps {
				t.Helper()
				b := overview()
				b.tap("ip="+ip, "[...document.querySelectorAll('.lead a')].find((e) => e.textContent === arg)", "ip="+ip,
					func() { ask(2, "path", "/search", "ip", ip) })
				b.click("Ban", "[aria-label='Ban, search']")
				return b
			}
			ask(60, "path", "/search", "ip", "198.51.100.7")
			b = named("198.51.100.7")
			b.click("Ban", "dialog button[type=submit]")
			b.sees("Banned until")
			b.took("ban whom the first sentence names")
			ask(60, "path", "/search", "ip", "203.0.113.7")
			b = named("203.0.113.7")
			b.choose("whom", "its /24, 256 addresses")
			b.choose("scope", "everywhere in the domain")
			b.click("Ban", "dialog button[type=submit]")
			b.sees("Banned until")
			b.took("ban its network, everywhere in the domain")

			b = overview()
			two := []string{"192.0.2.21", "192.0.2.22"}
			for _, ip := range two {
				b.tap("the box of "+ip, "[...document.querySelectorAll('input[type=checkbox]')].find((e) => e.ariaLabel === arg)",
					"Choose ip="+ip+" at search", func() {
						for _, ip := range two {
							ask(8, "path", "/search", "ip", ip)
						}
					})
			}
			b.click("Ban 2 chosen", "text=Ban 2 chosen")
			b.click("Ban", "dialog button[type=submit]")
			b.dialogSays("2 of 2 banned.")
			b.took("ban two of the keys refused most")
			if wide := b.sideways(); wide > 0 {
				t.Errorf("the page is %d px too wide", wide)
			}
			b.tab.click("Close")
			b.until("they are banned", `(two) => two.every((ip) => [...document.querySelectorAll('.bars li')].some((e) => e.innerText.includes(ip) && e.innerText.includes('banned') && !e.querySelector('input')))`, two)
			b.accessible("chosen keys")
			b.clean("steps")
			got := s.bans()
			for i := range got {
				got[i] = got[i][:strings.LastIndex(got[i], " ")] // how many each refused is as it was meanwhile
			}
			if want := []string{"search ip=192.0.2.21 false", "search ip=192.0.2.22 false", "search ip=198.51.100.7 false", "search ip=203.0.113.0/24 true"}; !slices.Equal(got, want) {
				t.Errorf("bans: %q, want %q", got, want)
			}
		})
	}
}
