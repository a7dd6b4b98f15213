package browser

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// manyDomains are rules of one name in domains of which the last one has what is looked for.
func manyDomains() map[string]string {
	files := map[string]string{}
	for _, domain := range []string{"alpha", "beta", "delta", "gamma", "shop", "zeta"} {
		files["rules/"+domain+".yaml"] = "domain: " + domain + "\nlimits:\n" +
			"  - { name: once, when: { tenant: '*' }, per: [api_user], allow: 1/hour, algorithm: sliding_log }\n" +
			"  - { name: search, when: { path: /search }, per: [ip], allow: 2/hour, algorithm: sliding_log }\n"
	}
	return files
}

// askTimes asks in a domain, so many times.
func (s *server) askTimes(domain string, times int, attributes map[string]string) (decision string) {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"domain": domain, "attributes": attributes})
	if err != nil {
		s.t.Fatal(err)
	}
	for range times {
		_, decision = s.askRaw(body)
	}
	return decision
}

// findIsOpen tells whether what is typed goes into the box.
const findIsOpen = `() => document.activeElement?.matches('dialog[open] [role=combobox]')`

// isChosen tells whether the option of find that is selected has all of some texts.
const isChosen = `(want) => want.every((w) => document.querySelector('[role=option][aria-selected=true]')?.innerText.includes(w))`

// TestFind: from a part of a name to why it was refused, in whatever domain and by whatever
// attribute, by keys alone and by clicks alone on a phone.
func TestFind(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, manyDomains())
	s.askTimes("shop", 1, map[string]string{"api_user": "batch-17", "tenant": "acme", "path": "/"})
	s.askTimes("zeta", 3, map[string]string{"api_user": "Batch-9", "tenant": "acme", "path": "/"})
	batch := map[string]string{"api_user": "batch-17", "tenant": "acme", "path": "/"}
	refused := s.askTimes("zeta", 2, batch) // of which each is kept
	s.askTimes("zeta", 12, batch)
	s.askTimes("gamma", 5, map[string]string{"ip": "203.0.113.77", "path": "/search"})
	s.askTimes("gamma", 4, map[string]string{"api_user": hostile[0], "tenant": hostile[4], "path": "/"})
	for name, l := range looks {
		t.Run(name, func(t *testing.T) {
			b := d.steps(t, s, l)
			if name == "phone" {
				b.click("find", "#find")
			} else {
				b.press("/")
			}
			b.until("find is open", findIsOpen, nil)
			b.write("batch")
			b.until("the name is found", isChosen, []string{"api_user=batch-17", "refused ", "in zeta"})
			b.took("see what limits a customer")
			b.until("others are found, too", `() => document.querySelectorAll('[role=option]').length === 3`, nil)
			b.accessible("find")
			if wide := b.sideways(); wide > 0 {
				t.Errorf("the page is %d px too wide", wide)
			}
			if name == "phone" {
				b.click("the key", "[role=option]")
			} else {
				b.press("Enter")
			}
			b.until("the key is shown", `() => location.pathname.startsWith('/keys/zeta/') && document.querySelector('h1')?.textContent === 'api_user=batch-17'`, nil)
			b.sees("Would be refused now by once")
			b.click("the decision", ".log a.line")
			b.sees("Refused by once: 1 per hour for api_user=batch-17 were used up")
			b.took("read why it was refused")
			b.clean("find")
		})
	}
	t.Run("by a part of anything", func(t *testing.T) {
		// By a part inside, of an address, of an attribute by which no rule counts.
		b := d.open(t, s.admin, desktop)
		b.visit("/bans")
		for _, c := range []struct {
			text string
			want []string
			path string
		}{
			{"TCH-9", []string{"api_user=Batch-9", "refused ", "in zeta"}, "/keys/zeta/api_user%3DBatch-9"},
			{"203.0.113", []string{"ip=203.0.113.77", "refused ", "in gamma"}, "/keys/gamma/ip%3D203.0.113.77"},
			{"tenant=AC", []string{"tenant=acme", "in zeta"}, "/decisions?key=tenant%3Dacme&of=zeta"},
			{refused, []string{refused, "decision"}, "/decisions/" + refused},
			{refused[:7], []string{refused, "decision, refused", "api_user=batch-17"}, "/decisions/" + refused},
			{"gamma/sear", []string{"search", "rule of gamma"}, "/rules/gamma/search"},
			{"search", []string{"search", "rule of alpha"}, "/rules/alpha/search"},
			{"api_user=never", []string{"api_user=never", "in alpha, not seen lately"}, "/keys/alpha/api_user%3Dnever"},
		} {
			b.press("/")
			b.until("find is open", findIsOpen, nil)
			b.write(c.text)
			b.until(c.text+" is found", isChosen, c.want)
			b.press("Enter")
			b.until(c.text+" opens", `(path) => location.pathname + location.search === path`, c.path)
			b.shown()
		}
		b.clean("find")
	})
	t.Run("in the last minute", func(t *testing.T) {
		b := d.open(t, s.admin, desktop)
		b.visit("/")
		b.press("/")
		b.until("find is open", findIsOpen, nil)
		want := regexp.MustCompile(`^api_user=often\s+refused (at least )?\d+ in the last minute by once in zeta$`)
		patience.Until(t, "the box says how often, and by what", func() bool {
			s.askTimes("zeta", 4, map[string]string{"api_user": "often", "tenant": "acme", "path": "/"})
			b.do(nil, "fill", "selector", "[role=combobox]", "text", "")
			b.do(nil, "fill", "selector", "[role=combobox]", "text", "often")
			b.until("it is found", `() => document.querySelector('[role=option]')?.innerText.includes('refused')`, nil)
			return want.MatchString(strings.TrimSpace(b.text("[role=option]")))
		})
	})
	t.Run("while the answer is not there", func(t *testing.T) {
		b := d.open(t, s.admin, desktop)
		b.visit("/")
		b.press("/")
		b.until("find is open", findIsOpen, nil)
		b.do(nil, "type", "text", "203.0.113.7")
		b.press("Enter") // at once: it opens what is found, not a guess
		b.until("the key is shown", `() => location.pathname === '/keys/gamma/ip%3D203.0.113.77'`, nil)
	})
	t.Run("hostile", func(t *testing.T) {
		b := d.open(t, s.admin, desktop)
		b.visit("/")
		b.press("/")
		b.until("find is open", findIsOpen, nil)
		b.write("onerror")
		b.until("it is found", `() => document.querySelector('[role=option]')?.innerText.includes('onerror=alert(1)>')`, nil)
		if b.has(`() => document.querySelector('dialog img')`, nil) {
			t.Error("text of a client became an element")
		}
		for range 20 {
			b.press("Escape", "/") // a box that is closed takes no key
			b.until("find is open", findIsOpen, nil)
		}
		b.write("tenant=")
		b.until("what one would not see is shown", `() => [...document.querySelectorAll('[role=option]')].some((o) => o.innerText.includes('⟨U+202E⟩'))`, nil)
		b.accessible("hostile names")
		b.clean("hostile names")
	})
}

// TestKeysOfDomains: the view of keys tells rules of one name apart, and opens a key where it was
// seen.
func TestKeysOfDomains(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, manyDomains())
	for i, domain := range []string{"shop", "zeta"} {
		s.askTimes(domain, 3+i, map[string]string{"api_user": "ada-" + domain, "tenant": "acme", "path": "/"})
	}
	b := d.open(t, s.admin, desktop)
	b.visit("/keys?back=12h")
	rules := `() => [...document.querySelectorAll('td a')].map((a) => a.innerText).filter((t) => t.includes('once')).join()`
	b.until("both domains are told apart", `() => (`+rules+`)() === 'zeta/once,shop/once'`, nil)
	b.do(nil, "select", "selector", "select >> nth=-1", "value", "shop/once")
	b.until("one rule is shown", `() => (`+rules+`)() === 'shop/once'`, nil)
	open := func(text string) {
		b.do(nil, "fill", "selector", "input[name=key]", "text", text)
		b.press("Enter")
	}
	open("ADA-z")
	b.until("the key is opened where it was seen", `() => location.pathname === '/keys/zeta/api_user%3Dada-zeta'`, nil)
	b.visit("/keys")
	open("ada")
	b.until("several are shown to choose from", `() => document.querySelectorAll('dialog [role=option]').length === 2`, nil)
	b.accessible("several keys")
	b.press("ArrowDown", "Enter")
	b.until("the second is opened", `() => location.pathname === '/keys/shop/api_user%3Dada-shop'`, nil)
	b.visit("/keys")
	open("nobody")
	b.sees("Nothing like it was seen lately")
	b.clean("keys")
}
