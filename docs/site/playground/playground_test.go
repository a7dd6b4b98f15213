package playground

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

const limited = `domain: shop
limits:
  - name: logins
    per: [ip]
    allow: 2/min
    algorithm: fixed_window
  - name: watched
    per: [ip]
    allow: 1/min
    on_limit: shadow
`

// Requests are decided in virtual time by the server's rules, with its headers.
func TestRun(t *testing.T) {
	got := Run(limited, "# a comment\n0s x3 every 1s ip=192.0.2.1\n1m ip=192.0.2.1\n30s ip=192.0.2.2\n")
	if len(got.Faults) > 0 || len(got.Decisions) != 5 {
		t.Fatalf("%d decisions, faults %q", len(got.Decisions), got.Faults)
	}
	var allowed []bool
	for _, d := range got.Decisions {
		allowed = append(allowed, d.Allowed)
	}
	if want := []bool{true, true, false, true, true}; !reflect.DeepEqual(allowed, want) {
		t.Errorf("allowed: %v, want %v", allowed, want)
	}
	refused := got.Decisions[2]
	if refused.AtMs != 2000 || refused.Line != 2 || refused.RetryAfter != "58s" || !refused.Limits[0].Refuses ||
		refused.Limits[0].Remaining != 0 || !refused.Limits[1].Shadow || refused.Limits[1].Refuses {
		t.Errorf("the third decision is %+v", refused)
	}
	headers := strings.Join(refused.Headers, "\n")
	for _, want := range []string{"Retry-After: 58", "X-Ratelimit-Limit: 2", "X-Ratelimit-Remaining: 0"} {
		if !strings.Contains(headers, want) {
			t.Errorf("no %q among the headers\n%s", want, headers)
		}
	}
}

// The same texts give the same result, to the last byte.
func TestRunAgain(t *testing.T) {
	requests := "0s x20 every 3s ip=192.0.2.1\n5s x5 ip=192.0.2.2\n"
	first, err := json.Marshal(Run(limited, requests))
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if again, _ := json.Marshal(Run(limited, requests)); string(again) != string(first) {
			t.Fatalf("another result:\n%s\n%s", first, again)
		}
	}
}

// Faults of rules have their line and a caret, and faults of requests their line; none is decided.
func TestFaults(t *testing.T) {
	for _, c := range []struct{ rules, requests, want string }{
		{"domain: shop\nlimits:\n  - name: a\n    alow: 1/s\n", "0s", "rules.yaml:4:5: unknown key \"alow\""},
		{"domain: shop\nlimits:\n  - name: a\n    alow: 1/s\n", "0s", "alow: 1/s\n        ^"},
		{"", "0s", "rules.yaml"},
		{limited, "soon user=ada", "requests:1: a line begins with a time"},
		{limited, "0s\n0s x0", "requests:2: x0 is no number of requests"},
		{limited, "0s every", "every needs a duration"},
		{limited, "0s every soon", "every: "},
		{limited, "0s ada", `"ada" is no attribute`},
		{limited, "0s hits=0", "hits is a number"},
		{limited, `0s user="ada`, "a double quote is not closed"},
		{limited, "0s a\x00=1", "no name of an attribute"},
		{limited, "-1s", "is not between"},
		{limited, "0s x1500\n0s x1500", "at most 2000 requests"},
		{limited, "9000h x2000 every 9000h", "more than 400 days"},
	} {
		got := Run(c.rules, c.requests)
		if all := strings.Join(got.Faults, "\n"); !strings.Contains(all, c.want) || len(got.Decisions) > 0 {
			t.Errorf("%q and %q: %d decisions and\n%s\nwithout %q", c.rules, c.requests, len(got.Decisions), all, c.want)
		}
	}
}

// A text in quotes is one value, and domain and hits are of the request.
func TestRequests(t *testing.T) {
	list, faults := parse("5s user=\"ada lovelace\" hits=3 domain=shop\n1s\n")
	if len(faults) > 0 || len(list) != 2 || list[0].line != 2 {
		t.Fatalf("%+v, %q", list, faults)
	}
	r := list[1]
	if user, _ := r.attributes.Attribute("user"); user != "ada lovelace" || r.hits != 3 || r.domain != "shop" {
		t.Errorf("%+v", r)
	}
}

// Whatever is pasted ends in a result.
func FuzzRun(f *testing.F) {
	f.Add(limited, "0s x3 every 1s ip=192.0.2.1")
	f.Add("limits: [", "0s \"")
	f.Fuzz(func(t *testing.T, rules, requests string) {
		got := Run(rules, requests)
		if len(got.Faults) > 0 && len(got.Decisions) > 0 || len(got.Decisions) > mostRequests {
			t.Errorf("%d faults and %d decisions", len(got.Faults), len(got.Decisions))
		}
	})
}
