package httplimit

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/rule"
)

// limitOf makes the answer of a limit, as a store could give it.
func limitOf(t testing.TB, name string, config algo.Config, r algo.Result) weir.LimitResult {
	t.Helper()
	limit, err := algo.New(config)
	if err != nil {
		t.Fatal(err)
	}
	return weir.LimitResult{
		Window: &rule.Window{Rule: &rule.Rule{Name: name}, Name: name, Limit: limit, Seconds: int64((config.Window + time.Second - 1) / time.Second)},
		Result: r, Descriptor: -1,
	}
}

// plain is what answer.AppendPolicies makes of a name before it is quoted.
func plain(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; c < 0x20 || c >= 0x7f {
			b.WriteString("%" + strings.ToUpper(string([]byte{"0123456789abcdef"[c>>4], "0123456789abcdef"[c&15]})))
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func item(value any, params ...any) httpsfv.Item {
	i := httpsfv.NewItem(value)
	for k := 0; k < len(params); k += 2 {
		i.Params.Add(params[k].(string), params[k+1])
	}
	return i
}

// reference writes the structured fields of draft 11 with a library for them.
func reference(t testing.TB, d *weir.Decision, left, window string) (policy, limits string) {
	var policies, limit httpsfv.List
	for i := range d.Limits {
		lr := &d.Limits[i]
		if lr.Mode == rule.Shadow {
			continue
		}
		p := item(plain(lr.Window.Name), "q", min(lr.Limit, 999_999_999_999_999))
		if lr.Window.Limit.Algorithm() == algo.Concurrency {
			p.Params.Add("qu", "concurrent-requests")
		}
		if w := answer.WindowSeconds(lr, lr.Window.Limit); w > 0 {
			p.Params.Add("w", w)
		}
		policies = append(policies, p)
		l := item(plain(lr.Window.Name), left, min(lr.Remaining, 999_999_999_999_999))
		after := lr.ResetAfter
		if !lr.Allowed {
			after = lr.RetryAfter
		}
		if after != algo.Never {
			l.Params.Add(window, int64(math.Ceil(float64(after)/1e6)))
		}
		limit = append(limit, l)
	}
	policy, err := httpsfv.Marshal(policies)
	if err != nil {
		t.Fatal(err)
	}
	limits, err = httpsfv.Marshal(limit)
	if err != nil {
		t.Fatal(err)
	}
	return policy, limits
}

// configs are of each kind that has a window of its own form.
var configs = []algo.Config{
	{Algorithm: algo.FixedWindow, N: 10, Window: time.Minute}, {Algorithm: algo.SlidingLog, N: 7, Window: 100 * time.Millisecond},
	{Algorithm: algo.TokenBucket, N: 4, Window: time.Minute, Burst: 10}, {Algorithm: algo.TokenBucket, N: 1000, Window: time.Second, Burst: 5},
	{Algorithm: algo.Concurrency, N: 3}, {Algorithm: algo.FixedWindow, N: algo.MaxFixedN, Window: algo.MaxWindow},
}

// What the writer makes of any decision is what a library for structured fields makes of it, and
// reads back; times are never earlier than the limits say.
func TestFieldsProperties(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		d := weir.Decision{Allowed: true, Time: rapid.Int64Range(1, epoch*2).Draw(r, "now")}
		for range rapid.IntRange(1, 4).Draw(r, "limits") {
			config := configs[rapid.IntRange(0, len(configs)-1).Draw(r, "config")]
			res := algo.Result{Allowed: rapid.Bool().Draw(r, "allowed"),
				Limit:      rapid.Int64Range(0, algo.MaxFixedN).Draw(r, "limit"),
				Remaining:  rapid.Int64Range(0, algo.MaxFixedN).Draw(r, "remaining"),
				ResetAfter: rapid.Int64Range(0, 1<<52).Draw(r, "reset")}
			if !res.Allowed {
				if res.RetryAfter = rapid.Int64Range(0, 1<<52).Draw(r, "retry"); res.RetryAfter == 0 {
					res.RetryAfter = algo.Never
				}
			}
			lr := limitOf(t, rapid.String().Draw(r, "name"), config, res)
			if rapid.IntRange(0, 4).Draw(r, "mode") == 0 {
				lr.Mode = rule.Shadow
			} else if !res.Allowed {
				d.Allowed = false
				if d.RetryAfter != algo.Never && (res.RetryAfter == algo.Never || res.RetryAfter > d.RetryAfter) {
					d.RetryAfter = res.RetryAfter
				}
			}
			d.Limits = append(d.Limits, lr)
		}
		if d.Nearest() == nil {
			return
		}
		for _, f := range []Headers{Draft11, Next} {
			h := http.Header{}
			f.Write(h, &d)
			left, window := "r", "t"
			if f == Next {
				left, window = "a", "w"
			}
			policy, limits := reference(t, &d, left, window)
			if h.Get("RateLimit-Policy") != policy || h.Get("RateLimit") != limits {
				r.Fatalf("%v\ngot  %s\n     %s\nwant %s\n     %s", f, h.Get("RateLimit-Policy"), h.Get("RateLimit"),
					policy, limits)
			}
			list, err := httpsfv.UnmarshalList(h["Ratelimit"])
			if err != nil {
				r.Fatal(err)
			}
			retry, _ := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
			if !d.Allowed && d.RetryAfter != algo.Never &&
				(retry < 1 || retry*1e6 < d.RetryAfter || retry*1e6 >= d.RetryAfter+1e6 && retry > 1) {
				r.Fatalf("Retry-After is %d s, to be the whole seconds of %d µs", retry, d.RetryAfter)
			}
			for i, k := 0, 0; i < len(d.Limits); i++ {
				if d.Limits[i].Mode == rule.Shadow {
					continue
				}
				at, has := list[k].(httpsfv.Item).Params.Get(window)
				if k++; !d.Limits[i].Allowed && d.RetryAfter != algo.Never && (!has || at.(int64) > retry) {
					r.Fatalf("limit %d refuses for %v s, but Retry-After is %d", i, at, retry)
				}
			}
		}
		checkEpochAnd03(r, &d)
	})
}

// checkEpochAnd03 holds the fields that are no structured ones of draft 11 against the decision.
func checkEpochAnd03(r *rapid.T, d *weir.Decision) {
	h := http.Header{}
	(XEpoch | Draft03).Write(h, d)
	near := d.Nearest()
	if at, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64); err != nil || at*1e6 < d.Time+near.ResetAfter ||
		at*1e6 >= d.Time+near.ResetAfter+1e6 {
		r.Fatalf("X-RateLimit-Reset is %s, the reset at %d µs", h.Get("X-RateLimit-Reset"), d.Time+near.ResetAfter)
	}
	if reset, retry := h.Get("RateLimit-Reset"), h.Get("Retry-After"); reset == "" || retry != "" && retry != reset ||
		h.Get("RateLimit-Limit") != strconv.FormatInt(near.Limit, 10) {
		r.Fatalf("RateLimit-Reset %q beside Retry-After %q; %v", reset, retry, h)
	}
	if policy := h["Ratelimit-Policy"]; policy != nil {
		if list, err := httpsfv.UnmarshalList(policy); err != nil || len(list) == 0 {
			r.Fatalf("%q: %v", policy, err)
		}
	}
	h = http.Header{}
	Envoy03.Write(h, d)
	if _, err := httpsfv.UnmarshalList(h["X-Ratelimit-Limit"]); err != nil {
		r.Fatalf("%q: %v", h["X-Ratelimit-Limit"], err)
	}
}

// Our writer of structured fields beside the library's, on the same decision.
func BenchmarkStructuredFields(b *testing.B) {
	d := decide(b, newLimiter(b, &clock{}, `limits: [{name: api-per-user, allow: [1000000/min, 5000000/hour]}]`), 1)
	b.Run("weir", func(b *testing.B) {
		b.ReportAllocs()
		h := http.Header{}
		for b.Loop() {
			clear(h) // else it would be added to
			Draft11.Write(h, d)
		}
	})
	b.Run("httpsfv", func(b *testing.B) {
		b.ReportAllocs()
		h := http.Header{}
		for b.Loop() {
			policy, limits := reference(b, d, "r", "t")
			h["Ratelimit-Policy"], h["Ratelimit"] = []string{policy}, []string{limits}
		}
	})
}
