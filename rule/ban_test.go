package rule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
)

// TestMatchBans: the keys of domain-wide bans are the ones that Match makes, however many rules the
// domain has, and no other rule is looked at.
func TestMatchBans(t *testing.T) {
	var text strings.Builder
	text.WriteString("domain: shop\nlimits:\n  - {name: wide, when: {path: /x}, per: [ip], allow: 9/min, ban: {after: 9, within: 1m, for: 1m, scope: domain}}\n" +
		"  - {name: hand, when: {path: /y}, per: [user], allow: 9/min}\n  - {name: none, per: [other], allow: 9/min, ban: {after: 9, within: 1m, for: 1m, scope: domain}}\n")
	for i := range 500 {
		fmt.Fprintf(&text, "  - {name: r%d, per: [ip], allow: 9/min}\n", i)
	}
	set, err := rule.LoadText(text.String())
	if err != nil {
		t.Fatal(err)
	}
	q := rule.Query{Domain: "shop", BanRules: set.Rules()[1:2], Attributes: rule.Map{"ip": "192.0.2.1", "user": "ada"}}
	keys := func(match func(*rule.Query, *rule.Matches)) (list string, met int) {
		var m rule.Matches
		match(&q, &m)
		set.BanKeys(&m, func(r *rule.Rule, key []byte) bool {
			list += fmt.Sprint(r.Name, " ", strings.Join(r.Windows[0].KeyParts(key), ","), "; ")
			return true
		})
		return list, len(m.Hits)
	}
	want, all := keys(set.Match)
	got, none := keys(set.MatchBans)
	if got != want || got != "wide ip=192.0.2.1; hand user=ada; " || none != 0 || all != 500 {
		t.Errorf("%s with %d limits, want %s; Match has %d", got, none, want, all)
	}
	q.Domain = "nowhere"
	if got, _ := keys(set.MatchBans); got != "" {
		t.Errorf("in no domain: %s", got)
	}
}
