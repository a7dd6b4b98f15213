package rule_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// enforcedOn returns the users among n on whom a rule that is enforced on so many percent of its
// keys bites.
func enforcedOn(t *testing.T, name, domain string, percent, n int) []int {
	t.Helper()
	yaml := fmt.Sprintf("domain: %s\nlimits: [{name: %s, per: [user], allow: 1/min, enforce: %d%%}]\n", domain, name,
		percent)
	set, _, err := file.Load([]file.Source{{Name: "a.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var on []int
	var m rule.Matches
	for i := range n {
		set.Match(&rule.Query{Domain: domain, Attributes: rule.Map{"user": fmt.Sprintf("user-%d", i)}}, &m)
		if len(m.Hits) != 1 {
			t.Fatalf("user %d meets %d limits", i, len(m.Hits))
		}
		if m.Hits[0].Mode == rule.Enforce {
			on = append(on, i)
		}
	}
	return on
}

// Which keys a rule is enforced on is the same in every process and version: these are not to
// change.
func TestEnforcedKeysAreTheSameEverywhere(t *testing.T) {
	got := fmt.Sprint(enforcedOn(t, "candidate", "shop", 10, 100))
	const want = "[3 9 25 30 33 49 64 87 90 95]"
	if got != want {
		t.Errorf("enforced on the users %s, want %s", got, want)
	}
}

// Whoever a rule bites at a share, it bites at every larger one.
func TestEnforcedKeysGrow(t *testing.T) {
	before := []int{}
	for _, percent := range []int{1, 2, 5, 10, 20, 50, 80, 99, 100} {
		on := enforcedOn(t, "candidate", "shop", percent, 2000)
		for _, user := range before {
			if _, ok := slices.BinarySearch(on, user); !ok {
				t.Fatalf("user %d is free at %d %%, and was not at a smaller share", user, percent)
			}
		}
		if len(on) < len(before) || percent == 100 && len(on) != 2000 {
			t.Errorf("%d users at %d %%, %d before", len(on), percent, len(before))
		}
		before = on
	}
}

// The share of keys equals the rule's, within five standard deviations; and two rules choose
// independently of each other.
func TestEnforcedShare(t *testing.T) {
	const n = 20_000
	for _, percent := range []int{1, 10, 33, 50, 90} {
		p := float64(percent) / 100
		got := len(enforcedOn(t, "candidate", "shop", percent, n))
		if bound := 5 * math.Sqrt(n*p*(1-p)); math.Abs(float64(got)-n*p) > bound {
			t.Errorf("enforced on %d of %d keys, want %.0f ± %.0f", got, n, n*p, bound)
		}
	}
	a := enforcedOn(t, "one", "shop", 50, n)
	for _, other := range [][2]string{{"two", "shop"}, {"one", "barn"}} {
		both := 0
		for _, user := range enforcedOn(t, other[0], other[1], 50, n) {
			if _, ok := slices.BinarySearch(a, user); ok {
				both++
			}
		}
		if bound := 5 * math.Sqrt(n*0.25*0.75); math.Abs(float64(both)-n*0.25) > bound {
			t.Errorf("%s of %s chooses %d keys that one of shop chose, want %.0f ± %.0f", other[0], other[1], both,
				n*0.25, bound)
		}
	}
}

// AppendKeyText says what KeyParts says.
func TestAppendKeyText(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "a.yaml", Data: []byte(`
domain: shop
limits:
  - { name: all, allow: 1/min }
  - { name: one, per: [user|ip, ip, header.x-api-key], allow: 1/min }
descriptors:
  - key: kind
    value: fixed
    descriptors:
      - key: tenant
        rate_limit: { unit: minute, requests_per_unit: 1 }
`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("long", 100)
	var m rule.Matches
	seen := 0
	for _, q := range []rule.Query{
		{Attributes: rule.Map{"user": "ada, ü", "ip": "192.0.2.1", "header.x-api-key": "k"}},
		{Attributes: rule.Map{"ip": "2001:db8::1", "header.x-api-key": long}},
		{Descriptors: []rule.Descriptor{{Entries: []rule.Entry{{Key: "kind", Value: "fixed"}, {Key: "tenant", Value: "acme"}}}}},
		{Descriptors: []rule.Descriptor{{Entries: []rule.Entry{{Key: "a", Value: "b"}, {Key: "c", Value: long}}, Override: &rule.DescriptorLimit{Requests: 1, Unit: "HOUR"}}}},
	} {
		q.Domain = "shop"
		set.Match(&q, &m)
		for _, h := range m.Hits {
			seen++
			want := strings.Join(h.Window.KeyParts(h.Key), ", ")
			if got := string(h.Window.AppendKeyText([]byte("> "), h.Key, nil)); got != "> "+want {
				t.Errorf("%s: %s, want %s", h.Window.Name, got, want)
			}
			for cut := range h.Key { // and what is no key gives nothing
				if got := h.Window.AppendKeyText(nil, h.Key[:cut], nil); len(got) != 0 &&
					strings.Join(h.Window.KeyParts(h.Key[:cut]), ", ") != string(got) {
					t.Errorf("%s: %d bytes of the key give %s", h.Window.Name, cut, got)
				}
			}
			edited := string(h.Window.AppendKeyText(nil, h.Key,
				func(dst []byte, name string, at int) []byte { return append(dst[:at], '<', name[0], '>') }))
			if h.Window.Name == "one" && edited != "user=<u>, ip=<i>, header.x-api-key=<h>" &&
				edited != "ip=<i>, ip=<i>, header.x-api-key=<h>" {
				t.Errorf("edited: %s", edited)
			}
			if strings.Contains(edited, "long") || strings.Contains(edited, "acme") {
				t.Errorf("%s shows a value that was edited: %s", h.Window.Name, edited)
			}
		}
	}
	if seen < 6 {
		t.Errorf("only %d keys seen", seen)
	}
}

func TestSecretAttribute(t *testing.T) {
	for _, name := range []string{"header.authorization", "header.Proxy-Authorization", "header.cookie", "cookie.sid",
		"header.x-api-key", "API_KEY", "query.access_token", "password", "header.x-auth-request"} {
		if !httpfield.SecretAttribute(name) {
			t.Errorf("%s is taken for public", name)
		}
	}
	for _, name := range []string{"key", "user", "ip", "path", "host", "method", "author", "header.x-plan",
		"query.page", "tenant"} {
		if httpfield.SecretAttribute(name) {
			t.Errorf("%s is taken for secret", name)
		}
	}
	for name, want := range map[string]bool{"Tenant": true, "tenant": true, "ten": false, "header.cookie": true} {
		if got := httpfield.HiddenAttribute([]string{"x", "tenant"}, name); got != want {
			t.Errorf("%s: hidden %v", name, got)
		}
	}
}
