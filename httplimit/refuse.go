package httplimit

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Problem types of draft-ietf-httpapi-ratelimit-headers-11, with the titles that it gives them.
const (
	TypeQuotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	TypeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

	titleQuotaExceeded   = "Request cannot be satisfied as assigned quota has been exceeded"
	titleReducedCapacity = "Request cannot be satisfied due to temporary server capacity constraints"
)

const problemJSON = "application/problem+json"

// Refuse answers a refused decision: headers, and the status and body of the refusing rule's response or the default
// problem details (RFC 9457): what was hit, and when to come back. The refusing rule is that of Decision.Nearest.
//
// A response's own headers win over ours. Its body without a content type is sent as application/problem+json if it is
// JSON, else as plain text. The answer is never to be stored by a cache (RFC 6585), and has no body if r is a HEAD.
func (f Headers) Refuse(w http.ResponseWriter, r *http.Request, d *weir.Decision) {
	f.Write(w.Header(), d)
	near := d.Nearest()
	var resp rule.Response
	if near != nil && near.Window.Rule != nil && near.Window.Rule.Response != nil {
		resp = *near.Window.Rule.Response
	}
	if resp.Status == 0 {
		resp.Status = http.StatusTooManyRequests
	}
	var body []byte
	contentType := resp.ContentType
	switch {
	case resp.Body == "":
		body = appendRefusal(make([]byte, 0, 512), resp.Status, d, near)
		if contentType == "" {
			contentType = problemJSON
		}
	default:
		body = []byte(resp.Body)
		if contentType == "" {
			contentType = "text/plain; charset=utf-8"
			if json.Valid(body) {
				contentType = problemJSON
			}
		}
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	for _, p := range resp.Headers {
		switch k := http.CanonicalHeaderKey(p.Name); k {
		case "Content-Length", "Transfer-Encoding", "Connection": // these are the server's
		case "Content-Type":
			if resp.ContentType == "" {
				contentType = p.Value
			}
		default:
			h[k] = []string{p.Value}
		}
	}
	send(w, resp.Status, contentType, body, r.Method == http.MethodHead)
}

// RefuseStoreError answers 503 for a request that could not be decided because the store failed, with the problem type
// temporary-reduced-capacity. It says nothing of the error, which is not the client's business.
func RefuseStoreError(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	Problem(w, http.StatusServiceUnavailable, TypeReducedCapacity, titleReducedCapacity,
		"The request could not be checked against its limits just now. Try again in a moment.", nil)
}

// Problem writes problem details (RFC 9457) with application/problem+json; extra members are merged in, sorted by name.
// An empty typ is left out (about:blank), an empty title is the status's text, an empty detail is left out. A member of
// extra that cannot be put into JSON, or that has the name of a standard one written here, is left out. The answer
// carries Cache-Control: no-store.
func Problem(w http.ResponseWriter, status int, typ, title, detail string, extra map[string]any) {
	if title == "" {
		title = http.StatusText(status)
	}
	body := appendProblem(make([]byte, 0, 512), status, typ, title, detail)
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		if name == "type" || name == "title" || name == "status" || name == "detail" {
			continue
		}
		value, err := json.Marshal(extra[name])
		if err != nil {
			continue
		}
		body = append(body, ',')
		body = appendJSON(body, name)
		body = append(append(body, ':'), value...)
	}
	body = append(body, "}\n"...)
	w.Header().Set("Cache-Control", "no-store")
	send(w, status, problemJSON, body, false)
}

func send(w http.ResponseWriter, status int, contentType string, body []byte, head bool) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if !head {
		_, _ = w.Write(body) // the client may be gone; there is nobody to tell
	}
}

// appendProblem appends the standard members without the closing brace.
func appendProblem(b []byte, status int, typ, title, detail string) []byte {
	b = append(b, '{')
	if typ != "" {
		b = append(b, `"type":`...)
		b = append(appendJSON(b, typ), ',')
	}
	b = append(b, `"title":`...)
	b = appendJSON(b, title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	if detail != "" {
		b = append(b, `,"detail":`...)
		b = appendJSON(b, detail)
	}
	return b
}

// appendRefusal appends the default body of a refusal.
func appendRefusal(b []byte, status int, d *weir.Decision, near *weir.LimitResult) []byte {
	b = appendProblem(b, status, TypeQuotaExceeded, titleQuotaExceeded, refusalDetail(d, near))
	b = append(b, `,"violated-policies":[`...)
	first := true
	for i := range d.Limits {
		lr := &d.Limits[i]
		if lr.Allowed || lr.Mode == rule.Shadow {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendJSON(b, lr.Window.Name)
	}
	b = append(b, `],"retry_after":`...)
	b = appendSeconds(b, d.RetryAfter)
	return append(b, "}\n"...)
}

// refusalDetail says to a person which limit it was, what it allows, and when to come back.
func refusalDetail(d *weir.Decision, near *weir.LimitResult) string {
	if near == nil {
		return "A limit was reached."
	}
	var b strings.Builder
	b.WriteString(`The limit "`)
	b.WriteString(near.Window.Name)
	b.WriteString(`" `)
	var c algo.Config
	if near.Window.Limit != nil {
		c = near.Window.Limit.Config()
	}
	what := "request"
	if r := near.Window.Rule; r != nil && (r.Cost > 1 || r.CostExpr != "") {
		what = "unit"
	}
	switch c.Algorithm {
	case algo.Concurrency:
		b.WriteString("allows " + plural(near.Limit, what) + " at the same time.")
	case algo.LeakyBucket:
		b.WriteString("lets " + plural(c.N, what) + " per " + c.Period() + " through, one after the other, and too many are waiting.")
	case algo.TokenBucket:
		b.WriteString("allows " + plural(c.N, what) + " per " + c.Period())
		if near.Limit != c.N {
			b.WriteString(", with bursts of up to " + strconv.FormatInt(near.Limit, 10))
		}
		b.WriteByte('.')
	default:
		b.WriteString("allows " + plural(c.N, what) + " per " + c.Period() + ".")
	}
	switch {
	case d.RetryAfter != algo.Never:
		b.WriteString(" Try again in " + durationText(max(1, ceilSeconds(d.RetryAfter))) + ".")
	case near.Limit > 0:
		b.WriteString(" This request asks for more than that at once, so it can never be admitted.")
	}
	return b.String()
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

// durationText writes whole seconds as a person says them, in at most two units, rounded up: "1 minute 30 seconds".
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
		rest := (s%u.seconds + next.seconds - 1) / next.seconds // in the next smaller unit, rounded up
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

// appendSeconds appends µs as seconds to the microsecond, without trailing zeros; never is null.
func appendSeconds(b []byte, us int64) []byte {
	if us == algo.Never {
		return append(b, "null"...)
	}
	b = strconv.AppendInt(b, us/1e6, 10)
	if frac := us % 1e6; frac != 0 {
		digits := strconv.AppendInt(nil, 1e6+frac, 10) // 1dddddd
		digits[0] = '.'
		for digits[len(digits)-1] == '0' {
			digits = digits[:len(digits)-1]
		}
		b = append(b, digits...)
	}
	return b
}

// appendJSON appends s as a JSON string.
func appendJSON(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
			i++
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			i++
		case c < utf8.RuneSelf:
			b = append(b, c)
			i++
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r) // what is no UTF-8 becomes U+FFFD
			i += n
		}
	}
	return append(b, '"')
}
