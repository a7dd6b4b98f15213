package rule

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Response is the refusal that a rule asks HTTP doors for. Immutable, and safe for concurrent use.
type Response struct {
	Status      int    // 429 if 0
	Headers     []Pair // as they are written; see RenderHeaders
	ContentType string // if "": of problem details if Body is "" too, of JSON if Body is JSON, else text/plain
	Body        string // as it is written, of a single body; if "" and there are no Bodies, the default problem details
	Bodies      []Body // bodies to choose from by Accept, in order of preference; then Body and ContentType are ""

	headers []*template // one for each of Headers; nil for one that is no template
	body    *template   // nil if Body is no template
	isJSON  bool        // Body is JSON
}

// Body is one of the bodies that a client chooses from.
type Body struct {
	MediaType string // "application/json", "text/html" or "text/plain"
	Text      string // as it is written

	template *template // nil if Text is no template
}

// ResponseData is what the templates of a Response may name, as in {{.Limit}}.
type ResponseData struct {
	Limit          string // name of the limit that refused (Window.Name)
	RetryAfter     int64  // whole seconds, rounded up; -1 for never
	RetryAfterText string // the same in words, such as "1 minute 30 seconds"; "never"
	ID             string // of the decision
	Domain         string
	LimitValue     int64  // N, as it was in force
	Window         string // W in words, such as "minute" or "15 minutes"; "" where there is none
	Status         int
}

// The bodies that there may be, in order of preference, with the content types that they are sent with.
var bodyForms = []struct{ key, mediaType, contentType string }{
	{"json", "application/json", "application/json"},
	{"html", "text/html", "text/html; charset=utf-8"},
	{"text", "text/plain", "text/plain; charset=utf-8"},
}

// Render returns the body of the refusal for a client that sent this Accept header ("" for none), and its content type: of
// several bodies the one that the client likes best, the first where it likes none; a single body whatever it likes. The body
// is nil if it is to be the default problem details, and the content type "" if that is for the caller to choose.
func (r *Response) Render(accept string, data ResponseData) (contentType string, body []byte) {
	if len(r.Bodies) == 0 {
		if r.Body == "" {
			return r.ContentType, nil
		}
		if body = r.body.render(r.Body, &data); body == nil {
			return r.ContentType, nil
		}
		switch {
		case r.ContentType != "":
			return r.ContentType, body
		case r.isJSON:
			return "application/problem+json", body
		}
		return "text/plain; charset=utf-8", body
	}
	b := &r.Bodies[r.choose(accept)]
	if body = b.template.render(b.Text, &data); body == nil {
		return "", nil
	}
	for _, f := range bodyForms {
		if f.mediaType == b.MediaType {
			contentType = f.contentType
		}
	}
	return contentType, body
}

// RenderHeaders appends the headers to dst. Their values hold no control characters.
func (r *Response) RenderHeaders(dst []Pair, data ResponseData) []Pair {
	for i, h := range r.Headers {
		if i < len(r.headers) && r.headers[i] != nil {
			h.Value = oneLine(string(r.headers[i].render("", &data)))
		}
		dst = append(dst, h)
	}
	return dst
}

// oneLine makes a text fit for a header: what could end it becomes a space.
func oneLine(s string) string {
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if c < ' ' && c != '\t' || c == 0x7f {
			return ' '
		}
		return c
	}, s))
}

// maxAccept is how much of an Accept header is looked at, in bytes.
const maxAccept = 4096

// choose returns the index of the body that the client likes best: the highest quality, then the range that says the most, then
// the order of Bodies.
func (r *Response) choose(accept string) int {
	best, bestQuality, bestDetail := 0, 0, 0
	for i := range r.Bodies {
		if q, detail := quality(accept, r.Bodies[i].MediaType); q > bestQuality || q == bestQuality && q > 0 && detail > bestDetail {
			best, bestQuality, bestDetail = i, q, detail
		}
	}
	return best
}

// quality returns how much an Accept header likes a media type, in thousandths, and how precisely it names it (0 to 3), by RFC 9110,
// 12.5.1: of the ranges that match, the most precise one holds.
func quality(accept, mediaType string) (q, detail int) {
	if len(accept) > maxAccept {
		accept = accept[:maxAccept]
	}
	if strings.TrimSpace(accept) == "" {
		return 1000, 0
	}
	for part := range strings.SplitSeq(accept, ",") {
		name, parameters, _ := strings.Cut(part, ";")
		d := matches(strings.TrimSpace(name), mediaType)
		if d == 0 || d < detail {
			continue
		}
		weight := 1000
		for p := range strings.SplitSeq(parameters, ";") {
			if k, v, ok := strings.Cut(strings.TrimSpace(p), "="); ok && strings.EqualFold(strings.TrimSpace(k), "q") {
				weight = qvalue(strings.TrimSpace(v))
			}
		}
		if d > detail || weight > q {
			q, detail = weight, d
		}
	}
	return q, detail
}

// matches says how precisely a media range names a type: 3 by its name, 2 by its first part, 1 by */*, 0 not at all.
func matches(name, mediaType string) int {
	switch {
	case strings.EqualFold(name, mediaType):
		return 3
	case mediaType == "application/json" && len(name) > len("application/+json") &&
		strings.EqualFold(name[:len("application/")], "application/") && strings.EqualFold(name[len(name)-len("+json"):], "+json"):
		return 3 // problem details and their like: whoever reads those reads JSON
	case name == "*/*":
		return 1
	}
	if kind, ok := strings.CutSuffix(name, "/*"); ok {
		if first, _, _ := strings.Cut(mediaType, "/"); strings.EqualFold(kind, first) {
			return 2
		}
	}
	return 0
}

// qvalue reads a weight in thousandths: 0 to 1 with up to three decimals. One that is none counts as 0.
func qvalue(s string) int {
	whole, decimals, _ := strings.Cut(s, ".")
	if whole != "0" && whole != "1" || len(decimals) > 3 {
		return 0
	}
	n := 0
	for i := range 3 {
		n *= 10
		if i < len(decimals) {
			if decimals[i] < '0' || decimals[i] > '9' {
				return 0
			}
			n += int(decimals[i] - '0')
		}
	}
	if whole == "1" {
		if n > 0 {
			return 0
		}
		return 1000
	}
	return n
}

var headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_\x60|~-]+$")

// response reads response.
func (l *loader) response(v *element) *Response {
	if v.kind != mapKind {
		l.err(v, "as in: response: {status: 503, body: later}", "response: expected a mapping of status, headers, content_type and body, got %s", describe(v))
		return nil
	}
	keys := l.keys(v, keyRules{known: []string{"status", "headers", "content_type", "body"}, elsewhere: map[string]string{
		"json": "it belongs into body", "html": "it belongs into body", "text": "it belongs into body",
	}})
	r := &Response{Status: 429}
	if s := keys.val("status"); s != nil {
		if n, ok := l.integer(s, "response.status", 400, 599); ok {
			r.Status = int(n)
		}
	}
	if h := keys.val("headers"); h != nil {
		l.responseHeaders(h, r)
	}
	if c := keys.val("content_type"); c != nil {
		r.ContentType = l.headerLine(c, "response.content_type")
	}
	b := keys.val("body")
	switch {
	case b == nil:
	case b.kind == mapKind:
		if c := keys.key("content_type"); c != nil {
			l.err(c, "leave it out", "response.content_type is for a single body: json, html and text are sent as what they are")
		}
		l.responseBodies(b, r)
	default:
		if r.Body, _ = l.text(b, "response.body"); r.Body != "" {
			syntax := plainTemplate
			if strings.Contains(strings.ToLower(r.ContentType), "html") {
				syntax = htmlTemplate
			}
			body, samples, ok := l.template(b, "response.body", r.Body, syntax)
			if r.body = body; ok {
				r.isJSON = allJSON(samples)
			}
		}
	}
	return r
}

// headerLine reads the value of a header.
func (l *loader) headerLine(v *element, what string) string {
	text, ok := l.text(v, what)
	if ok && strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		l.err(v, "", "%s: a header's value is one line without control characters", what)
	}
	return text
}

func (l *loader) responseHeaders(h *element, r *Response) {
	if h.kind != mapKind {
		l.err(h, "as in: headers: {X-Reason: quota}", "response.headers: expected a mapping, got %s", describe(h))
	}
	seen := map[string]bool{}
	for _, p := range h.pairs {
		name, ok := l.text(p.key, "response.headers")
		if !ok {
			continue
		}
		if !headerName.MatchString(name) {
			l.err(p.key, "", "response.headers: %q is no name of a header", clip(name))
			continue
		}
		if lower := strings.ToLower(name); seen[lower] {
			l.err(p.key, "", "response.headers: %s stands twice", name)
		} else {
			seen[lower] = true
		}
		what := "response.headers." + name
		value := l.headerLine(p.value, what)
		t, _, _ := l.template(p.value, what, value, plainTemplate)
		r.Headers, r.headers = append(r.Headers, Pair{Name: name, Value: value}), append(r.headers, t)
	}
}

func (l *loader) responseBodies(v *element, r *Response) {
	keys := l.keys(v, keyRules{known: []string{"json", "html", "text"}})
	if len(v.pairs) == 0 {
		l.err(v, `as in: body: {json: '{"limit": {{json .Limit}}}', text: "come back in {{.RetryAfterText}}"}`, "response.body: an empty mapping; expected json, html or text")
	}
	for _, f := range bodyForms {
		b := keys.val(f.key)
		if b == nil {
			continue
		}
		what := "response.body." + f.key
		text, ok := l.text(b, what)
		if !ok {
			continue
		}
		syntax := plainTemplate
		if f.key == "html" {
			syntax = htmlTemplate
		}
		t, samples, ok := l.template(b, what, text, syntax)
		if ok && f.key == "json" && !allJSON(samples) {
			hint := ""
			if t != nil {
				hint = "text goes in by {{json .Limit}}, which quotes it; .RetryAfter, .LimitValue and .Status are numbers"
			}
			l.err(b, hint, "%s: the body is not valid JSON: %s", what, clip(badJSON(samples)))
		}
		r.Bodies = append(r.Bodies, Body{MediaType: f.mediaType, Text: text, template: t})
	}
}

func allJSON(texts []string) bool { return badJSON(texts) == "" }

// badJSON returns what is wrong with the first of texts that is not valid JSON; "" if all are.
func badJSON(texts []string) string {
	for _, t := range texts {
		var v any
		if err := json.Unmarshal([]byte(t), &v); err != nil {
			return fmt.Sprintf("%v in %s", err, strings.Join(strings.Fields(t), " "))
		}
	}
	return ""
}
