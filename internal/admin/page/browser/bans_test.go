package browser

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// bans returns the bans in force: limit, key, whether everywhere in the domain, refused.
func (s *server) bans() (list []string) {
	s.t.Helper()
	_, body := s.api("GET", "/api/v1/bans", "")
	var a struct {
		Bans []struct {
			Limit   string
			Key     []string
			Wide    bool
			Refused int
		}
	}
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		s.t.Fatal(err)
	}
	for _, b := range a.Bans {
		list = append(list, fmt.Sprint(b.Limit, " ", strings.Join(b.Key, "+"), " ", b.Wide, " ", b.Refused))
	}
	slices.Sort(list)
	return list
}

// TestBan: from the headline to the key, its network banned everywhere in the domain; the headline
// tells then what bans refused and names the key no longer. Several keys are banned at once.
func TestBan(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	for _, l := range []look{desktop, {"dark", 390, 844}} {
		t.Run(fmt.Sprint(l.width), func(t *testing.T) {
			t.Parallel()
			s := serve(t, map[string]string{"rules/shop.yaml": grantRules})
			b := d.open(t, s.admin, l)
			ask := func(ip string, times int) {
				for range times {
					s.ask("path", "/search", "ip", ip)
				}
			}
			whole := func(where string) {
				t.Helper()
				if px := b.sideways(); px > 0 {
					t.Errorf("%s: %d px too wide", where, px)
				}
				b.accessible(where)
				b.clean(where)
			}
			link := func(text string) {
				t.Helper()
				b.until("the headline links "+text, `(text) => { const e = [...document.querySelectorAll('.lead a')].find((e) => e.textContent === text); e?.click(); return !!e; }`, text)
			}
			for _, ip := range []string{"192.0.2.21", "192.0.2.22"} {
				ask(ip, 10)
			}
			ask("198.51.100.7", 60)

			b.visit("/")
			patience.Until(t, "the headline links the key that was refused most in the last minute", func() bool {
				ask("198.51.100.7", 1)
				return b.has(`(text) => { const e = [...document.querySelectorAll('.lead a')].find((e) => e.textContent === text); e?.click(); return !!e; }`, "ip=198.51.100.7")
			})
			press := func(name string) { // in a table, which scrolls
				t.Helper()
				const find = `[...document.querySelectorAll('button')].find((e) => e.ariaLabel === name)`
				b.until("there is the button "+name, `(name) => `+find, name)
				b.do(nil, "evaluate", "js", `(name) => `+find+`.click()`, "arg", name)
			}
			press("Ban, search")
			b.set("whom", "its /24, 256 addresses")
			b.set("scope", "everywhere in the domain")
			whole("the dialog of a ban")
			b.click("Ban")
			b.until("the dialog is closed", `() => !document.querySelector('dialog')`, nil)
			for range 7 {
				if status, _ := s.ask("path", "/elsewhere", "ip", "198.51.100.8"); status != 429 {
					t.Fatalf("another address of the network, elsewhere: %d", status)
				}
			}
			b.visit("/")
			link("Bans refused 7 of these")
			b.sees("ip=198.51.100.0/24")
			b.sees("in the whole domain")
			whole("bans")
			b.visit("/")
			if b.has(`() => document.querySelector('.lead').innerText.includes('198.51.100.7')`, nil) {
				t.Error("a key that is banned is named as the one to blame")
			}

			// Several at once, one of which cannot be.
			b.visit("/keys?back=12h")
			for _, ip := range []string{"192.0.2.21", "192.0.2.22"} {
				b.until("the key can be chosen", `(name) => { const e = document.querySelector('input[aria-label="' + name + '"]'); e?.click(); return !!e; }`,
					"Choose ip="+ip+" at search")
			}
			whole("keys that are chosen")
			b.click("Ban 2 chosen")
			b.dialogSays("ip=192.0.2.21 at search, ip=192.0.2.22 at search")
			b.click("Ban")
			b.dialogSays("2 of 2 banned.")
			b.click("Close")
			b.sees("banned until")
			want := []string{"search ip=192.0.2.21 false 0", "search ip=192.0.2.22 false 0", "search ip=198.51.100.0/24 true 7"}
			if got := s.bans(); !slices.Equal(got, want) {
				t.Errorf("bans: %q, want %q", got, want)
			}
			b.clean("at the end")
		})
	}
}
