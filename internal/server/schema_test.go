package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/pflag"

	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/internal/testkit/effort"
)

// schemaFile is the JSON Schema of weir.yaml. Command weir prints it (weir lint --schema config).
var schemaFile = filepath.Join("..", "..", "cmd", "weir", "schemas", "weir.schema.json")

// object is a part of a JSON Schema.
type object = map[string]any

// A setting says by its setter alone what it takes, so the schema asks it: each class of values is
// tried by examples, and described by a pattern.
var classes = []struct {
	examples []string // a setting that takes one of them takes the class
	pattern  string
	number   bool // a number of YAML is of the class
}{
	{[]string{"1", "7"}, `[0-9_]+`, true},
	{[]string{"0s", "1h"}, `[-+]?([0-9]*\.?[0-9]+(ns|us|µs|μs|ms|s|m|h))+`, false},
	{[]string{"64MiB"}, `[0-9]+ *(TiB|GiB|MiB|KiB|TB|GB|MB|KB|kB|B)`, true},
	{[]string{"5%"}, `[0-9.]+ *%`, false},
}

// free are texts that only a setting takes which takes texts of its own.
var free = []string{"zzqq", "http://127.0.0.1:9/a",
	"redis://127.0.0.1:9", "127.0.0.1:9", "10.0.0.0/8", "/zz/qq", "zz=qq"}

// anyText are the types of what is read as text.
func anyText() []string { return []string{"string", "number", "boolean"} }

func isFree(o object) bool { return reflect.DeepEqual(o, object{"type": anyText()}) }

// takes reports whether a setting takes these items.
func takes(s *setting, items ...string) bool { return s.Set(new(Config), items) == nil }

// valueSchema is the schema of one value of a setting, or of one item of its list.
func valueSchema(s *setting) object {
	var patterns []string
	number := false
	for _, c := range classes {
		if slices.ContainsFunc(c.examples, func(e string) bool { return takes(s, e) }) {
			patterns = append(patterns, c.pattern)
			number = number || c.number
		}
	}
	if slices.ContainsFunc(free, func(e string) bool { return takes(s, e) }) {
		return object{"type": anyText()}
	}
	var words []any
	// its words stand in its help, or in what it says of others
	refusal := fmt.Sprint(s.Set(new(Config), []string{"zzqq"}))
	for _, word := range regexp.MustCompile(`[a-z0-9][a-z0-9_.-]*`).FindAllString(s.Help+" "+s.Value+" "+refusal, -1) {
		if word = strings.TrimRight(word, "."); takes(s, word) && !isClass(word) && !slices.Contains(words, any(word)) {
			words = append(words, word)
			if number, err := strconv.ParseFloat(word, 64); err == nil {
				words = append(words, number) // as editors read it
			}
		}
	}
	if takes(s, "true") && takes(s, "false") {
		return object{"type": "boolean"}
	}
	var forms []object
	if words != nil {
		forms = append(forms, object{"enum": words})
	}
	if patterns != nil {
		forms = append(forms, object{"type": "string", "pattern": "^(" + strings.Join(patterns, "|") + ")$"})
	}
	if zero := takes(s, "0"); zero || number {
		o := object{"type": "integer", "minimum": 0}
		if !zero {
			o["minimum"] = 1
		}
		if bounds := regexp.MustCompile(`from (\d+) to (\d+)`).FindStringSubmatch(refusal); bounds != nil {
			o["minimum"], o["maximum"] = json.Number(bounds[1]), json.Number(bounds[2])
		} else if !number {
			o["maximum"] = 0
		}
		forms = append(forms, o)
	}
	if len(forms) == 1 {
		return forms[0]
	}
	return object{"anyOf": forms}
}

// isClass reports whether a word is of one of the classes.
func isClass(word string) bool {
	for _, c := range classes {
		if regexp.MustCompile("^(" + c.pattern + ")$").MatchString(word) {
			return true
		}
	}
	return false
}

// listed is the schema of items between commas.
func listed(one object) object {
	var patterns []string
	forms, several := one["anyOf"].([]object)
	if !several {
		forms = []object{one}
	}
	for _, form := range forms {
		if pattern, ok := form["pattern"].(string); ok {
			patterns = append(patterns, pattern[1:len(pattern)-1])
		}
		words, _ := form["enum"].([]any)
		for _, word := range words {
			patterns = append(patterns, regexp.QuoteMeta(fmt.Sprint(word)))
		}
	}
	if patterns == nil {
		return object{"type": "string"}
	}
	return object{"type": "string", "pattern": fmt.Sprintf(`^ *((%s)? *(, *|$))*$`, strings.Join(patterns, "|"))}
}

// settingSchema is the schema of all that a setting may be.
func settingSchema(s *setting) object {
	o := object{}
	switch s.Kind {
	case settings.Mapping:
		o["type"], o["additionalProperties"] = []string{"object", "null"}, object{"type": anyText()}
	case settings.List:
		one := valueSchema(s)
		if o["anyOf"] = []object{{"type": "array", "items": one}, one, listed(one), {"type": "null"}}; isFree(one) {
			o["anyOf"] = []object{{"type": "array", "items": one}, {"type": append(anyText(), "null")}}
		}
	default:
		o = valueSchema(s)
		switch {
		case !takes(s, ""):
		case isFree(o):
			o["type"] = append(anyText(), "null")
		default:
			o = object{"anyOf": []object{o, {"enum": []any{"", nil}}}}
		}
	}
	o["description"] = s.Help
	if s.Value != "" {
		o["description"] = s.Help + ". Default: " + s.Value
	}
	return o
}

// schemaBelow is the schema of the mapping of the settings below prefix.
func schemaBelow(prefix string) object {
	properties := object{}
	for i := range allSettings {
		rest, below := strings.CutPrefix(allSettings[i].Path, prefix)
		if !below {
			continue
		}
		key, _, deeper := strings.Cut(rest, ".")
		if !deeper {
			if properties[key] == nil {
				properties[key] = settingSchema(&allSettings[i])
			}
			continue
		}
		inner := schemaBelow(prefix + key + ".")
		if own := allSettings.Find(prefix + key); own != nil { // store: URL, or store: {url: URL, timeout: 1s}
			value := settingSchema(own)
			inner["properties"].(object)["url"] = value
			properties[key] = object{"description": value["description"], "anyOf": []object{value, inner}}
			continue
		}
		properties[key] = inner
	}
	return object{"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false}
}

func makeSchema(t *testing.T) []byte {
	root := schemaBelow("")
	root["$schema"], root["title"] = "http://json-schema.org/draft-07/schema#", "Configuration of Weir (weir.yaml)"
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(root); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSchemaFresh: the schema of weir.yaml has each setting, and says of it what the table of
// settings says.
func TestSchemaFresh(t *testing.T) {
	want := makeSchema(t)
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(schemaFile)
	if err != nil || !bytes.Equal(have, want) {
		t.Errorf("%s is not of these settings (%v); run go test ./internal/server -run TestSchemaFresh -update",
			schemaFile, err)
	}
}

// ownValue is the default of a setting, quoted unless it is true or false.
func ownValue(s *setting) string {
	if s.Value == "true" || s.Value == "false" {
		return s.Value
	}
	return strconv.Quote(s.Value)
}

// values are tried in the place of each setting.
var values = []string{"true", "1", "0", "64", "1.5", "1.2", "1.3", "-1", "10s", "1h30m", "0s", "64MiB", "1 GiB", "5%",
	"zzqq", "off", "on", "auto", "adaptive", "allow", "deny", "error", "keep", "refuse", "text", "json", "info", "memory",
	"redis://127.0.0.1:9", "127.0.0.1:9", "unix:/a/b", "http://127.0.0.1:9", "10.0.0.0/8", "/zz/qq", "[]", "[zzqq]",
	"[1s, 2s]", "[http]", "[denied, soft]", "[10.0.0.0/8, private]", "[{a: b}]", "{}", "{zz: qq}", "{user: header:X-User}",
	"{eu: 1}", "{a: [b]}", "null", "x-delta", "[x-delta, draft11]", "[off]", "{url: zzqq, timeout: 1s}"}

// aboutType tells errors of the program that are about the type of a value, or about a key.
var aboutType = regexp.MustCompile(`unknown key|must be (a list|a mapping|a single value|true or false|a whole number)` +
	`|is no duration|is no size`)

// TestSchemaAgrees: the schema takes each configuration that is loaded, and refuses each that is
// not for its keys and types; for each value of many in the place of each setting.
func TestSchemaAgrees(t *testing.T) {
	data, err := jsonschema.UnmarshalJSON(bytes.NewReader(makeSchema(t)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("weir.schema.json", data); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("weir.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(flags)
	t.Chdir(t.TempDir())
	file, err := os.Create("weir.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	tried, step := map[string]int{}, effort.Of(3, 1) // a quick run tries a third of the values with each setting
	try := func(text string) {
		var value any
		if err := yaml.Unmarshal([]byte(text), &value); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		_, failure := file.WriteAt([]byte(text), 0)
		if err := errors.Join(failure, file.Truncate(int64(len(text)))); err != nil {
			t.Fatal(err)
		}
		_, loader := Load(flags, nil)
		plain, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		value, _ = jsonschema.UnmarshalJSON(bytes.NewReader(plain))
		switch editor := schema.Validate(value); {
		case loader == nil && editor != nil:
			t.Errorf("the program takes, and the schema refuses\n%s\n%v", text, editor)
		case loader != nil && editor == nil && aboutType.MatchString(loader.Error()):
			t.Errorf("the schema takes, and the program refuses\n%s\n%v", text, loader)
		case loader == nil:
			tried["taken"]++
		case editor != nil:
			tried["refused"]++
		}
	}
	for i := range allSettings {
		path := strings.Split(allSettings[i].Path, ".")
		tries := append(slices.Clone(values), ownValue(&allSettings[i]))
		for v := i % step; v < len(tries); v += step {
			text := ""
			for depth, key := range path {
				text += fmt.Sprintf("\n%s%s:", strings.Repeat("  ", depth), key)
			}
			try(strings.TrimPrefix(text, "\n") + " " + tries[v] + "\n")
		}
		try("zzqq:\n  " + allSettings[i].Path + ": 1\n")
		for depth := range path {
			text := ""
			for i, key := range path[:depth+1] {
				if i == depth {
					key += "_q"
				}
				text += fmt.Sprintf("\n%s%s:", strings.Repeat("  ", i), key)
			}
			try(strings.TrimPrefix(text, "\n") + " 1\n")
		}
	}
	if tried["taken"] < 500/step || tried["refused"] < 1000/step {
		t.Errorf("%v: does the search still fit?", tried)
	}
}
