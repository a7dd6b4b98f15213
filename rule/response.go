package rule

import "strings"

// Response is the refusal that a rule asks HTTP doors for. Immutable, and safe for concurrent use.
type Response struct {
	Status  int // 429 if 0
	Headers []Header
	// if "": of problem details if Body is empty too, of JSON if Body is JSON, else text/plain
	ContentType string
	// a single body; if it is empty and there are no Bodies, the default problem details
	Body Text
	JSON bool // Body is JSON
	// bodies to choose from by Accept, in order of preference; then Body and ContentType are empty
	Bodies []Body
}

// Header is one of the headers of a Response.
type Header struct {
	Name  string
	Value Text
}

// Body is one of the bodies that a client chooses from.
type Body struct {
	MediaType string // "application/json", "text/html" or "text/plain"
	Text      Text
}

// Text is a text of a Response, as it is written.
type Text struct {
	Source string
	// Template gives the text for a refusal, nil if it fails; it is nil itself if Source is no
	// template.
	Template func(*ResponseData) []byte
}

// render returns the text; nil if its template fails.
func (t *Text) render(data *ResponseData) []byte {
	if t.Template == nil {
		return []byte(t.Source)
	}
	return t.Template(data)
}

// ResponseData holds the values for templates of a Response, as in {{.Limit}}.
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

// contentTypes are the content types with which bodies are sent, by media type.
var contentTypes = map[string]string{
	"application/json": "application/json",
	"text/html":        "text/html; charset=utf-8",
	"text/plain":       "text/plain; charset=utf-8",
}

// Render returns the body of the refusal and its content type. choice is the index in Bodies of the
// one that the client prefers; it does not matter where there are none. The body is nil if it is to
// be the default problem details, and the content type "" if that is for the caller to choose.
func (r *Response) Render(choice int, data ResponseData) (contentType string, body []byte) {
	if len(r.Bodies) > 0 {
		b := &r.Bodies[choice]
		if body = b.Text.render(&data); body == nil {
			return "", nil
		}
		return contentTypes[b.MediaType], body
	}
	if r.Body.Source == "" {
		return r.ContentType, nil
	}
	body = r.Body.render(&data)
	switch {
	case body == nil || r.ContentType != "":
		return r.ContentType, body
	case r.JSON:
		return "application/problem+json", body
	}
	return "text/plain; charset=utf-8", body
}

// MediaTypes returns the media types of Bodies.
func (r *Response) MediaTypes() []string {
	types := make([]string, len(r.Bodies))
	for i := range r.Bodies {
		types[i] = r.Bodies[i].MediaType
	}
	return types
}

// RenderHeaders appends the headers to dst. Their values hold no control characters.
func (r *Response) RenderHeaders(dst []Pair, data ResponseData) []Pair {
	for i := range r.Headers {
		h := &r.Headers[i]
		value := h.Value.Source
		if h.Value.Template != nil {
			value = oneLine(string(h.Value.Template(&data)))
		}
		dst = append(dst, Pair{Name: h.Name, Value: value})
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
