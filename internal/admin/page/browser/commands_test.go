package browser

import (
	"fmt"
	"testing"
)

// TestCommands: commands that bring their limit show in Overview and Keys, as what is no rule: no
// link leads to one, and nothing offers to ban or grant their keys.
func TestCommands(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	s := serve(t, nil)
	s.traffic()
	sent := 0
	for name, l := range looks {
		t.Run(name, func(t *testing.T) {
			throttle := func() { // what is refused most is of the last minute
				s.throttle("user:ada", 40)
				sent += 40
			}
			throttle()
			b := d.open(t, s.admin, l)
			check := func(where string) {
				t.Helper()
				b.accessible(where)
				if wide := b.sideways(); wide > 0 {
					t.Errorf("%s: the page is %d px too wide", where, wide)
				}
				if b.has(
					`() => [...document.querySelectorAll('a')].some((a) => a.getAttribute('href').startsWith('/rules/_command'))`, nil) {
					t.Errorf("%s: a link leads to a rule that there is not", where)
				}
				b.clean(where)
			}
			const row = `[...document.querySelectorAll('tbody tr')].find((r) => r.innerText.includes('_command'))`
			b.visit("/")
			b.until("the commands have a row", `() => { const r = `+row+`; return r?.innerText.includes('`+
				fmt.Sprint(sent)+`') && r.innerText.includes('`+fmt.Sprint(sent-5)+
				`') && !r.querySelector('.pill'); }`, nil)
			b.sees("by commands that bring their limit (_command)")
			b.until("the key is among those refused most",
				`() => [...document.querySelectorAll('.bars a')].some((a) => a.innerText.includes('key=user:ada'))`, nil)
			check("overview")
			b.visit("/rules")
			b.sees("5 rules:")
			check("rules")
			throttle()
			b.do(nil, "click", "selector", "tbody a:has-text('_command')")
			b.until("their keys are shown", `() => document.querySelector('h1')?.textContent === 'Keys' && `+row+
				`?.innerText.includes('key=user:ada')`, nil)
			b.sees("limit comes with CL.THROTTLE")
			if b.has(
				`() => [...document.querySelectorAll('main button')].some((b) => b.textContent === 'Ban' || b.textContent === 'Grant')`, nil) {
				t.Error("a key of commands can be banned, or granted something")
			}
			b.until("the filter says that only these are shown",
				`() => [...document.querySelectorAll('select')].some((s) => s.value === '_command')`, nil)
			check("keys")
			b.do(nil, "click", "selector", "tbody a:has-text('user:ada')")
			b.until("the key is shown", `() => document.querySelector('h1')?.textContent === 'key=user:ada'`, nil)
			b.sees("Its limit comes with each command: no rule, ban or grant is on it.")
			b.until("what it asked is shown",
				`() => [...document.querySelectorAll('tbody tr')].some((r) => r.innerText.startsWith('CL.THROTTLE'))`, nil)
			check("key")
			b.visit("/?domain=_command")
			b.sees("by commands that bring their limit (_command)")
			check("overview of commands alone")
		})
	}
}
