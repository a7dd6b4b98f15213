package file

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/lint"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// keyRules say which keys a mapping may have.
type keyRules struct {
	// the error for a value that is no mapping, such as "ban: expected a mapping of after, within
	// and for"; "" for an entry of a list of the Lyft form
	expected string
	example  string // a hint beside expected
	known    []string
	// of a lenient mapping: known elsewhere, ignored here with a warning
	misplaced []string
	aliases   []string          // known as well, but never suggested
	elsewhere map[string]string // unknown keys with a better hint than the nearest known one
	lenient   bool              // tolerate what envoyproxy/ratelimit tolerates
	lyft      bool              // word errors as envoyproxy/ratelimit does
}

// fields are the entries of a mapping by key.
type fields map[string]yaml.Pair

// val returns the value under key, nil if there is none.
func (f fields) val(key string) *yaml.Node { return f[key].Value }

// key returns the key itself, for its place.
func (f fields) key(key string) *yaml.Node { return f[key].Key }

// keys checks the keys of the mapping v, and returns those that are known. ok is false if v is no
// mapping.
func (l *loader) keys(v *yaml.Node, r keyRules) (m fields, ok bool) {
	if v.Kind != yaml.Mapping {
		if r.expected == "" {
			l.notMap(v)
		} else {
			l.err(v, r.example, "%s, got %s", r.expected, v)
		}
		return nil, false
	}
	m = make(fields, len(v.Pairs))
	lines := make(map[string]int, len(v.Pairs))
	for _, p := range v.Pairs {
		k := p.Key
		if k.Kind != yaml.Scalar {
			l.err(k, "", "expected a plain word as key, got %s", k)
			continue
		}
		name := message.Clip(k.Text)
		if r.lyft || r.lenient {
			if t := plainType(k); t != "string" {
				l.err(k, "quote it", "config error, key is not of type string: %s", name)
				continue
			}
		}
		if first, twice := lines[k.Text]; twice {
			if r.lenient {
				l.warn(lint.DuplicateKey, k, "remove one",
					"the key %q stands twice in one mapping (before in line %d): the last one holds", name, first)
			} else {
				l.err(k, "remove one", "the key %q stands twice in one mapping (before in line %d)", name, first)
				continue
			}
		}
		lines[k.Text] = k.Line
		switch {
		case slices.Contains(r.known, k.Text), slices.Contains(r.aliases, k.Text):
			m[k.Text] = p
		case r.lenient && slices.Contains(r.misplaced, k.Text):
			l.warn(lint.MisplacedKey, k, "remove it, or move it to where it belongs", "the key '%s' has no effect here",
				k.Text)
			l.checkIgnored(p.Value, k.Text)
		case r.lyft || r.lenient:
			l.err(k, r.hint(k.Text), "config error, unknown key '%s'", name)
		default:
			l.err(k, r.hint(k.Text), "unknown key %q", name)
		}
	}
	return m, true
}

// hint says what may have been meant by an unknown key.
func (r *keyRules) hint(key string) string {
	if hint := r.elsewhere[key]; hint != "" {
		return hint
	}
	if near := suggest.Nearest(key, r.known); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "known here: " + strings.Join(r.known, ", ")
}

// The functions below read a value of one type. They report a value that they cannot take, and
// return ok == false.

func (l *loader) text(v *yaml.Node, what string) (s string, ok bool) {
	if v.Kind != yaml.Scalar {
		l.err(v, "", "%s: expected text, got %s", what, v)
		return "", false
	}
	return v.Text, true
}

// texts reads a list of texts, or a single one.
func (l *loader) texts(v *yaml.Node, what string) (list []string, at []*yaml.Node) {
	items := []*yaml.Node{v}
	if v.Kind == yaml.List {
		items = v.Items
	}
	for _, i := range items {
		if s, ok := l.text(i, what); ok {
			list, at = append(list, s), append(at, i)
		}
	}
	return list, at
}

func (l *loader) boolean(v *yaml.Node, what string) (b, ok bool) {
	if v.Kind == yaml.Scalar && !v.Quoted {
		switch v.Text {
		case "true", "True", "TRUE":
			return true, true
		case "false", "False", "FALSE":
			return false, true
		}
	}
	l.err(v, "", "%s: expected true or false, got %s", what, v)
	return false, false
}

func (l *loader) integer(v *yaml.Node, what string, least, most int64) (n int64, ok bool) {
	if v.Kind == yaml.Scalar && !v.Quoted {
		if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil && n >= least && n <= most {
			return n, true
		}
	}
	l.err(v, "", "%s: expected a whole number from %d to %d, got %s", what, least, most, v)
	return 0, false
}

// percent reads a whole percentage, with or without the sign.
func (l *loader) percent(v *yaml.Node, what string, least, most int) (n int, ok bool) {
	n, err := parsePercent(v, least, most)
	if err != nil {
		l.err(v, "", "%s: expected %v", what, err)
	}
	return n, err == nil
}

// parsePercent's error says what was expected.
func parsePercent(v *yaml.Node, least, most int) (int, error) {
	if v.Kind == yaml.Scalar {
		digits := strings.TrimSpace(strings.TrimSuffix(v.Text, "%"))
		if n, err := strconv.Atoi(digits); err == nil && n >= least && n <= most && digits[0] != '+' {
			return n, nil
		}
	}
	return 0, fmt.Errorf("a whole percentage from %d%% to %d%%, got %s", least, most, v)
}

// duration reads a duration above 0.
func (l *loader) duration(v *yaml.Node, what string) (d time.Duration, ok bool) {
	if v.Kind != yaml.Scalar {
		l.err(v, "as in 30s", "%s: expected a duration, got %s", what, v)
		return 0, false
	}
	d, err := rule.ParseDuration(v.Text)
	if err == nil && d <= 0 {
		err = fmt.Errorf("the duration must be longer than 0, got %s", v.Text)
	}
	if err == nil && d%time.Microsecond != 0 {
		err = fmt.Errorf("the duration must be a whole number of microseconds, got %s", v.Text)
	}
	if err != nil {
		l.err(v, "", "%s: %v", what, err)
		return 0, false
	}
	return d, true
}

// span is duration with a longest one.
func (l *loader) span(v *yaml.Node, what string, most time.Duration) (d time.Duration, ok bool) {
	if d, ok = l.duration(v, what); ok && d > most {
		l.err(v, "", "%s: expected at most %s, got %s", what, message.DaysOrHours(most), message.Clip(v.Text))
		return 0, false
	}
	return d, ok
}

// oneOf reads one of words; "" if it is none.
func (l *loader) oneOf(v *yaml.Node, what string, words ...string) string {
	if v.Kind == yaml.Scalar && slices.Contains(words, v.Text) {
		return v.Text
	}
	hint := ""
	if v.Kind == yaml.Scalar {
		if near := suggest.Nearest(v.Text, words); near != "" {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
	}
	l.err(v, hint, "%s: expected %s, got %s", what, strings.Join(words, ", "), v)
	return ""
}

// What follows reads values as envoyproxy/ratelimit does, which goes by YAML 1.1
// (gopkg.in/yaml.v2).

var yamlFloat = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[-+]?[0-9]*\.?[0-9]+([eE][-+][0-9]+)?$`)
})

// plainType is the type of the scalar v in YAML 1.1: string, bool, int, float, timestamp or null.
func plainType(v *yaml.Node) string {
	if v.Kind == yaml.Null {
		return "null"
	}
	if v.Quoted || v.Text == "" {
		return "string"
	}
	if _, ok := yamlBool(v.Text); ok {
		return "bool"
	}
	switch c := v.Text[0]; {
	case c == '.':
		switch strings.ToLower(v.Text) {
		case ".inf", ".nan":
			return "float"
		}
	case c != '-' && c != '+' && (c < '0' || c > '9'):
		return "string"
	}
	plain := strings.ReplaceAll(v.Text, "_", "")
	if _, err := strconv.ParseInt(plain, 0, 64); err == nil {
		return "int"
	}
	if _, err := strconv.ParseUint(plain, 0, 64); err == nil {
		return "int"
	}
	if yamlFloat().MatchString(plain) {
		return "float"
	}
	switch strings.ToLower(plain) {
	case "+.inf", "-.inf":
		return "float"
	}
	for _, layout := range []string{"2006-1-2", "2006-1-2 15:4:5.999999999", "2006-1-2T15:4:5.999999999Z07:00",
		"2006-1-2t15:4:5.999999999Z07:00"} {
		if _, err := time.Parse(layout, v.Text); err == nil {
			return "timestamp"
		}
	}
	return "string"
}

func yamlBool(s string) (b, ok bool) {
	switch s {
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}

// lyftScalar reports what no scalar of the Lyft form may be.
func (l *loader) lyftScalar(v *yaml.Node, what string) bool {
	switch v.Kind {
	case yaml.Bad:
		return false
	case yaml.Null:
		l.warn(lint.EmptyValue, v, "remove the key, or give it a value", "%s has no value", what)
		return true
	case yaml.Mapping, yaml.List:
		l.err(v, "", "error loading config file: %s: expected a single value, got %s", what, v)
		return false
	}
	if t := plainType(v); t == "float" || t == "timestamp" {
		l.err(v, "quote it if it is text", "error checking config: %s: a %s such as %s cannot stand here", what, t,
			message.Clip(v.Text))
		return false
	}
	return true
}

// lyftText reads a text; a number or bool is taken as it is written, with a warning.
func (l *loader) lyftText(v *yaml.Node, what string) (s string, ok bool) {
	if !l.lyftScalar(v, what) {
		return "", false
	}
	if t := plainType(v); t == "int" || t == "bool" && len(v.Text) > 1 {
		l.warn(lint.NumberAsText, v, "quote it", "%s: the %s %s is taken as text", what, t, v.Text)
	}
	return v.Text, true
}

func (l *loader) lyftBool(v *yaml.Node, what string) bool {
	if !l.lyftScalar(v, what) || v.Kind == yaml.Null {
		return false
	}
	if plainType(v) == "bool" {
		b, _ := yamlBool(v.Text)
		return b
	}
	l.err(v, "", "error loading config file: %s: expected true or false, got %s", what, v)
	return false
}

func (l *loader) lyftUint32(v *yaml.Node, what string) (n uint32, ok bool) {
	if !l.lyftScalar(v, what) {
		return 0, false
	}
	if v.Kind == yaml.Null {
		return 0, true
	}
	if plainType(v) == "int" {
		if n, err := strconv.ParseUint(strings.ReplaceAll(v.Text, "_", ""), 0, 32); err == nil {
			return uint32(n), true
		}
	}
	hint := ""
	if v.Quoted {
		hint = "without quotes"
	}
	l.err(v, hint, "error loading config file: %s: expected a whole number from 0 to 4294967295, got %s", what, v)
	return 0, false
}

// checkIgnored checks what stands under a key without effect as envoyproxy/ratelimit does: only
// known keys, only maps in lists.
func (l *loader) checkIgnored(v *yaml.Node, key string) {
	switch v.Kind {
	case yaml.Scalar:
		l.lyftScalar(v, key)
	case yaml.Mapping:
		if key == "metadata" {
			return
		}
		keys, _ := l.keys(v, keyRules{known: lyftKeys, lenient: true, lyft: true})
		for k, p := range keys {
			l.checkIgnored(p.Value, k)
		}
	case yaml.List:
		for _, i := range v.Items {
			if i.Kind != yaml.Mapping {
				l.notMap(i)
				continue
			}
			l.checkIgnored(i, "")
		}
	}
}

// notMap reports an entry of a list of the Lyft form that is no mapping.
func (l *loader) notMap(v *yaml.Node) {
	const expected = "config error, yaml file contains list of type other than map: %s"
	if v.Kind != yaml.Scalar {
		l.err(v, "", expected, v)
		return
	}
	l.err(v, "", expected, message.Clip(v.Text))
}
