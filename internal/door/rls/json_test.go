package rls

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule/file"
)

func postJSON(t *testing.T, h http.Handler, method, body string) (code int, header http.Header, answer string) {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	request, err := http.NewRequest(method, server.URL+"/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

func TestRLSJSON(t *testing.T) {
	const k = `"descriptors": [{"entries": [{"key": "k", "value": "a"}]}]`
	untrusted := func(*http.Request) bool { return false }
	for _, c := range []struct {
		name, method, body string
		trusted            func(*http.Request) bool
		code               int
		want               string // JSON, or text
	}{
		{name: "passes", body: `{"domain": "d", ` + k + `}`, code: 200, want: `{"overallCode": "OK", "statuses": [{"code": "OK",
			"currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"}, "limitRemaining": 1, "durationUntilReset": "60s"}]}`},
		{name: "GET with a body", method: "GET", body: `{"domain": "d", ` + k + `}`, code: 200, want: `{"overallCode": "OK", "statuses": [{"code": "OK",
			"currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"}, "limitRemaining": 1, "durationUntilReset": "60s"}]}`},
		{name: "refuses, zero is left out", body: `{"domain": "d", "hitsAddend": 3, ` + k + `}`, code: 429, want: `{"overallCode": "OVER_LIMIT",
			"statuses": [{"code": "OVER_LIMIT", "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"}, "durationUntilReset": "60s"}]}`},
		{name: "snake case, a number as a string", body: `{"domain": "d", "hits_addend": 1, "descriptors": [{"entries": [{"key": "k", "value": "a"}], "hits_addend": "2"}]}`,
			code: 200, want: `{"overallCode": "OK", "statuses": [{"code": "OK", "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"}, "durationUntilReset": "60s"}]}`},
		{name: "no rule", body: `{"domain": "d", "descriptors": [{"entries": [{"key": "x"}]}]}`, code: 200, want: `{"overallCode": "OK", "statuses": [{"code": "OK"}]}`},
		{name: "unlimited", body: `{"domain": "d", "descriptors": [{"entries": [{"key": "u"}]}]}`, code: 200,
			want: `{"overallCode": "OK", "statuses": [{"code": "OK", "limitRemaining": 4294967295}]}`},
		{name: "an unknown field", body: `{"domain": "d", "nonsense": 1, ` + k + `}`, code: 400, want: "Bad Request\n"},
		{name: "no JSON", body: `{"domain": `, code: 400, want: "Bad Request\n"},
		{name: "nothing", method: "GET", body: "", code: 400, want: "Bad Request\n"},
		{name: "no domain", body: `{` + k + `}`, code: 400, want: "Bad Request\n"},
		{name: "no descriptors", body: `{"domain": "d"}`, code: 400, want: "Bad Request\n"},
		{name: "a negative number of hits", body: `{"domain": "d", "hitsAddend": -1, ` + k + `}`, code: 400, want: "Bad Request\n"},
		{name: "not a number", body: `{"domain": "d", "hitsAddend": NaN, ` + k + `}`, code: 400, want: "Bad Request\n"},
		{name: "a unit of zero", body: `{"domain": "d", "descriptors": [{"entries": [{"key": "k"}], "limit": {"requestsPerUnit": 1}}]}`, code: 400, want: "Bad Request\n"},
		{name: "deep nesting", body: strings.Repeat(`{"domain":`, 100_000), code: 400, want: "Bad Request\n"},
		{name: "too large", body: strings.Repeat(" ", maxJSONBody) + `{}`, code: 413, want: "Request Entity Too Large\n"},
		{name: "many hits of a stranger", body: `{"domain": "d", "hitsAddend": 1001, ` + k + `}`, trusted: untrusted, code: 403, want: "Forbidden\n"},
		{name: "many own hits of a stranger", trusted: untrusted, code: 403, want: "Forbidden\n",
			body: `{"domain": "d", "descriptors": [{"entries": [{"key": "k"}], "hitsAddend": 1001}]}`},
		{name: "a stranger's refund", trusted: untrusted, code: 403, want: "Forbidden\n",
			body: `{"domain": "d", "descriptors": [{"entries": [{"key": "k"}], "isNegativeHits": true}]}`},
		{name: "a thousand hits of a stranger", body: `{"domain": "d", "hitsAddend": 1000, "descriptors": [{"entries": [{"key": "u"}]}]}`, trusted: untrusted,
			code: 200, want: `{"overallCode": "OK", "statuses": [{"code": "OK", "limitRemaining": 4294967295}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, twoAMinute+"- {key: u, rate_limit: {unlimited: true}}\n", Options{}, ServerOptions{})
			if c.method == "" {
				c.method = "POST"
			}
			code, header, got := postJSON(t, NewJSON(b.rls, c.trusted), c.method, c.body)
			if code != c.code {
				t.Fatalf("%d %s, want %d", code, got, c.code)
			}
			if !strings.HasPrefix(c.want, "{") {
				if got != c.want || header.Get("Content-Type") != "text/plain; charset=utf-8" ||
					header.Get("X-Content-Type-Options") != "nosniff" {
					t.Errorf("%q with %v", got, header)
				}
				return
			}
			if header.Get("Content-Type") != "application/json" {
				t.Errorf("headers %v", header)
			}
			var have, want any
			if err := errors.Join(json.Unmarshal([]byte(got), &have), json.Unmarshal([]byte(c.want), &want)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(have, want) {
				t.Errorf("got  %v\nwant %v", have, want)
			}
		})
	}
}

// TestRLSJSONWithoutStore: what envoyproxy/ratelimit answers with 400 is no fault of the client.
func TestRLSJSONWithoutStore(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "r.yaml", Data: []byte(twoAMinute)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(doortest.FailingStore{Err: errors.New("gone away")}, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	body := `{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "a"}]}]}`
	if code, _, got := postJSON(t, NewJSON(New(l, Options{}), nil), "POST", body); code != 503 ||
		got != "Service Unavailable\n" {
		t.Errorf("%d %q", code, got)
	}
}
