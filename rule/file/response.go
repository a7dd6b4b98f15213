package file

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// The bodies that there may be, in order of preference.
var bodyForms = []struct{ key, mediaType string }{
	{"json", "application/json"},
	{"html", "text/html"},
	{"text", "text/plain"},
}

// written is a text of a response; t is nil if it is no template.
func written(source string, t *template) rule.Text {
	text := rule.Text{Source: source}
	if t != nil {
		text.Template = t.render
	}
	return text
}

// headerName reports whether name is a token (RFC 9110 5.6.2), as names of headers are.
func headerName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') &&
			strings.IndexByte("!#$%&'*+.^_`|~-", c) < 0 {
			return false
		}
	}
	return name != ""
}

// response reads response.
func (l *loader) response(v *yaml.Node) *rule.Response {
	keys, ok := l.keys(v, keyRules{
		expected: "response: expected a mapping of status, headers, content_type and body", example: "as in: response: {status: 503, body: later}",
		known: []string{"status", "headers", "content_type", "body"}, elsewhere: map[string]string{
			"json": "it belongs into body", "html": "it belongs into body", "text": "it belongs into body",
		},
	})
	if !ok {
		return nil
	}
	r := &rule.Response{Status: 429}
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
	case b.Kind == yaml.Mapping:
		if c := keys.key("content_type"); c != nil {
			l.err(c, "leave it out",
				"response.content_type is for a single body: json, html and text are sent as what they are")
		}
		l.responseBodies(b, r)
	default:
		if text, _ := l.text(b, "response.body"); text != "" {
			syntax := plainTemplate
			if strings.Contains(strings.ToLower(r.ContentType), "html") {
				syntax = htmlTemplate
			}
			t, samples, ok := l.template(b, "response.body", text, syntax)
			r.Body = written(text, t)
			r.JSON = ok && allJSON(samples)
		}
	}
	return r
}

// headerLine reads the value of a header.
func (l *loader) headerLine(v *yaml.Node, what string) string {
	text, ok := l.text(v, what)
	if ok && strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		l.err(v, "", "%s: a header's value is one line without control characters", what)
	}
	return text
}

func (l *loader) responseHeaders(h *yaml.Node, r *rule.Response) {
	if h.Kind != yaml.Mapping {
		l.err(h, "as in: headers: {X-Reason: quota}", "response.headers: expected a mapping, got %s", h)
	}
	seen := map[string]bool{}
	for _, p := range h.Pairs {
		name, ok := l.text(p.Key, "response.headers")
		if !ok {
			continue
		}
		if !headerName(name) {
			l.err(p.Key, "", "response.headers: %q is no name of a header", message.Clip(name))
			continue
		}
		if lower := strings.ToLower(name); seen[lower] {
			l.err(p.Key, "", "response.headers: %s stands twice", name)
		} else {
			seen[lower] = true
		}
		what := "response.headers." + name
		value := l.headerLine(p.Value, what)
		t, _, _ := l.template(p.Value, what, value, plainTemplate)
		r.Headers = append(r.Headers, rule.Header{Name: name, Value: written(value, t)})
	}
}

func (l *loader) responseBodies(v *yaml.Node, r *rule.Response) {
	keys, _ := l.keys(v, keyRules{known: []string{"json", "html", "text"}})
	if len(v.Pairs) == 0 {
		l.err(v, `as in: body: {json: '{"limit": {{json .Limit}}}', text: "come back in {{.RetryAfterText}}"}`,
			"response.body: an empty mapping; expected json, html or text")
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
			l.err(b, hint, "%s: the body is not valid JSON: %s", what, message.Clip(badJSON(samples)))
		}
		r.Bodies = append(r.Bodies, rule.Body{MediaType: f.mediaType, Text: written(text, t)})
	}
}

func allJSON(texts []string) bool { return badJSON(texts) == "" }

// badJSON returns the fault of the first of texts that is not valid JSON; "" if all are.
func badJSON(texts []string) string {
	for _, t := range texts {
		var v any
		if err := json.Unmarshal([]byte(t), &v); err != nil {
			return fmt.Sprintf("%v in %s", err, strings.Join(strings.Fields(t), " "))
		}
	}
	return ""
}
