package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

// TestAdminKeyForms: a key is named in the same ways wherever one is named, and a rule's name means
// all its windows.
func TestAdminKeyForms(t *testing.T) {
	var logged bytes.Buffer
	l, _, _ := doortest.NewLimiter(t,
		"domain: shop\nlimits: [{ name: api, per: [user, ip], allow: [10/min, 500/hour] }]\n")
	h := New(l, Options{Audit: auditTo(t, &logged)})
	attributes := rule.Map{"user": "ada", "ip": "192.0.2.9"}
	keysIn := func(a doortest.Answer) (limits []string) {
		t.Helper()
		var got KeyList
		if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 {
			t.Fatalf("%d %s: %v", a.Status, a.Body, err)
		}
		for _, k := range got.Keys {
			limits = append(limits, fmt.Sprint(k.Limit, " ", k.Key, " ", k.Used))
		}
		return limits
	}
	const both = "[api:60s user=ada,ip=192.0.2.9 3 api:3600s user=ada,ip=192.0.2.9 3]"
	for _, c := range []struct{ method, target, body string }{
		{"DELETE", "/api/v1/keys/shop/api/user=ada,ip=192.0.2.9", ""},
		{"DELETE", "/api/v1/keys/shop/api/ada,192.0.2.9", ""},
		{"DELETE", "/api/v1/keys?limit=api&key=user%3Dada,ip%3D192.0.2.9", ""},
		{"DELETE", "/api/v1/keys?domain=shop&limit=api&key=ada&key=192.0.2.9&reason=mistake", ""},
		{"DELETE", "/api/v1/keys", `{"limit": "api", "key": "ada,192.0.2.9"}`},
		{"DELETE", "/api/v1/keys", `{"domain": "shop", "limit": "api", "key": ["user=ada", "192.0.2.9"], "reason": "mistake"}`},
	} {
		spend(t, l, 3, attributes)
		if c.body == "" {
			if got := fmt.Sprint(keysIn(onAdmin(h, "GET", c.target, ""))); got != both {
				t.Errorf("GET %s: %s, want %s", c.target, got, both)
			}
		}
		for i, want := range []int{204, 404} {
			if a := onAdmin(h, c.method, c.target, c.body, "Content-Type", jsonText); a.Status != want {
				t.Errorf("%s %s %s, time %d: %d %s, want %d", c.method, c.target, c.body, i+1, a.Status, a.Body, want)
			}
		}
	}
	// One window by itself.
	spend(t, l, 3, attributes)
	if a := onAdmin(h, "DELETE", "/api/v1/keys/shop/api:60s/ada,192.0.2.9", "", "Content-Type", jsonText); a.Status != 204 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if got, want := fmt.Sprint(keysIn(onAdmin(h, "GET", "/api/v1/keys?limit=api&key=ada,192.0.2.9", ""))), strings.Replace(both, ".9 3", ".9 0", 1); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, c := range []struct {
		target, body, says string
		status             int
	}{
		{"/api/v1/keys/shop/api/ada", "", "keys of 2 parts, not 1", 400},
		{"/api/v1/keys", `{"limit": "api", "key": "usr=ada,192.0.2.9"}`, `\"usr=ada\", is not name=value with user`, 400},
		{"/api/v1/keys", `{"limit": "api", "key": "ada,192.0.2.9", "for": "1h"}`, "nothing else", 400},
		{"/api/v1/keys?limit=ap&key=ada,192.0.2.9", "", "no rule in force", 404},
		{"/api/v1/keys?key=ada", "", "limit", 400},
	} {
		if a := onAdmin(h, "DELETE", c.target, c.body, "Content-Type", jsonText); a.Status != c.status ||
			!strings.Contains(a.Body, c.says) {
			t.Errorf("DELETE %s %s: %d %s, want %d, %s", c.target, c.body, a.Status, a.Body, c.status, c.says)
		}
	}
	got := logged.String()
	if strings.Count(got, "audit: key reset") != 7 ||
		strings.Count(got, `domain=shop limit=api key="user=ada,ip=192.0.2.9"`) != 6 ||
		!strings.Contains(got, "reason=mistake") {
		t.Errorf("audit:\n%s", got)
	}
}

// TestAdminKeyEverywhere: a key without a limit is shown under each limit that counts such keys. A
// key without any count is no error.
func TestAdminKeyEverywhere(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, `domain: shop
limits:
  - { name: api, per: [user], allow: [10/min, 500/hour] }
  - { name: search, when: { path: /search }, per: [user], allow: 5/min }
  - { name: login, per: [ip], allow: 7/min }
  - { name: all, allow: 100/min }
`)
	h := New(l, Options{})
	spend(t, l, 2, rule.Map{"user": "ada", "ip": "192.0.2.9", "path": "/"})
	for _, c := range []struct{ query, want string }{
		{"key=user%3Dada", "[api:60s 2 api:3600s 2]"},
		{"key=user%3Dada&domain=shop", "[api:60s 2 api:3600s 2]"},
		{"key=ip%3D192.0.2.9", "[login 2]"},
		{"key=user%3Dbob", "[]"},
		{"key=plan%3Dfree", "[]"},
	} {
		a := onAdmin(h, "GET", "/api/v1/keys?"+c.query, "")
		var got KeyList
		if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 {
			t.Fatalf("%s: %d %s: %v", c.query, a.Status, a.Body, err)
		}
		limits := []string{}
		for _, k := range got.Keys {
			limits = append(limits, fmt.Sprint(k.Limit, " ", k.Used))
		}
		if fmt.Sprint(limits) != c.want {
			t.Errorf("%s: %v, want %s", c.query, limits, c.want)
		}
	}
	if a := onAdmin(h, "GET", "/api/v1/keys?key=user%3Dada&domain=ship", ""); a.Status != 404 {
		t.Errorf("an unknown domain: %d %s", a.Status, a.Body)
	}
}

// TestAdminKeyVerdict: what is shown of a key is what a request would be told: under a grant, an
// override and in shadow, and while it is banned by its own rule or by another one.
func TestAdminKeyVerdict(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, `
domain: shop
exempt: { ip: [10.0.0.0/8] }
limits:
  - { name: api, per: [user], allow: 3/hour, override: { acme: 5/hour } }
  - { name: quiet, when: { path: /quiet }, per: [user], allow: 1/hour, on_limit: shadow }
  - { name: address, when: { path: /a }, per: [ip], allow: 3/hour }
  - { name: login, when: { path: /login }, per: [ip], allow: 3/hour, ban: { after: 20, within: 10m, for: 15m, scope: domain } }
`)
	h := New(l, Options{})
	show := func(limit, key string) (k KeyInfo) {
		t.Helper()
		a := onAdmin(h, "GET", "/api/v1/keys?limit="+limit+"&key="+key, "")
		var got KeyList
		if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 || len(got.Keys) != 1 {
			t.Fatalf("%s of %s: %d %s: %v", key, limit, a.Status, a.Body, err)
		}
		return got.Keys[0]
	}
	spend(t, l, 3, rule.Map{"user": "ada"})
	spend(t, l, 3, rule.Map{"user": "acme"})
	if k := show("api", "ada"); !k.Refused || k.RetryAfter <= 0 || k.Capacity != 3 {
		t.Errorf("ada: %+v", k)
	}
	if k := show("api", "acme"); k.Refused || k.RetryAfter != 0 || k.Capacity != 5 || k.Used != 3 {
		t.Errorf("acme: %+v", k)
	}
	until := time.Now().Add(time.Hour)
	if _, err := l.Grants().Set(t.Context(), "shop", "api", []string{"ada"}, "9/hour", until, "import"); err != nil {
		t.Fatal(err)
	}
	// At once, before the key is charged under these numbers.
	if k := show("api", "ada"); k.Refused || k.Capacity != 9 || k.Remaining != 6 || k.Grant == nil ||
		k.Grant.Allow != "9/hour" || k.Grant.Left < 3500e6 {
		t.Errorf("ada with a grant: %+v, %+v", k, k.Grant)
	}
	if _, err := l.Grants().Set(t.Context(), "shop", "api", []string{"ada"}, "unlimited", until, ""); err != nil {
		t.Fatal(err)
	}
	if k := show("api", "ada"); k.Refused || !k.Unlimited || k.Capacity != 0 {
		t.Errorf("ada without a limit: %+v", k)
	}
	if a := onAdmin(h, "GET", "/api/v1/keys?limit=api", ""); strings.Contains(a.Body, "user=ada") ||
		!strings.Contains(a.Body, "user=acme") {
		t.Errorf("the hottest: %s", a.Body)
	}
	spend(t, l, 1, rule.Map{"user": "bob", "path": "/quiet"})
	if k := show("quiet", "bob"); k.Refused || !k.Shadow || k.Remaining != 0 {
		t.Errorf("in shadow: %+v", k)
	}

	ban := func(key string) error {
		_, err := l.Bans().Set(t.Context(), "shop", "login", []string{key}, until, "guesses")
		return err
	}
	if err := ban("192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"login", "address"} {
		// The ban shows under both limits, with or without a count.
		k := show(limit, "192.0.2.1")
		if !k.Refused || k.Ban == nil || k.Ban.Rule != "login" || k.Ban.Reason != "guesses" || k.RetryAfter < 3500e6 ||
			!k.Ban.Until.Equal(until.Truncate(time.Microsecond)) {
			t.Errorf("banned, under %s: %+v, %+v", limit, k, k.Ban)
		}
	}
	if a := onAdmin(h, "GET", "/api/v1/keys?limit=login", ""); !strings.Contains(a.Body, `"banned": 1`) ||
		!strings.Contains(a.Body, `"complete": true`) {
		t.Errorf("the hottest of a limit with a ban: %s", a.Body)
	}
	if a := onAdmin(h, "GET", "/api/v1/keys?limit=address&key=192.0.2.2", ""); a.Status != 404 ||
		!strings.Contains(a.Body, "nothing is counted for it, and it is not banned") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	for key, says := range map[string]string{
		"10.1.2.3": "exempt", "192.0.2.300": "ip=192.0.2.300 is not an address", "192.0.2.0/33": "is not an address", "a.example": "is not an address",
	} {
		if err := ban(key); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("a ban of %s: %v", key, err)
		}
		if _, err := l.Grants().Set(t.Context(), "shop", "login", []string{key}, "9/hour", until, ""); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("a grant for %s: %v", key, err)
		}
	}
}

// TestAdminKeySoft: of a key in a soft margin all that it used is shown, and whether the margin has
// room for more.
func TestAdminKeySoft(t *testing.T) {
	for _, algorithm := range []string{"sliding_window", "sliding_log", "fixed_window", "token_bucket"} {
		l, _, _ := doortest.NewLimiter(t, "domain: shop\nlimits: [{ name: api, per: [user], allow: 6/min, algorithm: "+
			algorithm+", throttle: { soft: 50% } }]\n")
		h := New(l, Options{})
		for sent, want := range map[int64]KeyInfo{
			5: {Used: 5, Remaining: 1}, 6: {Used: 6}, 8: {Used: 8}, 11: {Used: 9, Refused: true},
		} {
			user := fmt.Sprint("ada", sent)
			for range sent {
				var d weir.Decision
				if err := l.Decide(t.Context(), &weir.Request{Domain: "shop", Attributes: rule.Map{"user": user}}, &d); err != nil {
					t.Fatal(err)
				}
			}
			var got KeyList
			a := onAdmin(h, "GET", "/api/v1/keys?limit=api&key="+user, "")
			if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 || len(got.Keys) != 1 {
				t.Fatalf("%d %s: %v", a.Status, a.Body, err)
			}
			k := got.Keys[0]
			if k.Used != want.Used || k.Remaining != want.Remaining || k.Capacity != 6 || k.SoftLimit != 9 ||
				k.Refused != want.Refused {
				t.Errorf("%s after %d requests: %+v", algorithm, sent, k)
			}
		}
		// The list is in order of use, even above the limit.
		var got KeyList
		a := onAdmin(h, "GET", "/api/v1/keys?limit=api", "")
		if err := json.Unmarshal([]byte(a.Body), &got); err != nil || len(got.Keys) != 4 {
			t.Fatalf("%d %s: %v", a.Status, a.Body, err)
		}
		for i, used := range []int64{9, 8, 6, 5} {
			if got.Keys[i].Used != used {
				t.Errorf("%s: key %d of the hottest used %d, want %d", algorithm, i, got.Keys[i].Used, used)
			}
		}
	}
}

// TestRuleByWindow: bans and grants accept the name of a limit as lists show it, and the name of a
// window.
func TestRuleByWindow(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t,
		"domain: shop\nlimits: [{ name: api, per: [user], allow: [10/min, 500/hour] }, { name: login, per: [ip], allow: 5/min, ban: { after: 3, within: 1m, for: 1h } }]\n")
	h := New(l, Options{})
	post := func(status int, says, method, path, body string) {
		t.Helper()
		if a := onAdmin(h, method, path, body, "Content-Type", jsonText); a.Status != status ||
			!strings.Contains(a.Body, says) {
			t.Errorf("%s %s %s: %d %s, want %d, %s", method, path, body, a.Status, a.Body, status, says)
		}
	}
	for _, name := range []string{"api", "api:60s", "api:3600s", "shop/api:60s"} {
		post(200, `"limit": "api"`, "POST", grantsPath,
			`{"limit": "`+name+`", "key": "ada", "allow": "20/min, 900/hour", "for": "1h"}`)
		post(200, `"limit": "api"`, "DELETE", grantsPath, `{"limit": "`+name+`", "key": "ada"}`)
	}
	post(400, "nothing is given for requests per hour", "POST", grantsPath,
		`{"limit": "api:60s", "key": "ada", "allow": "20/min", "for": "1h"}`)
	post(404, "has no limit", "POST", grantsPath, `{"limit": "api:61s", "key": "ada", "allow": "20/min", "for": "1h"}`)
	post(200, `"limit": "login"`, "POST", bansPath, `{"limit": "shop/login", "key": "192.0.2.1", "for": "1h"}`)
	post(200, `"limit": "login"`, "DELETE", bansPath, `{"limit": "login", "key": "192.0.2.1"}`)
}

// failing is a store that cannot reset keys of one counter.
type failing struct {
	*memory.Store
	counter uint64
}

func (s *failing) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	if c.ID == s.counter {
		return false, errors.New("away")
	}
	return s.Store.Reset(ctx, c, key)
}

// TestAdminResetOfSomeWindows: what was forgotten before an error is in the audit log, with the
// error.
func TestAdminResetOfSomeWindows(t *testing.T) {
	set := doortest.Load(t, "domain: shop\nlimits: [{ name: api, per: [user], allow: [10/min, 500/hour] }]\n")
	for _, w := range set.Rules()[0].Windows {
		memoryStore, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer memoryStore.Close()
		l, err := weir.New(&failing{memoryStore, w.Counter.ID}, weir.WithRules(set))
		if err != nil {
			t.Fatal(err)
		}
		var logged bytes.Buffer
		log := auditTo(t, &logged)
		h := New(l, Options{Audit: log})
		reset := func() doortest.Answer {
			return onAdmin(h, "DELETE", "/api/v1/keys?limit=api&key=ada", "", "Content-Type", jsonText)
		}
		if a := reset(); a.Status != 404 || logged.Len() > 0 {
			t.Errorf("%s fails, and nothing is counted: %d %s, audit %s", w.Name, a.Status, a.Body, logged.String())
		}
		spend(t, l, 1, rule.Map{"user": "ada"})
		a := reset()
		_ = log.Close() // it has written all that it was told
		if want := w.Name + ": away"; a.Status != 503 || !strings.Contains(a.Body, want) ||
			!strings.Contains(logged.String(), "audit: key reset: failed") || !strings.Contains(logged.String(), want) {
			t.Errorf("%s fails: %d %s, audit %s", w.Name, a.Status, a.Body, logged.String())
		}
	}
}

// TestAdminListingUnderWay: who has to wait for another listing is told so, and when to come again.
func TestAdminListingUnderWay(t *testing.T) {
	w := httptest.NewRecorder()
	keyProblem(w, fmt.Errorf("%w: %w", weir.ErrListing, context.DeadlineExceeded))
	if w.Code != 503 || w.Header().Get("Retry-After") != "5" ||
		!strings.Contains(w.Body.String(), `"another listing of keys is under way; try again"`) {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}
