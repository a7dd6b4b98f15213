package admin

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
)

const findRules = `
domain: shop
limits:
  - { name: api, when: { path: "/api/**" }, per: [user], allow: 1/hour, algorithm: sliding_log }
  - { name: pages, per: [ip, path], allow: 1/hour, algorithm: sliding_log }
  - { name: plans, when: { plan: gold, tenant: "*" }, per: [account], allow: 1/hour, algorithm: sliding_log }
`

// found asks as a role, and returns the keys in the order of the answer.
func (w *whole) found(t *testing.T, role, query string) (keys []string, list FoundList) {
	t.Helper()
	a := w.as(role, "GET", findPath+"?"+query, "")
	if err := json.Unmarshal([]byte(a.Body), &list); err != nil || a.Status != 200 {
		t.Fatalf("%s: %d %s: %v", query, a.Status, a.Body, err)
	}
	for _, h := range list.Found {
		keys = append(keys, h.Key)
	}
	return keys, list
}

// TestFind: what was seen is found by a part of any value. What was refused in the last minute
// comes first, with its count and the rule.
func TestFind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWhole(t, nil)
		w.limiter.SetRules(doortest.Load(t, findRules))
		send := func(n int, attributes rule.Map) {
			for range n {
				w.decide(t, attributes)
			}
		}
		send(6, rule.Map{"user": "old-batch", "path": "/api/x", "ip": "192.0.2.9"})
		time.Sleep(2 * time.Minute)
		send(3, rule.Map{"user": "batch-17", "path": "/api/x", "ip": "192.0.2.17"})
		send(5, rule.Map{"user": "Batch-9", "path": "/api/x", "ip": "2001:db8:1:2::7"})
		send(3, rule.Map{"account": "a-1", "plan": "gold", "tenant": "ACME", "ip": "192.0.2.30", "path": "/p"})
		for query, want := range map[string]string{
			"batch":             "user=Batch-9 user=batch-17 user=old-batch",
			"user=BATCH-1":      "user=batch-17",
			"batch-17":          "user=batch-17",
			"ATCH":              "user=Batch-9 user=batch-17 user=old-batch",
			"ip=192.0.2.1":      "ip=192.0.2.17, path=/api/x ip=192.0.2.17",
			"2001:DB8:1:2:0::7": "ip=2001:db8:1:2::/64, path=/api/x ip=2001:db8:1:2::7",
			"acme":              "tenant=ACME",
			"a-1":               "account=a-1",
			"nobody":            "",
			"account=batch":     "",
			"api/x":             "ip=2001:db8:1:2::/64, path=/api/x ip=192.0.2.17, path=/api/x ip=192.0.2.9, path=/api/x",
			"path=/p":           "ip=192.0.2.30, path=/p path=/p",
		} {
			keys, list := w.found(t, "operator", "text="+url.QueryEscape(query))
			if got := strings.Join(keys, " "); got != want || list.LeftOut != 0 {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
		_, list := w.found(t, "operator", "text=batch-17&domain=shop")
		h := list.Found[0]
		if h.Domain != "shop" || h.Refused != 2 || !h.Counter || h.AtLeast || len(h.By) != 1 ||
			h.By[0] != (insight.Count{Value: "api", Count: 2}) || h.RefusedAt == nil || !h.RefusedAt.Equal(time.Now()) {
			t.Errorf("%+v", h)
		}
		if _, list = w.found(t, "operator", "text=tenant%3Dac"); list.Found[0].Counter || list.Found[0].Refused != 2 {
			t.Errorf("%+v", list.Found)
		}
		if _, list = w.found(t, "operator", "text=old-"); list.Found[0].Refused != 0 || list.Found[0].RefusedAt == nil {
			t.Errorf("%+v", list.Found)
		}
		if _, list = w.found(t, "operator", "text=batch&n=1"); len(list.Found) != 1 || list.LeftOut != 2 {
			t.Errorf("%+v", list)
		}
		if keys, list := w.found(t, "operator", ""); len(keys) != 14 || list.Found[0].Refused != 4 ||
			list.Found[13].Refused != 0 {
			t.Errorf("of anything: %q", keys)
		}
		// A decision, by the beginning of its id.
		id := w.decide(t, rule.Map{"user": "batch-17", "path": "/api/x", "ip": "192.0.2.17"}).ID.String()
		if _, list = w.found(t, "operator", "text="+id[:5]); len(list.Decisions) != 1 ||
			list.Decisions[0].ID.String() != id || list.Decisions[0].Outcome != "denied" {
			t.Errorf("%s: %+v", id, list.Decisions)
		}
		for query, want := range map[string]int{"text=" + strings.Repeat("a", 129): 400,
			"text=a&n=0": 400, "text=a&n=201": 400, "text=a&domain=none": 404, "text=a&key=b": 400} {
			if a := w.as("operator", "GET", findPath+"?"+query, ""); a.Status != want {
				t.Errorf("%s: %d %s, want %d", query, a.Status, a.Body, want)
			}
		}
	})
}

// TestFindGuessing: a role that sees keys masked finds what it names, and nothing else: no part of
// a value tells whether there is one that begins so, and no part of an id finds a decision.
func TestFindGuessing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWhole(t, nil)
		w.limiter.SetRules(doortest.Load(t, findRules))
		var id string
		for range 3 {
			id = w.decide(t, rule.Map{"user": "ada.lovelace", "path": "/api/of-ada", "ip": "198.51.100.7"}).ID.String()
		}
		empty := w.as("support", "GET", findPath+"?text=nobody", "").Body
		names := []string{"ada.lovelace", "user=ada.lovelace", "198.51.100.7", "ip=198.51.100.7", "/api/of-ada",
			"path=/api/of-ada", "ip=198.51.100.7, path=/api/of-ada"}
		for _, name := range names {
			for n := 1; n < len(name); n++ {
				for _, part := range []string{name[:n], name[n:]} {
					if strings.TrimSpace(part) == "" || part == "ip=198.51.100.7" || part == "ip=198.51.100.7, " ||
						part == "ada.lovelace" || part == "198.51.100.7" || part == "ip=198.51.100.7," {
						continue
					}
					if a := w.as("support", "GET", findPath+"?text="+url.QueryEscape(part), ""); a.Status != 200 || a.Body != empty {
						t.Errorf("%q finds %d %s", part, a.Status, a.Body)
					}
				}
			}
		}
		for n := range id {
			if a := w.as("support", "GET", findPath+"?text=0"+id[:n], ""); a.Body != empty {
				t.Errorf("%q finds %s", id[:n], a.Body)
			}
		}
		for query, want := range map[string]string{
			"ada.lovelace": "user=ada.lovelace", "user=ADA.Lovelace": "user=ada.lovelace",
			"198.51.100.7": "ip=198.51.100.7, path=/api/of-ada", "path=/api/of-ada": "", "/api/of-ada": "",
			"user=": "", "=": "", "": "", "user=ada.lovelace, ip=198.51.100.7": "",
		} {
			keys, list := w.found(t, "support", "text="+url.QueryEscape(query))
			if got := strings.Join(keys, " "); !strings.HasPrefix(got, want) || want == "" && got != "" || list.LeftOut != 0 ||
				len(list.Decisions) != 0 {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
	})
}
