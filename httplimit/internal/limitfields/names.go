// Package limitfields holds the fields by which servers speak of their limits: their names, how
// they are read (hints.go, and providers.go for providers with fields of their own; refusal.go for
// refusals), and how the fields of several limits become one set (join.go).
package limitfields

// The names of the fields, in the canonical form that http.Header keeps.
const (
	Limit       = "X-Ratelimit-Limit"
	Remaining   = "X-Ratelimit-Remaining"
	Reset       = "X-Ratelimit-Reset"
	XRetry      = "X-Ratelimit-Retry-After"
	Soft        = "X-Ratelimit-Soft"
	Warning     = "X-Ratelimit-Warning"
	Decision    = "X-Ratelimit-Decision"
	Limit03     = "Ratelimit-Limit"
	Remaining03 = "Ratelimit-Remaining"
	Reset03     = "Ratelimit-Reset"
	Policy      = "Ratelimit-Policy"
	RateLimit   = "Ratelimit"
	RetryAfter  = "Retry-After"
	RetryMilli  = "Retry-After-Ms"
	ShouldRetry = "X-Should-Retry"
)
