package spoe

import (
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/rule"
)

// maxArguments bounds the arguments of one NOTIFY.
const maxArguments = 512

// argument is one argument of a message, as text.
type argument struct{ name, text string }

// attributes are the arguments of a NOTIFY as rule.Attributes: each by its name, except that the
// path is in its normal form, the host is as the HTTP doors have it, header.* is found by the name
// in lower case, and query.* are parsed from the argument query. Of several arguments of one name
// the first that has a value holds.
type attributes struct {
	arguments []argument
	scratch   []byte // texts of values that came in another form
	domain    string
	hits      int64
	hitsGiven bool
	hitsBad   bool
	unnamed   bool // an argument has no name
	accept    string

	path, rawPath string
	hasPath       bool
	// The HTTP doors' own reading of a host and of a query.
	http    httplimit.Attributes
	request http.Request
	url     url.URL
	hasHTTP bool
}

// reset forgets the arguments.
func (a *attributes) reset() {
	clear(a.arguments)
	a.arguments, a.scratch = a.arguments[:0], a.scratch[:0]
	a.domain, a.hits, a.hitsGiven, a.hitsBad, a.unnamed, a.accept = "", 1, false, false, false, ""
	a.path, a.rawPath, a.hasPath = "", "", false
	a.request, a.url, a.hasHTTP = http.Request{}, url.URL{}, false
}

// parse reads a list of messages, which is taken for one request; messages is how many there are.
// The strings in a are then views of payload. a must have been reset.
func (a *attributes) parse(payload string) (messages int, ok bool) {
	host, query, hasPath := "", "", false
	for payload != "" {
		var name string
		if name, payload, ok = cutText(payload); !ok || name == "" || payload == "" {
			return messages, false
		}
		count := int(payload[0])
		payload = payload[1:]
		for range count {
			var v value
			if name, payload, ok = cutText(payload); !ok {
				return messages, false
			}
			if v, payload, ok = cutValue(payload); !ok {
				return messages, false
			}
			hasPath = hasPath || name == "path"
			switch {
			case name == "":
				a.unnamed = true
				continue
			case v.kind == typeNull:
				continue
			case len(a.arguments) == maxArguments:
				return messages, false
			}
			text := a.text(&v)
			switch name {
			case "hits":
				if !a.hitsGiven {
					a.setHits(&v)
				}
				continue
			case "domain":
				setFirst(&a.domain, text)
				continue
			case "query":
				setFirst(&query, text)
				continue
			case "host":
				setFirst(&host, text)
			case "path":
				setFirst(&a.rawPath, text)
			}
			a.arguments = append(a.arguments, argument{name, text})
		}
		messages++
	}
	if hasPath && a.rawPath == "" { // a target without one, such as http://shop.example, means this
		a.rawPath = "/"
		a.arguments = append(a.arguments, argument{"path", "/"})
	}
	if host != "" || query != "" {
		a.request.Host, a.url.RawQuery = host, query
		a.request.URL = &a.url
		a.http.Reset(&a.request, httplimit.ClientIP{}, nil)
		a.hasHTTP = true
	}
	a.accept, _ = a.argument("header.accept")
	return messages, true
}

func setFirst(s *string, text string) {
	if *s == "" {
		*s = text
	}
}

// text returns a value as text.
func (a *attributes) text(v *value) string {
	if v.kind == typeString || v.kind == typeBinary {
		return v.text
	}
	start := len(a.scratch)
	a.scratch = v.appendTo(a.scratch) // earlier views stay valid if append moves it
	return chars.View(a.scratch[start:])
}

// maxHits bounds the hits of a request, on either side of 0, as at the other doors.
const maxHits = 1<<31 - 1

// setHits takes a number, or a string that is one, as a header holds it.
func (a *attributes) setHits(v *value) {
	n, ok := v.integer()
	if v.kind == typeString {
		number, err := strconv.ParseInt(v.text, 10, 64)
		n, ok = number, err == nil
	}
	a.hits, a.hitsGiven, a.hitsBad = n, true, !ok || n < -maxHits || n > maxHits
}

// ambiguous describes a host or a path that servers read in different ways; "" if there is none.
func (a *attributes) ambiguous(slash httplimit.EncodedSlash) string {
	for _, name := range [...]string{"host", "header.host"} {
		if host, ok := a.argument(name); ok && !door.ValidHost(host) {
			return errorHost
		}
	}
	// HAProxy may pass a # on, and the server behind it cut the target off there or not.
	if strings.IndexByte(a.url.RawQuery, '#') >= 0 {
		return "query: " + door.AmbiguousPathDetail("#", "")
	}
	path, query, _ := strings.Cut(a.rawPath, "?")
	if strings.IndexByte(query, '#') >= 0 {
		return "path: " + door.AmbiguousPathDetail("#", "")
	}
	if what := door.AmbiguousPath(path, slash == httplimit.KeepEncodedSlash); what != "" {
		return "path: " + door.AmbiguousPathDetail(what, door.KeepSlash)
	}
	return ""
}

// argument returns the first argument of a name that has a value.
func (a *attributes) argument(name string) (string, bool) {
	isHeader := strings.HasPrefix(name, headerPrefix)
	for i := range a.arguments {
		switch arg := &a.arguments[i]; {
		case arg.text == "":
		case arg.name == name, isHeader && lowerEqual(arg.name, name):
			return arg.text, true
		}
	}
	return "", false
}

const headerPrefix = "header."

// lowerEqual reports whether s in lower case, as far as it is ASCII, is lower.
func lowerEqual(s, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// Attribute implements rule.Attributes.
func (a *attributes) Attribute(name string) (string, bool) {
	switch name {
	case "path":
		if a.rawPath == "" {
			return "", false
		}
		if !a.hasPath {
			a.path, a.hasPath = rule.NormalPath(a.rawPath), true
		}
		return a.path, true
	case "host":
		return a.http.Host(), a.hasHTTP && a.http.Host() != ""
	case "domain", "hits", "query":
		return "", false
	}
	if text, ok := a.argument(name); ok {
		return text, true
	}
	if a.hasHTTP && (name == "header.host" || strings.HasPrefix(name, "query.")) {
		return a.http.Attribute(name)
	}
	return "", false
}

// All implements rule.Attributes.
func (a *attributes) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		seen := make(map[string]bool, len(a.arguments)+4)
		once := func(name string) bool {
			if strings.HasPrefix(name, headerPrefix) {
				name = strings.ToLower(name)
			}
			if seen[name] {
				return true
			}
			seen[name] = true
			text, ok := a.Attribute(name)
			return !ok || yield(name, text)
		}
		for i := range a.arguments {
			if !once(a.arguments[i].name) {
				return
			}
		}
		if !a.hasHTTP || !once("header.host") {
			return
		}
		for name := range a.http.All() {
			if strings.HasPrefix(name, "query.") && !once(name) {
				return
			}
		}
	}
}
