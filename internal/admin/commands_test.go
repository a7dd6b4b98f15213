package admin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// Commands that bring their limit are shown without a rule. Their keys are masked like others, and
// nothing that asks for a rule finds one.
func TestCommands(t *testing.T) {
	w := newWhole(t, nil)
	w.refuse(t)
	for _, key := range []string{"ada.lovelace", "198.51.100.7", "user:eve, ip=2001:db8:1:2::7,bob.brown"} {
		for _, admitted := range []bool{true, false} {
			w.insight.Command(insight.CLThrottle, []byte(key), 1, time.Now().UnixMicro(),
				&algo.Result{Limit: 2, Allowed: admitted, RetryAfter: 1e6})
		}
	}
	keysOf := func(role, query string) (keys []string) {
		t.Helper()
		a := w.as(role, "GET", "/api/v1/insight/keys?"+query, "")
		var got TopKeys
		if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 {
			t.Fatalf("%s: %d %s", query, a.Status, a.Body)
		}
		for _, k := range got.Keys {
			if k.Domain != "_command" || k.Rule != "_command" || k.Limit != "CL.THROTTLE" || k.BannedUntil != nil ||
				k.GrantedUntil != nil {
				t.Errorf("%+v", k)
			}
			keys = append(keys, k.Key)
		}
		return keys
	}
	for _, query := range []string{"limit=_command", "domain=_command&by=asked", "limit=CL.THROTTLE&over=12h"} {
		if keys := strings.Join(keysOf("operator", query), " "); !strings.Contains(keys, "key=ada.lovelace") ||
			!strings.Contains(keys, "key=user:eve, ip=2001:db8:1:2::7,bob.brown") {
			t.Errorf("%s: an operator sees %q", query, keys)
		}
		keys := strings.Join(keysOf("viewer", query), " ")
		for _, part := range secrets {
			if strings.Contains(keys, part) {
				t.Errorf("%s: a viewer sees %q", query, keys)
			}
		}
		if !strings.Contains(keys, "key=a…") || !strings.Contains(keys, "key=198.51.100.0/24") ||
			!strings.Contains(keys, "key=u…, ip=2001:db8:1::/48,…") {
			t.Errorf("%s: a viewer sees %q", query, keys)
		}
	}

	var rules RuleReports
	for _, query := range []string{"", "?n=1"} {
		a := w.as("viewer", "GET", "/api/v1/insight/rules"+query, "")
		rules = RuleReports{}
		if err := json.Unmarshal([]byte(a.Body), &rules); err != nil {
			t.Fatal(err)
		}
		last := rules.Rules[len(rules.Rules)-1]
		if rules.Total != 3 || !last.Command || last.Met != 6 || last.Refused != 3 ||
			query != "" && len(rules.Rules) != 2 {
			t.Errorf("%q: %s", query, a.Body)
		}
	}
	for path, want := range map[string]int{
		"/api/v1/insight?domain=_command": 200, "/api/v1/insight/keys/_command/key=ada.lovelace": 200, "/api/v1/decisions?domain=_command&key=key=ada.lovelace": 200,
		"/api/v1/insight/rules/_command/_command": 404, "/api/v1/insight/keys?domain=shop&limit=_command": 404, "/api/v1/insight?domain=_commands": 404,
	} {
		if a := w.as("operator", "GET", path, ""); a.Status != want {
			t.Errorf("%s: %d %s, want %d", path, a.Status, a.Body, want)
		}
	}
	for _, path := range []string{"/api/v1/bans", "/api/v1/grants"} {
		a := w.as("operator", "POST", path,
			`{"domain":"_command","limit":"_command","key":["key=ada.lovelace"],"for":"1h","allow":"5/s","reason":"x"}`)
		if a.Status < 400 || a.Status >= 500 {
			t.Errorf("%s: %d %s", path, a.Status, a.Body)
		}
	}
	// With insight off there are none.
	w = newWhole(t, func(o *Options) { o.Insight = nil })
	if a := w.as("operator", "GET", "/api/v1/decisions?domain=_command", ""); a.Status != 404 {
		t.Errorf("without insight: %d %s", a.Status, a.Body)
	}
}
