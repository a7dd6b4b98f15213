package metrics

import (
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// TestRateLimit: hits are counted by the names and in the way of envoyproxy/ratelimit, over changes
// of the rules.
func TestRateLimit(t *testing.T) {
	s, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := New(Options{})
	c := NewRateLimit(m, func() (uint64, uint64) { return 3, 1 })
	l, err := weir.New(s, weir.WithHooks(weir.JoinHooks(m.Hooks(), c.Hooks())), weir.WithRules(rateLimitRules(t, "")))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(n int64, own bool, entries ...rule.Entry) {
		t.Helper()
		start := c.Begin()
		r := weir.Request{Domain: "default/eg/http", Hits: n, Door: "rls", Descriptors: []rule.Descriptor{{Entries: entries}}}
		if own {
			r.Hits, r.Descriptors[0].Hits, r.Descriptors[0].HasHits = 1, n, true
		}
		var d weir.Decision
		if err := l.Decide(t.Context(), &r, &d); err != nil {
			t.Fatal(err)
		}
		c.End(start, &r, &d)
	}
	route := rule.Entry{Key: "httproute/default/one:a|b", Value: "www_example_com"}
	user := []rule.Entry{route, {Key: "masked_remote_address", Value: "0.0.0.0/0"}, {Key: "remote_address", Value: "192.0.2.1"}}
	for range 12 {
		ask(1, false, user...) // of 10, of which the 9th and the 10th are near
	}
	ask(5, true, route, rule.Entry{Key: "shadow", Value: "x"})
	ask(5, false, route, rule.Entry{Key: "shadow", Value: "x"}) // of 8
	ask(0, true, route, rule.Entry{Key: "shadow", Value: "x"})
	ask(7, false, route, rule.Entry{Key: "large", Value: "x"}) // of 10, of which none is near
	ask(2, false, route, rule.Entry{Key: "large", Value: "x"}) // one of which is
	ask(1, false, rule.Entry{Key: "alone", Value: "x"})
	ask(1, false, rule.Entry{Key: "unlimited", Value: "x"})
	c.Hooks().StoreError(errors.New("away"))
	c.End(c.Begin(), nil, nil)
	c.End(c.Begin(), nil, nil)

	const first = `{domain="default/eg/http",key1="httproute/default/one_a_b_www_example_com",key2=`
	want := []string{
		`ratelimit_service_config_load_error 1`,
		`ratelimit_service_config_load_success 3`,
		`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 21`,
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"} 1`,
		`ratelimit_service_should_rate_limit_error{err_type="service_error"} 1`,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 21`,
	}
	for name, values := range map[string][4]string{ // alone, large, masked_remote_address, shadow
		"total_hits": {"1", "9", "12", "10"}, "within_limit": {"1", "9", "10", "5"}, "near_limit": {"1", "1", "2", "0"},
		"over_limit": {"0", "0", "2", "5"}, "shadow_mode": {"0", "0", "0", "5"},
	} {
		name = "ratelimit_service_rate_limit_" + name
		want = append(want, name+`{domain="default/eg/http",key1="alone",key2=""} `+values[0],
			name+first+`"large"} `+values[1], name+first+`"masked_remote_address_0_0_0_0/0"} `+values[2],
			name+first+`"shadow"} `+values[3])
	}
	slices.Sort(want)
	if got := ratelimitLines(t, c, ""); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// The names are the same for whoever asks for OpenMetrics.
	if got := ratelimitLines(t, c, "application/openmetrics-text; version=1.0.0"); !slices.Equal(got, want) {
		t.Errorf("in OpenMetrics\n%s", strings.Join(got, "\n"))
	}
	// Limits that stay go on, those that are gone are left out.
	l.SetRules(rateLimitRules(t, "- { key: more, rate_limit: { unit: hour, requests_per_unit: 1 } }\n"))
	ask(1, false, rule.Entry{Key: "alone", Value: "x"})
	got := strings.Join(ratelimitLines(t, c, ""), "\n")
	if !strings.Contains(got, `over_limit{domain="default/eg/http",key1="alone",key2=""} 1`) ||
		!strings.Contains(got, `total_hits{domain="default/eg/http",key1="alone",key2=""} 2`) ||
		!strings.Contains(got, `total_hits{domain="default/eg/http",key1="more",key2=""} 0`) ||
		!strings.Contains(got, `total_hits`+first+`"masked_remote_address_0_0_0_0/0"} 12`) {
		t.Errorf("after a change of the rules:\n%s", got)
	}
}

func rateLimitRules(t *testing.T, more string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "a.yaml", Data: []byte(`domain: default/eg/http
descriptors:
- key: httproute/default/one:a|b
  value: www_example_com
  descriptors:
  - key: masked_remote_address
    value: 0.0.0.0/0
    descriptors: [{ key: remote_address, rate_limit: { unit: year, requests_per_unit: 10 } }]
  - { key: shadow, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 8 } }
  - { key: large, rate_limit: { unit: year, requests_per_unit: 10 } }
- { key: alone, rate_limit: { unit: year, requests_per_unit: 1 } }
- { key: unlimited, rate_limit: { unlimited: true } }
` + more)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// ratelimitLines are the series of envoyproxy/ratelimit, without its times.
func ratelimitLines(t *testing.T, c *RateLimit, accept string) (lines []string) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", accept)
	c.Handler().ServeHTTP(w, r)
	for line := range strings.Lines(w.Body.String()) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "ratelimit_") && !strings.Contains(line, "_bucket") &&
			!strings.Contains(line, "seconds_sum") && !strings.Contains(line, `key1="unlimited"`) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}
