package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// Requests that have stood in line for too long are answered as the setting says, and counted by no
// limit; those that decide nothing are answered as ever.
func TestLate(t *testing.T) {
	json := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("/json is asked") })
	for answer, want := range map[shed.Answer][2]int{shed.Error: {503, 503}, shed.Deny: {429, 429},
		shed.Allow: {200, 503}} {
		l, _, _ := doortest.NewLimiter(t, "domain: shop\nlimits: [{name: a, allow: 1/min}]\n")
		line := shed.Overloaded(answer)
		h := New(l, Options{Line: line, JSON: json})
		for i, path := range []string{"/api/v1/limit", "/api/v1/limit/batch", "/api/v1/reserve", "/json"} {
			a := doortest.Ask(h, doortest.Friend, "POST", path, `{"attributes":{}}`)
			status := want[min(i, 1)]
			if a.Status != status || a.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s, %s: %+v", answer, path, a)
			}
			if status == 200 {
				if !strings.Contains(a.Body, `"allowed":true`) {
					t.Errorf("%s, %s: %+v", answer, path, a)
				}
			} else if own := refusals[path]; status == 429 && own != "" {
				if a.Header.Get("Retry-After") != "1" || a.Body != own ||
					a.Header.Get("Content-Type") != "application/json" {
					t.Errorf("%s, %s: %+v", answer, path, a)
				}
			} else if a.Header.Get("Retry-After") != "1" || !strings.Contains(a.Body, "#temporary-reduced-capacity") ||
				!strings.Contains(a.Body, "stood in line") {
				t.Errorf("%s, %s: %+v", answer, path, a)
			}
		}
		a := doortest.Ask(h, doortest.Stranger, "GET", "/api/v1/limit", "", "Accept", "text/plain")
		if a.Status != want[0] || a.Body != map[bool]string{true: "true", false: "false"}[want[0] == 200] {
			t.Errorf("%s: %+v", answer, a)
		}
		if n := line.Count(); n != 5 {
			t.Errorf("%s: %d were turned away", answer, n)
		}
		if a := doortest.Ask(h, doortest.Friend, "POST", "/api/v1/release", `{"slot":"x"}`); a.Status != 403 {
			t.Errorf("%s: release: %+v", answer, a)
		}
		if a := doortest.Ask(h, doortest.Friend, "GET", "/healthcheck", ""); a.Status != 200 {
			t.Errorf("%s: health: %+v", answer, a)
		}
		if a := doortest.Ask(New(l, Options{}), doortest.Friend, "POST", "/api/v1/limit", "{}"); a.Status != 200 {
			t.Errorf("%s: something was counted: %+v", answer, a)
		}
	}
}
