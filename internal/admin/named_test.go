package admin

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
)

const namedRules = `
domain: shop
limits:
  - name: api
    when: { path: "/api/**", plan: free }
    per: [user]
    allow: 1/hour
  - { name: pages, per: [ip, path], allow: 1/hour, algorithm: sliding_log }
  - { name: plans, per: [plan, user], allow: 1/hour, algorithm: sliding_log }
  - { name: routes, per: [method, path], allow: 100000/hour }
  - { name: tiers, per: [plan], allow: 100000/hour }
descriptors:
  - key: generic_key
    value: login
    descriptors:
      - { key: account, rate_limit: { unit: hour, requests_per_unit: 1 } }
`

// TestNamedKeys: somebody of support sees those decisions whole whose counter's key they named, in
// a list and in a stream, and learns nothing of other clients by naming what these have in common.
func TestNamedKeys(t *testing.T) {
	people := map[string]rule.Map{
		"ada": {"user": "ada.lovelace", "path": "/api/orders/of-ada", "ip": "198.51.100.7", "plan": "free", "method": "GET"},
		"eve": {"user": "eve.adams", "path": "/api/orders/of-ada", "ip": "2001:db8:1:2::7", "plan": "free", "method": "GET"},
		// Who chooses such a name lifts no mask but their own.
		"odd": {"user": "x, method=GET, plan=free", "path": "/api/orders/of-ada", "ip": "198.51.100.8", "plan": "free", "method": "GET"},
	}
	for _, c := range []struct {
		key   string
		whole string // whose decisions are shown whole
		none  bool   // nothing is found
	}{
		{key: "method=GET"},
		{key: "path=/api/orders/of-ada"},
		{key: "plan=free"},
		{key: "method=GET, path=/api/orders/of-ada"},
		{key: "user=ada.lovelace", whole: "ada"},
		{key: "ip=198.51.100.7", whole: "ada"},
		{key: "ip=198.51.100.7, path=/api/orders/of-ada", whole: "ada"},
		{key: "plan=free, user=ada.lovelace", whole: "ada"},
		{key: "ip=2001:db8:1:2::7", whole: "eve"},
		{key: "ip=2001:db8:1:2::/64", whole: "eve"},
		{key: "user=x", whole: "odd"},
		{key: "user=", none: true},
		{key: "ip=198.51.100.0/24", none: true},
	} {
		t.Run(c.key, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWhole(t, nil)
				w.limiter.SetRules(doortest.Load(t, namedRules))
				query := "key=" + url.QueryEscape(c.key)
				stream, end := w.follow(t, "support", "?views=decisions&"+query)
				defer end()
				synctest.Wait()
				for range 2 {
					for _, attributes := range people {
						w.decide(t, attributes)
					}
				}
				time.Sleep(time.Second)
				synctest.Wait()
				list := w.as("support", "GET", "/api/v1/decisions?"+query, "")
				if list.Status != 200 {
					t.Fatal(list.Status, list.Body)
				}
				answers := []string{list.Body}
				for _, e := range stream.of(topicDecisions) {
					answers = append(answers, e.data)
				}
				if c.none != (len(answers) == 1) {
					t.Fatal(answers)
				}
				for _, text := range answers {
					var list DecisionList
					if err := json.Unmarshal([]byte(text), &list); err != nil || c.none != (len(list.Decisions) == 0) {
						t.Fatal(err, text)
					}
					for _, d := range list.Decisions {
						if whole := c.whole != "" && d.Attributes["user"] == people[c.whole]["user"]; (d.ID != 0) != whole {
							t.Errorf("%q is the id of a decision that tells %v", d.ID, d.Attributes)
						}
					}
					for name, of := range map[string][]string{"ada": {"lovelace", "100.7"}, "eve": {"adams", "2::7"},
						"odd": {`"x, method`, "100.8"}} {
						for _, part := range of {
							if shown := strings.Contains(text, part); shown != (name == c.whole) {
								t.Errorf("shown %v: %q of %s in %s", shown, part, name, text)
							}
						}
					}
				}
			})
		})
	}
	names := namesOf(doortest.Load(t, namedRules))
	for text, want := range map[string]bool{"generic_key=login": false, "generic_key=login, account=7": false,
		"account=8": true, "generic_key=login, account=8": true} {
		if n := newNaming("account=8", names); n.key(text) != want {
			t.Errorf("account=8 lifts the mask from %s: %v", text, !want)
		}
	}
}
