package limitfields

import (
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestHints(t *testing.T) {
	const date = "Sat, 01 Jan 2000 00:01:00 GMT" // 946684860
	now := time.Unix(946684860+7, 0)             // our clock is 7 s ahead
	second := time.Second
	for _, c := range []struct {
		name string
		h    http.Header
		want []Hint
	}{
		{"nothing", header("Content-Type", "text/plain"), nil},
		{"draft 11", header("RateLimit", `"a";r=5;t=10, "b";r=0;t=3600;pk=:AA==:`, "RateLimit-Policy", `"b";q=100;w=86400, "a";q=10;w=60;qu="requests"`),
			[]Hint{{"a", 5, 10 * second, 10, 60 * second, 0}, {"b", 0, time.Hour, 100, time.Hour, 0}}},
		{"without policies", header("RateLimit", `"a";r=5;t=10`), []Hint{{"a", 5, 10 * second, 0, 0, 0}}},
		{"on two lines, what is malformed passed over", header("RateLimit", `"a";r=5;t=10`, "RateLimit", `"b";r=-1;t=1, ("c";r=1), d;r=1;t=1, "e";r=1, "f";r=0.5;t=1, "g";r=0;t=1`),
			[]Hint{{"a", 5, 10 * second, 0, 0, 0}, {"g", 0, second, 0, 0, 0}}},
		{"next", header("RateLimit", `"a";a=5;w=10;c=1`), []Hint{{"a", 5, 10 * second, 0, 0, 0}}},
		{"draft 7", header("RateLimit", `limit=100, remaining=50, reset=5`, "RateLimit-Policy", "100;w=10"), []Hint{{"", 50, 5 * second, 100, 0, 0}}},
		{"draft 3", header("RateLimit-Limit", "10", "RateLimit-Remaining", "3", "RateLimit-Reset", "7", "RateLimit-Policy", "50;w=60, 10;w=1"), []Hint{{"", 3, 7 * second, 10, second, 0}}},
		{"draft 0", header("RateLimit-Limit", "10, 10;w=1, 50;w=60", "RateLimit-Remaining", "3", "RateLimit-Reset", "7"), []Hint{{"", 3, 7 * second, 10, 0, 0}}},
		{"in seconds", header("X-RateLimit-Limit", `10, 10;w=60;name="a"`, "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "42"), []Hint{{"", 0, 42 * second, 10, 0, 0}}},
		{"a fraction", header("X-RateLimit-Remaining", "0.5", "X-RateLimit-Reset", "42.5"), []Hint{{"", 0, 42500 * time.Millisecond, 0, 0, 0}}},
		{"a Unix time, by the server's clock", header("X-RateLimit-Limit", "60", "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "946684890", "Date", date), []Hint{{"", 1, 30 * second, 60, 0, 0}}},
		{"a Unix time, by ours", header("X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "946684890"), []Hint{{"", 1, 23 * second, 0, 0, 0}}},
		{"in milliseconds", header("X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "946684890500", "Date", date), []Hint{{"", 1, 30500 * time.Millisecond, 0, 0, 0}}},
		{"that has passed", header("X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "946684800", "Date", date), []Hint{{"", 1, 0, 0, 0, 0}}},
		{"from a cache", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "42", "Age", "3"), nil},
		{"no reset", header("X-RateLimit-Remaining", "0"), nil},
		{"no time", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "soon"), nil},
		{"a duration", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "6m0s"), []Hint{{"", 0, 6 * time.Minute, 0, 0, 0}}},
		{"an instant", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "2000-01-01T01:01:30.5+01:00", "Date", date),
			[]Hint{{"", 0, 30500 * time.Millisecond, 0, 0, 0}}},
		{"a date", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "Sat, 01 Jan 2000 00:01:30 GMT", "Date", date),
			[]Hint{{"", 0, 30 * second, 0, 0, 0}}},
		{"another spelling", header("X-Rate-Limit-Limit", "15", "X-Rate-Limit-Remaining", "0", "X-Rate-Limit-Reset", "946684890", "Date", date),
			[]Hint{{"", 0, 30 * second, 15, 0, 0}}},
		{"a Unix time in draft 3", header("RateLimit-Remaining", "0", "RateLimit-Reset", "946684890", "Date", date), []Hint{{"", 0, 30 * second, 0, 0, 0}}},
		// One a second comes back of 60 requests, of which 2 are out.
		{"of a kind", header("X-RateLimit-Limit-Requests", "60", "X-RateLimit-Remaining-Requests", "58", "X-RateLimit-Reset-Requests", "2s"),
			[]Hint{{"requests", 58, second, 60, time.Minute, 2 * second}}},
		{"none of a kind", header("X-RateLimit-Limit-Requests", "60", "X-RateLimit-Remaining-Requests", "0", "X-RateLimit-Reset-Requests", "1m0s"),
			[]Hint{{"requests", 0, second, 60, time.Minute, time.Minute}}},
		{"tokens, which say nothing of a pace", header("X-RateLimit-Limit-Tokens", "60000", "X-RateLimit-Remaining-Tokens", "0", "X-RateLimit-Reset-Tokens", "1m0s"),
			[]Hint{{"tokens", 0, time.Millisecond, 0, 0, time.Minute}}},
		{"seconds of a kind last until a window ends", header("X-RateLimit-Limit-Requests-Day", "100", "X-RateLimit-Remaining-Requests-Day", "0", "X-RateLimit-Reset-Requests-Day", "1.5"),
			[]Hint{{"requests-day", 0, 1500 * time.Millisecond, 100, 0, 0}}},
		{"of a kind, an instant", header("Anthropic-RateLimit-Requests-Limit", "5", "Anthropic-RateLimit-Requests-Remaining", "0", "Anthropic-RateLimit-Requests-Reset", "2000-01-01T00:01:05Z", "Date", date),
			[]Hint{{"requests", 0, second, 5, 5 * second, 5 * second}}},
		{"not known", header("X-RateLimit-Limit-Tokens", "-1", "X-RateLimit-Remaining-Tokens", "-1", "X-RateLimit-Reset-Tokens", "0"), nil},
		{"without a reset", header("X-RateLimit-Remaining-Tokens", "0"), nil},
		{"the newest form counts", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "5", "RateLimit", `"a";r=5;t=10`), []Hint{{"a", 5, 10 * second, 0, 0, 0}}},
		{"too long to believe", header("RateLimit", `"`+strings.Repeat("a", 5000)+`";r=5;t=10`), nil},
	} {
		if got := AppendHints(nil, c.h, now); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	many := header("RateLimit",
		`"a";r=9;t=1, "b";r=8;t=1, "c";r=7;t=1, "d";r=6;t=1, "e";r=5;t=1, "f";r=4;t=1, "g";r=3;t=1, "h";r=2;t=1, "i";r=1;t=1, "j";r=99;t=1`)
	got := AppendHints(nil, many, now)
	left := int64(0)
	for _, h := range got {
		left += h.Left
	}
	if len(got) != MaxHints || left != 8+7+6+5+4+3+2+1 {
		t.Errorf("of many: %v", got)
	}
}

// FuzzHints: whatever a server sends, what is believed of it is bounded.
func FuzzHints(f *testing.F) {
	f.Add(`"a";r=5;t=10`, `"a";q=10;w=60`, "", "", "120")
	f.Add(`limit=100, remaining=50, reset=5`, "100;w=10", "0", "1767225660", "Sat, 01 Jan 2000 00:01:00 GMT")
	f.Add(`"a";r=999999999999999;t=999999999999999`, `"a";q=0;w=0`, "99999999999999999999", "9223372036854775807",
		"9223372036854775808")
	f.Add(`"`, "1;", " 10", "-1", "-1")
	f.Add(`"`+strings.Repeat("a", 2*maxHintName)+`";r=5;t=10`, ";", "", "", "")
	f.Add("", "", "0", "6m0s", "1.5")
	f.Add("", "", "0", "2026-01-01T00:00:01Z", "700")
	f.Fuzz(func(t *testing.T, limit, policy, remaining, reset, retry string) {
		h := http.Header{"Ratelimit": {limit}, "Ratelimit-Policy": {policy}, "X-Ratelimit-Remaining": {remaining},
			"X-Ratelimit-Reset": {reset},
			"X-Ratelimit-Limit": {remaining}, "Ratelimit-Limit": {policy}, "Ratelimit-Remaining": {reset}, "Ratelimit-Reset": {remaining}, "Retry-After": {retry},
			"X-Ratelimit-Limit-Requests": {policy}, "X-Ratelimit-Remaining-Requests": {remaining}, "X-Ratelimit-Reset-Requests": {reset},
			"Anthropic-Ratelimit-Tokens-Limit": {limit}, "Anthropic-Ratelimit-Tokens-Remaining": {remaining}, "Anthropic-Ratelimit-Tokens-Reset": {reset},
			"X-Rate-Limit-Reset-Tokens": {reset}}
		now := time.Unix(1767225600, 0)
		for range 2 {
			hints := AppendHints(nil, h, now)
			if len(hints) > MaxHints {
				t.Fatalf("%d hints", len(hints))
			}
			for _, x := range hints {
				if x.Left < 0 || x.Quota < 0 || x.Reset < 0 || x.Reset > MaxReset || x.Window < 0 ||
					x.Window > MaxReset || x.Whole < 0 || x.Whole > MaxReset || len(x.Name) > maxHintName {
					t.Fatalf("%+v", x)
				}
			}
			wait, ok := retryAfterOf(h, now)
			if wait < 0 || !ok && wait != 0 {
				t.Fatalf("%v, %v", wait, ok)
			}
			for _, d := range []time.Duration{usedUpUntil(hints), untilReset(h, hints, now)} {
				if d < 0 || d > MaxReset {
					t.Fatalf("until the reset: %v", d)
				}
			}
			delete(h, "Ratelimit")
		}
	})
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}
