package admin

import (
	"fmt"
	"net/http"
	"strings"
)

// rateLimitConfig lists the descriptors in force as envoyproxy/ratelimit does, a line for each: the
// tool of Envoy Gateway shows that.
func (a *Handler) rateLimitConfig(w http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	if set, _ := a.limiter.Rules(); set != nil {
		for _, r := range set.Rules() {
			if r.Lyft == nil || len(r.Windows) == 0 && !r.Unlimited {
				continue
			}
			unit := r.Lyft.Unit
			if unit == "" {
				unit = "UNKNOWN"
			}
			fmt.Fprintf(&b, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n", r.Lyft.StatsKey, unit,
				r.Lyft.RequestsPerUnit, r.Lyft.Shadow, r.Lyft.Quota)
		}
	}
	writeText(w, http.StatusOK, b.String())
}
