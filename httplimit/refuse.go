package httplimit

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/httplimit/internal/limitfields"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/wire/accept"
	"github.com/weir-rl/weir/rule"
)

// TypeQuotaExceeded is the problem type of a refusal
// (draft-ietf-httpapi-ratelimit-headers-11).
const TypeQuotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

const titleQuotaExceeded = "Request cannot be satisfied as assigned quota has been exceeded"

// Refuse answers a refused request: headers, and the status and body of the refusing rule's
// response, or the default one, which names the limit and the time to come back. The refusing rule
// is Decision.Nearest's.
//
// The default body comes in the form that the client prefers by its Accept header: problem details
// (RFC 9457), which is also for those that do not say, a page for browsers, or plain text. Beside
// Retry-After it has retry-after-ms, and x-should-retry: false where that is more than a minute or
// never, which the official clients of model providers obey. A response's own headers win over
// ours. The answer is never to be stored by a cache (RFC 6585), and
// has no body if r is a HEAD.
//
// A call of gRPC that a Gate or the proxy refuses gets trailers in place of all that, as package
// grpclimit gives them: RESOURCE_EXHAUSTED, or the code that the rule's status maps to, or the code
// in its header grpc-status; the rule's body is the message if it is a plain text.
func (f Headers) Refuse(w http.ResponseWriter, r *http.Request, d *weir.Decision) {
	f.Write(w.Header(), d)
	h := w.Header()
	sayRetry(h, d)
	near := d.Nearest()
	status, contentType := http.StatusTooManyRequests, ""
	var body []byte
	var headers []rule.Pair
	if f.refuseCall(w, d, near) {
		return
	}
	typed := true // a Content-Type among the headers of the rule does not matter
	accepted := strings.Join(r.Header["Accept"], ", ")
	if near != nil && near.Window.Rule != nil && near.Window.Rule.Response != nil {
		resp := near.Window.Rule.Response
		if resp.Status != 0 {
			status = resp.Status
		}
		data := responseData(d, near, status)
		contentType, body = resp.Render(accept.Preferred(accepted, resp.MediaTypes()...), data)
		headers = resp.RenderHeaders(nil, data)
		typed = resp.Body.Source == "" || resp.ContentType != ""
		if len(resp.Bodies) > 1 {
			varyBy(h, "Accept")
		}
	}
	switch {
	case body != nil:
		if contentType == "" {
			contentType = "text/plain; charset=utf-8"
		}
	case contentType != "": // the rule names a type for a body that is not its own
		body = appendRefusal(nil, formJSON, status, d, near)
	default:
		form := preferred(accepted)
		body, contentType = appendRefusal(nil, form, status, d, near), form.contentType()
		varyBy(h, "Accept")
		if form == formHTML {
			h.Set("Content-Security-Policy", pagePolicy)
		}
	}
	h.Set("Cache-Control", "no-store")
	for _, p := range headers {
		switch k := http.CanonicalHeaderKey(p.Name); k {
		case "Content-Length", "Transfer-Encoding", "Connection": // these are the server's
		case "Content-Type":
			if !typed {
				contentType = p.Value
			}
		case "Vary", hdrExpose:
			h.Add(k, p.Value)
		default:
			h[k] = []string{p.Value}
		}
	}
	answer.Send(w, status, contentType, body, r.Method == http.MethodHead)
}

// longestRetry is the longest Retry-After, in µs, that all official clients of model providers
// obey. Of a longer one some take no notice, and try again within a second; others sleep for days,
// twice.
const longestRetry = 60_000_000

// sayRetry writes the fields that the official clients of model providers (openai and anthropic for
// Python and Node) obey beside Retry-After: when to come back to the millisecond, and, where that
// is too long for them or never, that they need not try.
func sayRetry(h http.Header, d *weir.Decision) {
	delete(h, limitfields.RetryMilli)
	delete(h, limitfields.ShouldRetry)
	if d.RetryAfter != algo.Never {
		h[limitfields.RetryMilli] = []string{strconv.FormatInt(max(1, (d.RetryAfter+999)/1000), 10)}
	}
	if d.RetryAfter == algo.Never || d.RetryAfter > longestRetry {
		h[limitfields.ShouldRetry] = []string{"false"}
	}
}

// responseData holds the values that templates may use in a refusal by near.
func responseData(d *weir.Decision, near *weir.LimitResult, status int) rule.ResponseData {
	data := rule.ResponseData{Limit: near.Window.Name, RetryAfter: algo.Never, RetryAfterText: "never",
		ID: d.ID.String(), Domain: d.Domain, Status: status}
	if d.RetryAfter != algo.Never {
		data.RetryAfter = max(1, answer.CeilSeconds(d.RetryAfter))
		data.RetryAfterText = durationText(data.RetryAfter)
	}
	c := configOf(d, near)
	data.LimitValue, data.Window = c.N, c.Period()
	return data
}

// configOf returns the numbers in force of a limit of d; zero if they are not known.
func configOf(d *weir.Decision, lr *weir.LimitResult) algo.Config {
	for i := range d.Limits {
		if lr == &d.Limits[i] {
			if in := d.InForce(i); in != nil {
				return in.Config()
			}
		}
	}
	return algo.Config{}
}

// varyBy says that the answer depends on a header of the request.
func varyBy(h http.Header, header string) {
	for _, line := range h["Vary"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = strings.TrimSpace(name); name == "*" || strings.EqualFold(name, header) {
				return
			}
		}
	}
	h.Add("Vary", header)
}

// appendRefusal appends the default body of a refusal.
func appendRefusal(b []byte, f form, status int, d *weir.Decision, near *weir.LimitResult) []byte {
	switch f {
	case formHTML:
		return appendPage(b, status, d, near)
	case formText:
		return appendText(b, status, d, near)
	}
	b = answer.AppendProblem(slices.Grow(b, 512), status, TypeQuotaExceeded, titleQuotaExceeded, refusalDetail(d, near))
	b = append(b, `,"violated-policies":[`...)
	first := true
	for i := range d.Limits {
		lr := &d.Limits[i]
		if !d.Refuses(lr) {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = answer.AppendJSON(b, lr.Window.Name)
	}
	b = append(b, `],"retry_after":`...)
	b = answer.AppendSeconds(b, d.RetryAfter)
	if d.ID != 0 {
		b = append(d.ID.AppendTo(append(b, `,"decision":"`...)), '"')
	}
	return append(b, "}\n"...)
}

// refusalDetail tells a person which limit refused, how much it allows, and when to come back.
func refusalDetail(d *weir.Decision, near *weir.LimitResult) string {
	what, when := refusalWords(d, near)
	if when == "" {
		return what
	}
	return what + " " + when
}

// refusalWords says which limit it was and how much it allows, and, if there is something to say,
// when to come back.
func refusalWords(d *weir.Decision, near *weir.LimitResult) (what, when string) {
	if near == nil {
		return "A limit was reached.", comeBack(d, true)
	}
	if d.Banned.Rule != nil {
		return `The limit "` + d.Banned.Rule.Name +
			`" was exceeded too often: requests like this one are blocked for a while.`, comeBack(d, true)
	}
	if r := d.Matches.TooCostly; r != nil {
		return `The limit "` + r.Name +
			`" takes too long to look at all of this request.`, "Send fewer or shorter headers and parameters."
	}
	if d.UnknownDomain() {
		return `No rules are there for the domain "` + answer.Printable(d.Domain) + `".`, ""
	}
	var b strings.Builder
	b.WriteString(`The limit "`)
	b.WriteString(near.Window.Name)
	b.WriteString(`" `)
	c := configOf(d, near)
	unit := "request"
	if r := near.Window.Rule; r != nil && (r.Cost > 1 || r.CostExpr != "") {
		unit = "unit"
	}
	switch a := c.Algorithm; {
	case a.HasSlots():
		b.WriteString("allows " + plural(near.Limit, unit) + " at the same time.")
	case a.Delays():
		b.WriteString("lets " + plural(c.N, unit) + " per " + c.Period() +
			" through, one after the other, and too many are waiting.")
	case a.HasBurst():
		b.WriteString("allows " + plural(c.N, unit) + " per " + c.Period())
		if near.Limit != c.N {
			b.WriteString(", with bursts of up to " + strconv.FormatInt(near.Limit, 10))
		}
		b.WriteByte('.')
	default:
		b.WriteString("allows " + plural(c.N, unit) + " per " + c.Period() + ".")
	}
	return b.String(), comeBack(d, near.Limit > 0)
}

// comeBack says when to come back; some is whether anything at all would be admitted.
func comeBack(d *weir.Decision, some bool) string {
	switch {
	case d.RetryAfter != algo.Never:
		return "Try again in " + durationText(max(1, answer.CeilSeconds(d.RetryAfter))) + "."
	case some:
		return "This request asks for more than that at once, so it can never be admitted."
	}
	return ""
}

func plural(n int64, what string) string {
	switch n {
	case 0:
		return "no " + what + "s"
	case 1:
		return "1 " + what
	}
	return strconv.FormatInt(n, 10) + " " + what + "s"
}

// durationText writes whole seconds as a person says them, in at most two units, rounded up: "1
// minute 30 seconds".
func durationText(s int64) string {
	units := [...]struct {
		seconds int64
		name    string
	}{{86400, "day"}, {3600, "hour"}, {60, "minute"}, {1, "second"}}
	for i, u := range units {
		if s < u.seconds {
			continue
		}
		if i == len(units)-1 {
			return plural(s, u.name)
		}
		next := units[i+1]
		// in the next smaller unit, rounded up
		rest := (s%u.seconds + next.seconds - 1) / next.seconds
		whole := s / u.seconds
		if rest == u.seconds/next.seconds {
			whole, rest = whole+1, 0
		}
		if i > 0 && whole == units[i-1].seconds/u.seconds {
			return plural(1, units[i-1].name)
		}
		if rest == 0 {
			return plural(whole, u.name)
		}
		return plural(whole, u.name) + " " + plural(rest, next.name)
	}
	return "a moment"
}
