package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/cel"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// attributeName warns of the name of an attribute that looks like another one, which doors supply.
// It ignores names in the configuration.
func (l *linter) attributeName(r *rule.Rule, subject, name string, pos rule.Position) {
	if l.options.Identity[name] != "" {
		return
	}
	if meant, hint := meantAttribute(name); hint != "" {
		l.warnOf(warnAttributeName, subject, r, pos, hint, "%s is no attribute that doors supply of themselves", name)
	} else if meant != "" {
		l.warnOf(warnAttributeName, subject, r, pos, "did you mean "+meant+"?",
			"%s is no attribute that doors supply of themselves", name)
	}
}

// supplied are the attributes of single words that doors supply. They are in lower case.
var supplied = []string{"ip", "method", "path", "host", "user"}

// foreignNames are the names that other programs have for an attribute of these, as plainName has
// them.
var foreignNames = map[string]string{
	"clientip": "ip", "clientaddr": "ip", "clientaddress": "ip", "clienthost": "ip",
	"remoteip": "ip", "remoteaddr": "ip", "remoteaddress": "ip", "remotehost": "ip", "binaryremoteaddr": "ip",
	"ipaddr": "ip", "ipaddress": "ip", "sourceip": "ip", "sourceaddress": "ip", "srcip": "ip", "realip": "ip", "peerip": "ip",
	"httpmethod": "method", "requestmethod": "method", "verb": "method",
	"uri": "path", "url": "path", "requesturi": "path", "requesturl": "path", "requestpath": "path", "urlpath": "path", "httppath": "path",
	"hostname": "host", "httphost": "host", "requesthost": "host", "authority": "host", "servername": "host",
}

// addressFields are the fields of a request in which proxies name the client, as plainName has
// them.
var addressFields = []string{
	"xforwardedfor", "xrealip", "xclientip", "cfconnectingip", "trueclientip", "fastlyclientip", "forwarded",
}

// plainFields are well-known fields of a request. Some of them isField knows even in lower case, in
// which other names may be attributes of a caller's own.
var plainFields = []string{
	"accept", "accept-encoding", "accept-language", "authorization", "content-length", "content-type", "cookie", "origin",
	"proxy-authorization", "referer", "user-agent",
}

// plainName returns a name in lower case, without what other programs put around a variable, and
// without the signs between its words.
func plainName(name string) string {
	return strings.NewReplacer("-", "", "_", "", ".", "", ":", "").Replace(strings.ToLower(strings.Trim(name, "${}%")))
}

// meantAttribute returns the attribute that doors supply and that a name most likely means; "" if
// the name looks like none. The hint says more than that, if it is not empty.
func meantAttribute(name string) (meant, hint string) {
	bare := strings.Trim(name, "${}%")
	lower := strings.ToLower(bare)
	plain := plainName(name)
	switch {
	case name == rule.RemoteAddress || slices.Contains(supplied, name): // one is of Envoy's
		return "", ""
	case slices.Contains(supplied, lower):
		return lower, ""
	case slices.Contains(addressFields, plain):
		return "ip", "did you mean ip? client_ip says in which field trusted proxies name the client"
	case foreignNames[plain] != "":
		return foreignNames[plain], ""
	case isField(name):
		return "header." + lower, ""
	}
	if field, ok := nginxVariable(name); ok {
		return field, ""
	}
	if head, rest, ok := cutSource(bare); ok {
		switch head {
		case "header", "query":
			return head + "." + strings.ToLower(rest), ""
		case "cookie", "jwt", "basic", "bearer":
			return "", fmt.Sprintf("name an attribute in identity, as in: %s: %q, and write that here",
				attributeFor(rest), head+":"+rest)
		}
	}
	return misspelt(name), ""
}

// isField reports whether a name is the name of a field of a request, without header. before it.
func isField(name string) bool {
	lower := strings.ToLower(name)
	switch {
	case strings.ContainsAny(name, ".:_"):
		return false
	case strings.HasPrefix(lower, "x-") && len(name) > 2:
		return true
	case slices.Contains(plainFields, lower):
		return name != lower || strings.Contains(lower, "-") || lower == "authorization" || lower == "cookie" ||
			lower == "referer"
	}
	return strings.Contains(name, "-") && 'A' <= name[0] && name[0] <= 'Z' // as in Api-Key
}

// nginxVariable returns the attribute that a variable of nginx stands for, such as $http_x_api_key.
func nginxVariable(name string) (attribute string, ok bool) {
	if rest, ok := strings.CutPrefix(name, "$http_"); ok && rest != "" {
		return "header." + strings.ReplaceAll(strings.ToLower(rest), "_", "-"), true
	}
	if rest, ok := strings.CutPrefix(name, "$arg_"); ok && rest != "" {
		return "query." + rest, true
	}
	return "", false
}

// cutSource cuts a name that is written as a source of identity (header:x), as an index
// (headers[x]), or with the word for many cookies before a dot.
func cutSource(name string) (head, rest string, ok bool) {
	i := strings.IndexAny(name, ":[")
	if i < 0 {
		if head, rest, ok = strings.Cut(name, "."); !ok || head != "cookie" && head != "cookies" {
			return "", "", false
		}
	} else if head, rest = name[:i], strings.Trim(name[i+1:], `]"'`); rest == "" {
		return "", "", false
	}
	for _, known := range []string{"header", "query", "cookie", "jwt", "basic", "bearer"} {
		if head = strings.ToLower(head); head == known || head == known+"s" {
			return known, rest, true
		}
	}
	return "", "", false
}

// attributeFor is the name of an attribute for a value that has this name elsewhere.
func attributeFor(name string) string {
	if name = strings.ToLower(name); name == "sub" || !rule.ValidAttribute(name) {
		return "user"
	}
	return name
}

// misspelt returns the attribute that a name is one slip away from: a letter more, a letter less,
// or two swapped; "" if there is none. Another letter makes another word (post, cost, hash), which
// is left alone, and so does a letter more or less in a short one (pat, hosts, users).
func misspelt(name string) (meant string) {
	for _, known := range []string{"method", "path", "host", "user"} {
		if name != known && (len(name) != len(known) && len(known) > 4 || sameLetters(name, known)) &&
			suggest.Nearest(name, []string{known}) != "" &&
			suggest.Distance(name, known, 3) == 1 {
			meant = known
		}
	}
	if head, rest, dotted := strings.Cut(name, "."); dotted {
		for _, known := range []string{"header", "query"} {
			if head != known && suggest.Nearest(head, []string{known}) != "" && suggest.Distance(head, known, 3) <= 1 {
				meant = known + "." + rest
			}
		}
	}
	return meant
}

func sameLetters(a, b string) bool {
	x, y := []byte(a), []byte(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// besideWhen are the keys of a limit that nobody calls an attribute.
var besideWhen = []string{
	"if", "when", "per", "allow", "algorithm", "buckets", "paths", "count_denied", "cost_min", "cost_after", "cost_timeout",
	"replaces", "override", "throttle", "on_limit", "on_store_error", "consistency", "enforce",
}

// misplaced warns of a key of a limit that stands among the attributes of when or exempt, and
// reports whether c is one. what names the attribute in messages.
func (l *linter) misplaced(r *rule.Rule, subject, what string, c *rule.Condition) bool {
	if !slices.Contains(besideWhen, c.Attribute) || l.options.Identity[c.Attribute] != "" {
		return false
	}
	hint := c.Attribute + " stands beside when, as a key of the limit"
	if subject == "exempt" {
		hint = "exempt takes attributes alone; a limit with allow: unlimited, replaces and " + c.Attribute +
			" says the rest"
	}
	if c.Attribute == "paths" {
		hint = "did you mean path? Else " + hint
	}
	l.warnOf(warnAttributeName, subject, r, c.Pos, hint,
		"%s is taken for an attribute called %s, which no door supplies of itself", what, c.Attribute)
	return true
}

// read warns of the attributes that the expressions of r read.
func (l *linter) read(r *rule.Rule) {
	if r.Exprs == nil {
		return
	}
	for _, e := range []any{r.Exprs.If, r.Exprs.Cost} {
		reader, ok := e.(rule.Reader)
		if !ok {
			continue
		}
		names, _ := reader.Reads()
		for _, name := range names {
			if rest, ok := strings.CutPrefix(name, "header."); ok && rest != strings.ToLower(rest) {
				l.warn(NeverMatches, r, r.Pos, fmt.Sprintf("write header[%q]", strings.ToLower(rest)),
					"HTTP doors supply the names of headers in lower case, so that header[%q] is never there", rest)
				continue
			}
			l.attributeName(r, r.Name, name, r.Pos)
		}
	}
}

// expressions warns of a cost that a client chooses, and of an if that fails where the client
// leaves a value out.
func (l *linter) expressions(r *rule.Rule) {
	if !bites(r) {
		return
	}
	if r.Exprs != nil && r.Exprs.Cost != nil && r.CostAfter == "" {
		names, _ := r.Exprs.Cost.Reads()
		names = cel.ClientsOf(names)
		if p, ok := r.Exprs.Cost.(*cel.Program); ok {
			for _, name := range p.Numbers() {
				// Without the configuration it is not known whether the user is verified.
				if l.unverified(name) != "" || name == "user" && l.options.Identity == nil {
					names = append(names, name)
				}
			}
		}
		if len(names) > 0 {
			slices.Sort(names)
			l.warn(warnForgeableCost, r, r.Pos,
				"take cost_after, over what the server answers; or let a gateway set it, and ignore this",
				"cost: a client writes %s as it likes, and so sets its own cost", message.Listed(slices.Compact(names)))
		}
	}
	if r.If == "" || r.Exprs == nil || r.Exprs.If == nil {
		return
	}
	for _, name := range cel.FailsWithout(r.If) {
		prefix, key := "attr", name
		if kind, rest, ok := strings.Cut(name, "."); ok && (kind == "header" || kind == "query") {
			prefix, key = kind, rest
		}
		l.warn(warnAbsentKey, r, r.Pos, fmt.Sprintf("write get(%s, %q, %q)", prefix, key, ""),
			"if: without %s the expression fails, so that the limit is not met, where an empty one would meet it", name)
	}
}
