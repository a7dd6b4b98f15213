package file

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// TestSchemaFresh: the schema of rule files has the keys that the loader knows, with what the table
// in docs/reference/rules.md says of them.
func TestSchemaFresh(t *testing.T) {
	want := makeSchema(t)
	if *update {
		if err := os.WriteFile(schemaFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(schemaFile)
	if err != nil || !bytes.Equal(have, want) {
		t.Errorf("%s is not what the loader knows (%v); run go test ./rule/file -run TestSchemaFresh -update",
			schemaFile, err)
	}
}

// compiledSchema is the schema, ready for use.
func compiledSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	data, err := jsonschema.UnmarshalJSON(bytes.NewReader(makeSchema(t)))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("rules.schema.json", data); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("rules.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// asEditors is a value as an editor hands it to a schema: a scalar has the type of YAML 1.2.
func asEditors(v *yaml.Node) any {
	switch v.Kind {
	case yaml.Mapping:
		m := map[string]any{}
		for _, p := range v.Pairs {
			m[p.Key.Text] = asEditors(p.Value)
		}
		return m
	case yaml.List:
		list := []any{}
		for _, i := range v.Items {
			list = append(list, asEditors(i))
		}
		return list
	case yaml.Scalar:
		if v.Quoted {
			return v.Text
		}
		switch v.Text {
		case "true", "True", "TRUE":
			return true
		case "false", "False", "FALSE":
			return false
		}
		if _, err := strconv.ParseFloat(v.Text, 64); err == nil && !strings.ContainsAny(v.Text, "_xXpPiInN") {
			return json.Number(v.Text)
		}
		return v.Text
	}
	return nil
}

// judged is what the loader and the schema say of a file.
func judged(t *testing.T, schema *jsonschema.Schema, text string) (loader, editor error) {
	t.Helper()
	documents, _, misread, failure := yaml.Parse("a.yaml", text)
	if failure != nil || len(misread) > 0 || len(documents) == 0 {
		t.Fatalf("not YAML: %v, %v\n%s", failure, misread, text)
	}
	_, _, loader = Load([]Source{{Name: "a.yaml", Data: []byte(text)}}, Options{})
	return loader, schema.Validate(asEditors(documents[0]))
}

// tried are values of each type.
var tried = []string{
	"null", "true", "no", "0", "1", "7", "10", "100", "450", "70000", "-1", "1.5", "99999999999999999999", `"7"`, "zz",
	`""`, "10%", `"10 %"`, "2000%", "-1%", "10s", "1m30s", "2d", "30", "1h", "10/s", "100/15m", "10 per minute",
	"5 concurrent",
	"unlimited", "UTC", "Europe/Berlin", "mon-fri", `"08:00-20:00"`, "first", "exact", "folded", "hard", "sync", "all",
	"reject", "shadow", "wait", "soft", "allow", "deny", "local", "critical", "interval", "first_request", "token_bucket",
	"fixed_window", "concurrency", "domain", "nftables", "minute", "MINUTE", "fortnight", "int(attr.n)", "text/plain",
	"[]", "[zz]", "[1]", "[10/s]", "[{}]", "[[a]]", "[null]", "{}", "{zz: 1}", "{a: b}", "{10%: 10%}", "{a: 10/s}",
	"{a: {b: c}}", "{a: [b]}", "{lease: 5%}", "{wait: 2s}", "{soft: 10%}", "{rate: 10/s}",
	"{after: 1, within: 1s, for: 1s}",
	"[{name: a, allow: 1/s}]", "[{allow: 5/s}]", "[{key: a}]", "[{name: b}]", "{path: /a}",
	"{unit: day, requests_per_unit: 5}",
	"{ip: [10.0.0.0/8]}", "{max: 2s, queue: 5}", "{over: 20%}", "{signal: cpu, curve: {50%: 10%}}", "{json: '{}'}",
}

// aboutType tells errors of the loader that are about the type of a value, or about a key.
var aboutType = regexp.MustCompile(`expected (a |an )?(mapping|list|text|plain word|single value|true or false` +
	`|whole number|whole percentage|duration)|unknown key|list of type other than map|is missing`)

// TestSchemaAgrees: the schema takes each file that the loader takes, and refuses each that the
// loader refuses for a key, for the type of a value, or for a key that is missing; for each value
// of many in the place of each key.
func TestSchemaAgrees(t *testing.T) {
	schema := compiledSchema(t)
	s := &schemaMaker{t: t, definitions: object{}, rows: keyRows(t)}
	refused, taken := 0, 0
	step := effort.Of(3, 1) // a quick run tries a third of the values with each key
	for _, p := range sites() {
		try := func(entries map[string]string) {
			var b []string
			for _, key := range slices.Sorted(maps.Keys(entries)) {
				b = append(b, key+": "+entries[key])
			}
			text := fmt.Sprintf(p.file, "{"+strings.Join(b, ", ")+"}")
			loader, editor := judged(t, schema, text)
			switch {
			case loader == nil && editor != nil:
				t.Errorf("the loader takes, and the schema refuses\n%s\n%v", text, editor)
			case loader != nil && editor == nil && aboutType.MatchString(loader.Error()):
				t.Errorf("the schema takes, and the loader refuses\n%s\n%v", text, loader)
			case loader == nil:
				taken++
			case editor != nil:
				refused++
			}
		}
		try(p.beside)
		try(map[string]string{"qqqqqq": "1"})
		for k, key := range append(s.knownAt(p), "qqqqqq", "desciptors") {
			without := maps.Clone(p.beside)
			delete(without, key)
			try(without)
			for v := k % step; v < len(tried); v += step {
				entries := maps.Clone(p.beside)
				if entries == nil {
					entries = map[string]string{}
				}
				entries[key] = tried[v]
				try(entries)
			}
		}
	}
	if taken < 500/step || refused < 2000/step {
		t.Errorf("%d files were taken, and %d refused by both: does the search still fit?", taken, refused)
	}
}

// TestSchemaFixtures: the schema takes each good fixture, and refuses each bad one that the loader
// refuses for its keys or types.
func TestSchemaFixtures(t *testing.T) {
	schema := compiledSchema(t)
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 20 {
		t.Fatalf("fixtures: %v, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents, _, misread, failure := yaml.Parse(file, string(data))
		if failure != nil || len(misread) > 0 || len(documents) == 0 {
			continue
		}
		_, _, loader := Load([]Source{{Name: file, Data: data}}, Options{})
		editor := schema.Validate(asEditors(documents[0]))
		if loader == nil && editor != nil {
			t.Errorf("%s: %v", file, editor)
		}
		if loader != nil && editor == nil && aboutType.MatchString(loader.Error()) {
			t.Errorf("%s: the schema takes what the loader refuses: %v", file, loader)
		}
	}
}
