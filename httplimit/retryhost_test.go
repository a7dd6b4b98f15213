package httplimit

import (
	"net/http"
	"testing"
	"time"

	"github.com/weir-rl/weir/httplimit/internal/limitfields"
)

// FuzzPeer: whatever a server sends, no request is sent before it or stuck for it.
func FuzzPeer(f *testing.F) {
	f.Add(`"a";r=5;t=10`, `"a";q=10;w=60`, "", "", "120")
	f.Add(`limit=100, remaining=50, reset=5`, "100;w=10", "0", "1767225660", "Sat, 01 Jan 2000 00:01:00 GMT")
	f.Add(`"a";r=999999999999999;t=999999999999999`, `"a";q=0;w=0`, "99999999999999999999", "9223372036854775807",
		"9223372036854775808")
	f.Add("", "", "0", "6m0s", "1.5")
	f.Add("", "", "0", "2026-01-01T00:00:01Z", "700")
	f.Fuzz(func(t *testing.T, limit, policy, remaining, reset, retry string) {
		h := http.Header{"Ratelimit": {limit}, "Ratelimit-Policy": {policy}, "X-Ratelimit-Remaining": {remaining},
			"X-Ratelimit-Reset": {reset},
			"X-Ratelimit-Limit": {remaining}, "Ratelimit-Limit": {policy}, "Ratelimit-Remaining": {reset}, "Ratelimit-Reset": {remaining}, "Retry-After": {retry},
			"X-Ratelimit-Limit-Requests": {policy}, "X-Ratelimit-Remaining-Requests": {remaining}, "X-Ratelimit-Reset-Requests": {reset},
			"Anthropic-Ratelimit-Tokens-Limit": {limit}, "Anthropic-Ratelimit-Tokens-Remaining": {remaining}, "Anthropic-Ratelimit-Tokens-Reset": {reset}}
		now := time.Unix(1767225600, 0)
		for range 2 {
			hints := limitfields.AppendHints(nil, h, now)
			told := limitfields.RefusalOf(t.Context(),
				&http.Response{StatusCode: http.StatusTooManyRequests, Header: h}, hints, now)
			var p peer
			p.mu.flight = 1
			p.leave(1, hints, min(told.Wait, limitfields.MaxReset), time.Second)
			p.mu.Lock()
			at := p.stand(time.Now(), place{})
			if at = p.take(at, time.Now(), time.Minute); at.gap < 0 ||
				at.goes.After(time.Now().Add(2*limitfields.MaxReset)) || len(p.mu.limits) > limitfields.MaxHints {
				t.Fatalf("%+v of %+v", at, p.mu.limits)
			}
			p.mu.Unlock()
			delete(h, "Ratelimit")
		}
	})
}
