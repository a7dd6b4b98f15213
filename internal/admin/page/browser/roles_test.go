package browser

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule/file"
)

// roleNames are the roles, each of which may do what those before it may.
var roleNames = []string{"viewer", "support", "operator", "editor", "admin"}

// roleRules have a rule that refuses, and one in shadow. What is counted stays for the whole test.
const roleRules = `domain: shop
limits:
  - { name: search, when: { path: /search }, per: [ip], allow: 3/day, algorithm: sliding_log }
  - { name: trial, when: { path: /search }, per: [ip], allow: 2/day, algorithm: sliding_log, on_limit: shadow }
`

// lastMinute is a list of keys that were refused in the last minute.
const lastMinute = ".bars li"

// buttonsOf are the buttons of each view that do something on the server or show what is secret, by
// the least role that is shown them. there is what the view has once it is drawn. ID is a decision
// that refused; .7 is refused, .8 is banned, and .9 has a grant.
var buttonsOf = []struct {
	path, there string
	buttons     map[string][]string
}{
	{"/", lastMinute, map[string][]string{"operator": {"choose"}}},
	{"/rules", "tbody tr", nil},
	{"/rules/shop/search", lastMinute, map[string][]string{"operator": {"choose", "Ban a key", "Grant a key", "Try a change"}}},
	{"/rules/shop/trial", lastMinute, map[string][]string{"operator": {"choose", "Ban a key", "Try a change", "Enforce on 10 %", "Enforce on 50 %", "Enforce on all"}}},
	{"/keys?back=12h", "tbody tr", map[string][]string{"support": {"Open"}, "operator": {"choose", "Ban", "Lift", "Grant", "End grant", "Reset"}}},
	{"/keys/shop/ip=198.51.100.7", "tbody tr", map[string][]string{"operator": {"Ban", "Grant", "Grant at search", "Reset"}}},
	{"/keys/shop/ip=198.51.100.8", "tbody tr", map[string][]string{"operator": {"Lift", "Ban", "Grant", "Grant at search", "Reset"}}},
	{"/keys/shop/ip=198.51.100.9", "tbody tr", map[string][]string{"operator": {"Ban", "Grant", "Grant at search", "End grant", "Reset"}}},
	{"/decisions", ".log .line", map[string][]string{"support": {"Filter"}}},
	{"/decisions/ID", ".kv", map[string][]string{"operator": {"Grant"}}},
	{"/try", "textarea", map[string][]string{"operator": {"Try", "Copy patch"}, "editor": {"Put in force…", "Put in shadow…"}}},
	{"/bans", "tbody tr", map[string][]string{"operator": {"Ban a key", "Grant a limit", "Lift", "End"}}},
	{"/nodes", "tbody tr", nil},
	{"/history", ".kv", map[string][]string{"editor": {"Back to 1"}}},
}

// buttons are the buttons that are shown, without headings to sort by, and files to open.
const buttons = `() => [...new Set([...document.querySelectorAll('main .btn, main input[type=checkbox]')].filter((e) => e.checkVisibility() && !e.closest('.state') && e.textContent !== 'Pause' && e.textContent !== 'shop.yaml').map((e) => e.type === 'checkbox' ? 'choose' : e.textContent))].sort()`

// TestRolesOfButtons: each view shows each role the buttons of what it may do, and no others.
func TestRolesOfButtons(t *testing.T) {
	t.Parallel()
	d := chromium(t)
	address, db := rulesDatabase(t)
	for i, text := range []string{roleRules, strings.Replace(roleRules, "3/day", "4/day", 1)} {
		files := []file.Source{{Name: "shop.yaml", Data: []byte(text)}}
		if _, err := db.Push(t.Context(), ruledb.Change{Base: int64(i), Files: files, Author: "bob", Origin: ruledb.Push}); err != nil {
			t.Fatal(err)
		}
	}
	var tokens strings.Builder
	for _, role := range roleNames {
		fmt.Fprintf(&tokens, "token-of-%s-0123456789abcdef name=%s role=%s\n", role, role, role)
	}
	s := serve(t, map[string]string{"tokens": tokens.String()}, "--rules", address, "--auth-tokens-file", "tokens")
	s.token = "token-of-admin-0123456789abcdef"
	refused := ""
	for i := range 3 {
		for range 10 {
			status, id := s.ask("path", "/search", "ip", fmt.Sprint("198.51.100.", 7+i))
			if status == 429 && refused == "" {
				refused = id // the first ones are kept
			}
		}
	}
	s.order("/api/v1/bans", `{"domain":"shop","limit":"search","key":["ip=198.51.100.8"],"for":"1d"}`)
	s.order("/api/v1/grants", `{"domain":"shop","limit":"search","key":["ip=198.51.100.9"],"allow":"9/day","for":"1d"}`)
	for i, role := range roleNames {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			b := d.login(t, s, desktop, role, "/bans", "Bans in force")
			for _, v := range buttonsOf {
				want := []string{}
				for least, list := range v.buttons {
					if i >= slices.Index(roleNames, least) {
						want = append(want, list...)
					}
				}
				slices.Sort(want)
				b.visit(strings.Replace(v.path, "ID", refused, 1))
				var got []string
				patience.Until(t, fmt.Sprintf("%s at %s is shown %q", role, v.path, want), func() bool {
					if v.there == lastMinute {
						s.ask("path", "/search", "ip", "198.51.100.7")
					}
					if !b.has(`(there) => document.querySelector('main .state, main ' + there)`, v.there) {
						return false
					}
					b.do(&got, "evaluate", "js", buttons)
					// What comes with figures may still come; what should not be there does not go.
					for _, name := range got {
						if !slices.Contains(want, name) {
							t.Fatalf("%s at %s is shown %q; want %q", role, v.path, got, want)
						}
					}
					return len(got) == len(want)
				})
			}
		})
	}
}
