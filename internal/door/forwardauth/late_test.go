package forwardauth

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// Checks that have stood in line for too long are answered as the setting says.
func TestForwardAuthLate(t *testing.T) {
	const rules = "domain: shop\nlimits: [{name: a, allow: 1/hour}]\n"
	for answer, want := range map[shed.Answer][2]int{shed.Error: {503, 503}, shed.Deny: {403, 429},
		shed.Allow: {200, 200}} {
		line := shed.Overloaded(answer)
		h, _, _ := forwardAuthDoor(t, Options{Line: line}, rules)
		for i, path := range []string{nginxPath, forwardedPath} {
			for range 2 {
				a := check(h, edgeProxy, path, "X-Original-URI", "/", "X-Forwarded-Uri", "/")
				if a.Status != want[i] || a.Header.Get("Cache-Control") != "no-store" ||
					(a.Header.Get("Retry-After") == "1") != (a.Status != 200) ||
					(a.Header["Ratelimit"] != nil) != (a.Status == 200) {
					t.Errorf("%s, %s: %+v", answer, path, a)
				}
				if path == forwardedPath && strings.Contains(a.Body, "stood in line") == (a.Status == 200) {
					t.Errorf("%s: says %q", answer, a.Body)
				}
			}
		}
		if n := line.Count(); n != 4 {
			t.Errorf("%s: %d were turned away", answer, n)
		}
	}
}
