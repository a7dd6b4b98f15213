package httplimit

import (
	"crypto/sha256"
	"encoding/base64"
	"html"
	"net/http"
	"strconv"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/wire/accept"
)

// form is a form in which the default refusal can be sent.
type form uint8

const (
	formJSON form = iota
	formHTML
	formText
)

// contentType is the media type in which a default refusal of the form is sent.
func (f form) contentType() string {
	return [...]string{formJSON: answer.ProblemJSON, formHTML: "text/html; charset=utf-8",
		formText: "text/plain; charset=utf-8"}[f]
}

// preferred returns the form that an Accept header prefers. It is problem details for clients that
// name no preference, and for those that accept none of the forms: a refusal in a form that was not
// asked for says more than a 406.
func preferred(accepted string) form {
	return form(accept.Preferred(accepted, "application/json", "text/html", "text/plain"))
}

// pageStyle is the style of the page. It follows the light or dark scheme that the reader has
// chosen.
const pageStyle = `:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--faint:#57606a;--rule:#d0d7de}` +
	`@media(prefers-color-scheme:dark){:root{--ground:#15181c;--ink:#e6e8eb;--faint:#a3abb5;--rule:#3a424c}}` +
	`body{margin:0;min-height:100vh;display:grid;place-items:center;background:var(--ground);color:var(--ink);font:1.0625rem/1.6 system-ui,sans-serif}` +
	`main{max-width:34rem;padding:2rem}h1{font-size:1.6rem;line-height:1.25;margin:0 0 1rem}p{margin:0 0 1rem}.when{font-weight:600}` +
	`footer{border-top:1px solid var(--rule);margin-top:2rem;padding-top:1rem;font-size:.9rem;color:var(--faint)}code{font:.95em ui-monospace,monospace;overflow-wrap:anywhere}`

// pagePolicy lets the page load nothing and run nothing; its style is known by its hash.
var pagePolicy = func() string {
	sum := sha256.Sum256([]byte(pageStyle))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'"
}()

// appendPage appends the default refusal as a page.
func appendPage(b []byte, status int, d *weir.Decision, near *weir.LimitResult) []byte {
	title := html.EscapeString(statusText(status))
	what, when := refusalWords(d, near)
	b = append(b, `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>`...)
	b = append(append(b, title...), "</title>\n<style>"+pageStyle+"</style>\n</head>\n<body>\n<main>\n<h1>"...)
	b = append(append(b, title...), "</h1>\n<p>"...)
	b = append(append(b, html.EscapeString(what)...), "</p>\n"...)
	if when != "" {
		b = append(b, `<p class="when">`...)
		b = append(append(b, html.EscapeString(when)...), "</p>\n"...)
	}
	if d.ID != 0 {
		b = append(b, "<footer>If you ask for help, quote this decision: <code>"...)
		b = append(d.ID.AppendTo(b), "</code></footer>\n"...)
	}
	return append(b, "</main>\n</body>\n</html>\n"...)
}

// appendText appends the default refusal as plain text.
func appendText(b []byte, status int, d *weir.Decision, near *weir.LimitResult) []byte {
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(append(append(b, ' '), statusText(status)...), "\n\n"...)
	b = append(append(b, refusalDetail(d, near)...), '\n')
	if d.ID != 0 {
		b = append(d.ID.AppendTo(append(b, "\nDecision: "...)), '\n')
	}
	return b
}

// statusText is the phrase for a status, also for one that has none.
func statusText(status int) string {
	if text := http.StatusText(status); text != "" {
		return text
	}
	return "Refused"
}
