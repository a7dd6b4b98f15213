package httpapi

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/weir-rl/weir/internal/door/answer"
)

const attributesRule = "in a query each attribute is a parameter of its own, as in ?user=ada; POST takes all of them as an object"

// nested reports whether the name of a parameter is of a client that puts attributes into one
// parameter, as an object or a list: ?attributes[user]=ada, ?attributes={}, ?attributes.user=ada,
// ?user[]=ada. No rule would find them, so that the request met no limit. Only behind query. and
// header. a name is whatever others have chosen.
func nested(name string) bool {
	if rest, ok := strings.CutPrefix(name, "attributes"); ok && (rest == "" || rest[0] == '.') {
		return true
	}
	if strings.IndexByte(name, '[') < 0 && strings.IndexByte(name, ']') < 0 {
		return false
	}
	return !strings.HasPrefix(name, "query.") && !strings.HasPrefix(name, "header.")
}

// questionOfQuery reads a request from the query of a URL.
func questionOfQuery(raw string, q *question) error {
	q.reset()
	bad := func(field, message string) error { return &answer.FieldError{Field: field, Message: message} }
	var domain, hits, maxDelay bool
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		var err error
		if name, err = url.QueryUnescape(name); err != nil {
			return bad("query", "holds a bad percent-encoding in a name")
		}
		if value, err = url.QueryUnescape(value); err != nil {
			return bad(answer.Printable(name), "holds a bad percent-encoding")
		}
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return bad(answer.Printable(name), "is not UTF-8")
		}
		twice, ok, hint := false, true, ""
		switch name {
		case "":
			return bad("query", "a parameter has an empty name")
		case "domain":
			twice, domain = domain, true
			q.domain = value
		case "hits":
			twice, hits = hits, true
			q.hits, ok = parseHits(value)
			hint = hitsRule
		case "max_delay":
			twice, maxDelay = maxDelay, true
			q.maxDelay, ok = parseMaxDelay(value)
			hint = maxDelayRule
		default:
			if nested(name) {
				return bad(answer.Printable(name), "is no attribute: "+attributesRule)
			}
			twice = !q.attrs.add(name, value)
		}
		if twice {
			return bad(answer.Printable(name), "is given twice")
		}
		if !ok {
			return bad(name, hint)
		}
	}
	return nil
}
