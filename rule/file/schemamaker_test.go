package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// schemaFile is the JSON Schema of rule files. Command weir prints it (weir lint --schema rules).
var schemaFile = filepath.Join("..", "..", "cmd", "weir", "schemas", "rules.schema.json")

// object is a part of a JSON Schema.
type object = map[string]any

// site is a place of a rule file where a mapping stands.
type site struct {
	name string
	// a file with %s in the place of the mapping
	file string
	// entries beside which each key of the mapping can be tried, in flow style
	beside map[string]string
	// what the keys take, in the schema; the keys themselves are asked of the loader
	takes func(s *schemaMaker) object
	about map[string]string // of keys that docs/reference/rules.md has no row for
	// keys that the loader tolerates without effect
	lenient  bool
	required []string
}

// sites are all mappings with keys of their own.
func sites() []site {
	limit := func(inside string) string {
		return "limits: [{name: a, per: [ip], allow: 10/s, " + inside + "}]"
	}
	descriptor := func(inside string) string { return "domain: d\ndescriptors: [{key: a, " + inside + "}]" }
	return []site{
		{name: "root", file: "%s", lenient: true, takes: (*schemaMaker).root, about: map[string]string{
			"domain":      "the domain that requests name; \"default\" if it is left out",
			"exempt":      "attribute: pattern; a request that any one entry matches is never limited and never banned",
			"groups":      "first: of the limits of this file a request meets the first one only",
			"limits":      "limits of the native form",
			"descriptors": "limits as envoyproxy/ratelimit has them",
		}, beside: map[string]string{"domain": "d", "limits": "[{name: a, allow: 1/s}]"}},
		{name: "limit", file: "limits: [%s]", takes: (*schemaMaker).limit, required: []string{"name", "allow"},
			beside: map[string]string{"name": "a", "per": "[ip]", "allow": "10/s"}},
		{name: "allow", file: "limits: [{name: a, allow: %s}]", required: []string{"rate"},
			takes: func(*schemaMaker) object {
				return object{"rate": textLike(windowPattern), "burst": integer(0, algo.MaxN)}
			}, about: map[string]string{"rate": "N/unit or N/duration", "burst": "the most at one instant"},
			beside: map[string]string{"rate": "10/s"}},
		{name: "ban", file: limit("ban: %s"), required: []string{"after", "within", "for"},
			takes: func(*schemaMaker) object {
				at := words("http", "nftables")
				return object{"after": integer(1, algo.MaxLogN), "within": duration(), "for": duration(),
					"scope": words("limit", "domain"), "at": oneOrMore(at)}
			}, about: map[string]string{"after": "so many denials of a key", "within": "within this time",
				"for": "ban it for this time", "scope": "limit: wherever the limit applies; domain: in the whole domain",
				"at": "nftables: the kernel drops the packets of the address, too"},
			beside: map[string]string{"after": "20", "within": "10m", "for": "15m"}},
		{name: "throttle", file: limit("throttle: %s"), takes: func(s *schemaMaker) object {
			return object{"soft": either(percent(0, algo.MaxSoft), s.ref("soft")), "elastic": s.ref("elastic")}
		}, about: map[string]string{"soft": "a margin above the limit, in which requests are admitted and marked",
			"elastic": "a share of the limit that follows a signal"}, beside: map[string]string{"soft": "10%"}},
		{name: "soft", file: limit("throttle: {soft: %s}"), required: []string{"over"}, takes: func(*schemaMaker) object {
			return object{"over": percent(0, algo.MaxSoft), "for": duration()}
		}, about: map[string]string{"over": "the margin", "for": "how long it stays open after its first use"},
			beside: map[string]string{"over": "50%"}},
		{name: "elastic", file: limit("throttle: {elastic: %s}"), required: []string{"signal", "curve"},
			takes: func(*schemaMaker) object {
				signal := text()
				signal["pattern"], signal["examples"] = "^[a-z0-9_.-]{1,100}$", rule.Signals
				return object{"signal": signal, "curve": object{"type": "object", "minProperties": 1,
					"propertyNames": object{"pattern": percentPattern(0, 100)}, "additionalProperties": percent(0, maxShare)}}
			}, about: map[string]string{"signal": "one of the server's own, or the name of a pushed one",
				"curve": "from values of the signal to shares of the limit, as in {50%: 200%, 95%: 25%}"},
			beside: map[string]string{"signal": "cpu", "curve": "{50%: 100%}"}},
		{name: "phase", file: limit("schedule: [%s]"), required: []string{"allow"}, takes: func(s *schemaMaker) object {
			return object{"days": oneOrMore(text()), "between": textLike("-"), "allow": s.allow()}
		}, about: map[string]string{"days": "as in mon-fri, or \"sat,sun\"; every day if it is left out",
			"between": "a part of the day, as in \"08:00-20:00\"", "allow": "the limit at these times"},
			beside: map[string]string{"days": "mon-fri", "allow": "5/s"}},
		{name: "on_limit", file: limit("on_limit: %s"), takes: func(s *schemaMaker) object {
			return object{"wait": either(duration(), s.ref("wait")), "defer": name()}
		}, about: map[string]string{"wait": "hold the request for so long at most",
			"defer": "answer 202, and forward the request later, from the queue of this name"}},
		{name: "wait", file: limit("on_limit: {wait: %s}"), required: []string{"max"}, takes: func(*schemaMaker) object {
			return object{"max": duration(), "queue": integer(1, maxWaitQueue)}
		}, about: map[string]string{"max": "the longest wait", "queue": "how many requests of one key may wait"},
			beside: map[string]string{"max": "2s"}},
		{name: "consistency", file: limit("consistency: %s"), takes: func(s *schemaMaker) object {
			return object{"lease": percent(algo.MinLease, algo.MaxLease), "for": duration(),
				"regions": either(words("sync"), s.ref("regions"))}
		}, about: map[string]string{"lease": "the share of the limit that may be lent to servers",
			"for": "how long lent units may be used at least", "regions": "how the limit holds over regions"},
			beside: map[string]string{"lease": "5%"}},
		{name: "regions", file: limit("consistency: {regions: %s}"), required: []string{"over"},
			takes: func(*schemaMaker) object {
				return object{"over": either(words("sync"), percent(0, mostOver)), "tell": percent(1, mostTell)}
			}, about: map[string]string{"over": "how much more than the limit all regions together may admit",
				"tell": "how much of the limit a region uses of a key before it reports"},
			beside: map[string]string{"over": "20%"}},
		{name: "response", file: limit("response: %s"), takes: func(s *schemaMaker) object {
			return object{"status": integer(400, 599), "content_type": text(), "body": either(text(), s.ref("body")),
				"headers": object{"type": "object", "additionalProperties": text()}}
		}, about: map[string]string{"status": "429 if it is left out",
			"headers":      "names and values; {{.Limit}} is a template",
			"content_type": "of a single body", "body": "one text, or json, html and text, of which Accept chooses"}},
		{name: "body", file: limit("response: {body: %s}"), takes: func(*schemaMaker) object {
			return object{"json": text(), "html": text(), "text": text()}
		}, about: map[string]string{"json": "sent as application/json", "html": "sent as text/html",
			"text": "sent as text/plain"}},
		{name: "descriptor", file: "domain: d\ndescriptors: [%s]", lenient: true, required: []string{"key"},
			takes: (*schemaMaker).descriptor, about: lyftAbout, beside: map[string]string{"key": "a", "value": "\"b*\""}},
		{name: "rate_limit", file: descriptor("rate_limit: %s"), lenient: true, takes: (*schemaMaker).rateLimit,
			about:  lyftAbout,
			beside: map[string]string{"unit": "minute", "requests_per_unit": "10", "per": "[ip]"}},
		{name: "replaced", file: descriptor("rate_limit: {unit: minute, replaces: [%s]}"), lenient: true,
			required: []string{"name"}, takes: func(*schemaMaker) object { return object{"name": lyftText()} },
			about: map[string]string{"name": "of the limit that is replaced"}, beside: map[string]string{"name": "b"}},
	}
}

// lyftAbout describes the keys of the Lyft form.
var lyftAbout = map[string]string{
	"key": "the key of a descriptor's entry", "value": "its value, which may hold *; any if it is left out",
	"rate_limit":  "the limit of the descriptor",
	"descriptors": "descriptors with one entry more", "shadow_mode": "only count what the limit would refuse",
	"quota_mode":        "refuse only together with the other limits of the request",
	"detailed_metric":   "put the values of the request into the metric (metrics.detailed)",
	"value_to_metric":   "put the value into the metric (metrics.detailed)",
	"share_threshold":   "all values that the wildcard matches share one counter",
	"metadata":          "returned with the answer",
	"unit":              "the unit of the window",
	"requests_per_unit": "how many requests the window admits", "request_per_unit": "taken as requests_per_unit",
	"unlimited": "no limit", "calendar": "windows of the calendar, in place of 30 and 365 days",
	"name": "of the limit, for replaces", "replaces": "limits that do not hold where this one does, as {name: other}",
	"allow": "the native form in place of unit and requests_per_unit",
}

// Patterns of scalars.
const (
	spanPattern   = `([0-9]*\.?[0-9]+(ns|us|µs|μs|ms|s|m|h|d|w))+`
	windowPattern = `^\s*[0-9]+\s*/\s*([0-9].*|[a-z]+)\s*$`
	ratePattern   = `^\s*(unlimited|[0-9]+(\s+concurrent)?|[0-9]+\s*/\s*([0-9].*|[a-z]+))\s*$`
	namePattern   = `^[A-Za-z0-9_.-]{1,200}$`
)

func text() object { return object{"type": []string{"string", "number", "boolean"}} }

// textLike is a text that has a form; it cannot be a number.
func textLike(pattern string) object { return object{"type": "string", "pattern": pattern} }

// name may be a number as far as YAML goes.
func name() object {
	return object{"type": []string{"string", "number", "boolean"}, "pattern": namePattern}
}

func lyftText() object {
	return object{"type": []string{"string", "integer", "boolean", "null"}}
}

// lyftBool takes what YAML 1.1 has for true and false.
func lyftBool() object {
	return object{"type": []string{"boolean", "string", "null"},
		"pattern": "^([yYnN]|[yY]es|YES|[nN]o|NO|[oO]n|ON|[oO]ff|OFF)$"}
}

func integer(least, most int64) object {
	return object{"type": "integer", "minimum": least, "maximum": most}
}

func percent(least, most int) object {
	return object{"type": []string{"string", "integer"}, "pattern": percentPattern(least, most),
		"minimum": least, "maximum": most}
}

// percentPattern matches the percentages from least, 0 or 1, to most, a digit and zeros.
func percentPattern(least, most int) string {
	text := strconv.Itoa(most)
	first, zeros := text[0], len(text)-1
	shorter := fmt.Sprintf("%s[0-9]{0,%d}", []string{"[0-9]", "[1-9]"}[least], zeros-1)
	if first > '1' {
		shorter += fmt.Sprintf("|[1-%c][0-9]{%d}", first-1, zeros)
	}
	return fmt.Sprintf(`^\s*0*(%s|%s)\s*%%?\s*$`, shorter, text)
}

func duration() object            { return textLike("^" + spanPattern + "$") }
func words(list ...string) object { return object{"enum": list} }
func oneOrMore(o object) object {
	return either(o, object{"type": "array", "minItems": 1, "items": o})
}
func either(list ...object) object { return object{"anyOf": list} }

// schemaMaker makes the schema.
type schemaMaker struct {
	t           *testing.T
	definitions object
	rows        map[string]string // what docs/reference/rules.md says of a key
}

func (s *schemaMaker) ref(name string) object { return object{"$ref": "#/definitions/" + name} }

func (s *schemaMaker) allow() object {
	one := either(object{"type": "string", "pattern": ratePattern}, integer(0, algo.MaxFixedN), s.ref("allow"))
	return either(one, object{"type": "array", "minItems": 1, "maxItems": maxWindows, "items": one})
}

// conditions are those of when and exempt.
func (s *schemaMaker) conditions() object {
	known := object{}
	for name, about := range map[string]string{"method": "in upper case", "path": "/api/** is the folder and all below it",
		"host": "in lower case, without a port", "ip": "an address, or a network such as 10.0.0.0/8",
		"user": "the signed-in user"} {
		known[name] = object{"$ref": "#/definitions/patterns", "description": about}
	}
	s.definitions["patterns"] = oneOrMore(text())
	return object{"type": "object", "properties": known, "propertyNames": object{"pattern": `^[^\s\x00-\x1f\x7f]{1,256}$`},
		"additionalProperties": s.ref("patterns")}
}

func (s *schemaMaker) root() object {
	list := func(name string) object {
		return object{"type": []string{"array", "null"}, "items": s.ref(name)}
	}
	return object{"domain": text(), "exempt": s.conditions(), "groups": words("first"),
		"paths": words(pathSpellings...), "limits": list("limit"), "descriptors": list("descriptor")}
}

// limit are the keys of a native limit; those of options have their row there.
func (s *schemaMaker) limit() object {
	o := s.options()
	o["name"], o["when"], o["paths"] = name(), s.conditions(), words(pathSpellings...)
	o["per"] = either(text(), object{"type": "array", "items": text(), "maxItems": 16})
	o["allow"], o["replaces"] = s.allow(), either(text(), object{"type": "array", "items": text()})
	o["override"] = object{"type": "object", "additionalProperties": s.allow()}
	return o
}

// options are what both forms share.
func (s *schemaMaker) options() object {
	expression := object{"type": []string{"string", "boolean"}}
	return object{
		"algorithm": words(algorithmNames()...), "buckets": integer(1, algo.MaxK), "align": words("first_request"),
		"refill":   words("continuous", "interval"),
		"timezone": object{"type": "string", "minLength": 1, "examples": []string{"UTC", "Europe/Berlin"}},
		"timeout":  duration(), "count_denied": object{"type": "boolean"},
		"throttle": either(words("hard"), s.ref("throttle")),
		"schedule": object{"type": "array", "minItems": 1, "maxItems": maxPhases, "items": s.ref("phase")},
		"if":       expression, "cost": object{"type": []string{"integer", "string"}, "minimum": 0, "maximum": int64(algo.MaxCost)},
		"cost_min": integer(0, algo.MaxCost), "warn": percent(1, 100), "enforce": either(words("all"), percent(0, 100)),
		"on_store_error": words("local", "allow", "deny"), "response": s.ref("response"),
		"on_limit": either(words("reject", "shadow"), s.ref("on_limit")),
		"priority": words("critical", "default", "sheddable"), "ban": s.ref("ban"), "cost_after": text(),
		"cost_timeout": duration(), "consistency": either(words("exact"), s.ref("consistency")),
	}
}

func (s *schemaMaker) descriptor() object {
	return object{"key": lyftText(), "value": lyftText(),
		"rate_limit":  either(s.ref("rate_limit"), object{"type": "null"}),
		"descriptors": object{"type": []string{"array", "null"}, "items": s.ref("descriptor")},
		"shadow_mode": lyftBool(), "quota_mode": lyftBool(), "detailed_metric": lyftBool(),
		"value_to_metric": lyftBool(), "share_threshold": lyftBool(), "metadata": object{"type": []string{"object", "null"}}}
}

func (s *schemaMaker) rateLimit() object {
	o := s.options()
	o["when"], o["per"] = s.conditions(), either(text(), object{"type": "array", "items": text(), "maxItems": 16})
	o["allow"], o["override"] = s.allow(), object{"type": "object", "additionalProperties": s.allow()}
	o["name"], o["calendar"], o["unlimited"] = lyftText(), lyftBool(), lyftBool()
	o["replaces"] = object{"type": []string{"array", "null"}, "items": s.ref("replaced")}
	var units []string
	for _, u := range message.Units {
		units = append(units, u, strings.ToUpper(u))
	}
	// it may stand in any case, and is any text beside unlimited
	o["unit"] = either(words(units...), object{"type": []string{"string", "null"}})
	number := object{"type": []string{"integer", "string", "null"}, "minimum": 0, "maximum": int64(1<<32 - 1),
		"pattern": "^(0[xXoObB][0-9a-fA-F_]+|[0-9]+(_[0-9]+)+)$"} // what is a number in YAML 1.1 alone
	o["requests_per_unit"], o["request_per_unit"] = number, number
	return o
}

// knownAt asks the loader which keys a mapping has.
func (s *schemaMaker) knownAt(p site) []string {
	_, _, err := Load([]Source{{Name: "a.yaml", Data: fmt.Appendf(nil, p.file, "{qqqqqq: 1}")}}, Options{})
	var problems rule.Problems
	errors.As(err, &problems)
	for _, problem := range problems {
		if list, ok := strings.CutPrefix(problem.Hint, "known here: "); ok {
			return strings.Split(list, ", ")
		}
	}
	s.t.Fatalf("%s: the loader does not say which keys it knows: %v", p.name, err)
	return nil
}

// mapping is the schema of the mapping at a site.
func (s *schemaMaker) mapping(p site) object {
	takes, known := p.takes(s), s.knownAt(p)
	if p.name == "rate_limit" {
		known = append(known, rateLimitAliases...)
	}
	for key := range takes {
		if !slices.Contains(known, key) {
			s.t.Errorf("%s: the schema has a key %s, which the loader does not know", p.name, key)
		}
	}
	properties := object{}
	for _, key := range known {
		o, ok := takes[key].(object)
		if !ok {
			s.t.Errorf("%s: the schema does not say what the key %s takes", p.name, key)
			continue
		}
		about := p.about[key]
		if about == "" {
			about = s.rows[key]
		}
		if about == "" {
			s.t.Errorf("%s: nothing is said of the key %s", p.name, key)
		}
		o = maps.Clone(o)
		if ref, is := o["$ref"]; is { // beside which nothing counts
			o = object{"allOf": []object{{"$ref": ref}}}
		}
		if o["description"] = about; optionFits()[key] != nil && p.name != "allow" {
			o["description"] = "for " + fits(key) + ": " + about
		}
		properties[key] = o
	}
	if p.lenient {
		for _, key := range lyftKeys {
			if properties[key] == nil {
				properties[key] = object{"description": "has no effect here", "deprecated": true, "doNotSuggest": true}
			}
		}
	}
	o := object{"type": "object", "properties": properties, "additionalProperties": false}
	switch p.name {
	case "throttle", "consistency", "regions", "body":
		o["minProperties"] = 1
	case "on_limit":
		o["minProperties"], o["maxProperties"] = 1, 1
	case "root": // only a file of the Lyft form may have what has no effect
		var native []object
		for _, key := range []string{"limits", "exempt", "groups", "paths"} {
			native = append(native, object{"required": []string{key}})
		}
		o["if"], o["then"] = either(native...), object{"propertyNames": object{"enum": known}}
		o["else"] = object{"required": []string{"domain"}}
	}
	if p.required != nil {
		o["required"] = p.required
	}
	return o
}

// keyRows are the rows of the table of keys in docs/reference/rules.md, as plain text.
func keyRows(t *testing.T) map[string]string {
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "rules.md"))
	if err != nil {
		t.Fatal(err)
	}
	link, rows := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`), map[string]string{}
	_, table, _ := strings.Cut(string(data), "| key | meaning | default |\n| --- | --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		line = strings.ReplaceAll(link.ReplaceAllString(strings.Trim(strings.TrimSpace(line), "|"), "$1"), `\|`, "\x00")
		line = strings.ReplaceAll(line, " ([below])", "")
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(cells[i]), "`", ""), "\x00", "|")
		}
		if len(cells) != 3 {
			t.Fatalf("docs/reference/rules.md: a row of %d cells: %s", len(cells), line)
		}
		about := strings.ReplaceAll(cells[1], " (below)", "")
		if cells[2] != "" && cells[2] != "required" {
			about += ". Default: " + cells[2]
		}
		for key := range strings.SplitSeq(cells[0], ", ") {
			rows[key] = about
		}
	}
	return rows
}

// makeSchema makes the schema of rule files of what the loader knows.
func makeSchema(t *testing.T) []byte {
	s := &schemaMaker{t: t, definitions: object{}, rows: keyRows(t)}
	var root object
	for _, p := range sites() {
		if o := s.mapping(p); p.name == "root" {
			root = o
		} else {
			s.definitions[p.name] = o
		}
	}
	root["$schema"], root["title"] = "http://json-schema.org/draft-07/schema#", "Rule file of Weir"
	root["definitions"] = s.definitions
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
