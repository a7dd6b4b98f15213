package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// printedSchema is the schema that the program prints.
func printedSchema(t *testing.T, of string) *jsonschema.Schema {
	t.Helper()
	status, out := weirOutput(t, "lint", "--schema", of)
	data, err := jsonschema.UnmarshalJSON(strings.NewReader(out))
	if status != 0 || err != nil {
		t.Fatalf("exit status %d, %v\n%s", status, err, out)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", data); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// validates checks a text of YAML by a schema.
func validates(t *testing.T, schema *jsonschema.Schema, text string) error {
	t.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		return err
	}
	plain, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if value, err = jsonschema.UnmarshalJSON(bytes.NewReader(plain)); err != nil {
		return err
	}
	return schema.Validate(value)
}

// TestSchemas: the printed schemas take every rule file and every configuration of the examples, of
// the docs and of the tests, and each refuses the other's.
func TestSchemas(t *testing.T) {
	schemas := map[string]*jsonschema.Schema{"rules": printedSchema(t, "rules"), "config": printedSchema(t, "config")}
	seen := map[string]int{}
	check := func(of, at, text string) {
		seen[of]++
		if err := validates(t, schemas[of], text); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		other := map[string]string{"rules": "config", "config": "rules"}[of]
		if strings.Contains(text, ":") && validates(t, schemas[other], text) == nil {
			t.Errorf("%s: the schema of %s takes it", at, other)
		}
	}
	root := servertest.RepositoryRoot(t)
	isRules := regexp.MustCompile(`(?m)^(limits:[ \t]*([[#].*)?$|descriptors:)`)
	isTest := regexp.MustCompile(`(?m)^tests:`)
	keys := regexp.MustCompile(`(?m)^(rules|store|listen|proxy|identity|client_ip|tls|auth|redis|regions?|limits|signals|` +
		`headers):`)
	foreign := regexp.MustCompile(`(?m)^(apiVersion|services|http|static_resources|providers|entryPoints|groups|on|name|global|` +
		`jobs|repos|config|image):`)
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		name := d.Name()
		if err != nil || d.IsDir() {
			if name == "node_modules" || name == ".git" || name == ".cache" || isBuilt(root, path) {
				return filepath.SkipDir
			}
			return err
		}
		ext := filepath.Ext(name)
		if ext != ".yaml" && ext != ".yml" && ext != ".md" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at, text := strings.TrimPrefix(path, root), string(data)
		switch {
		case name == "weir.yaml":
			check("config", at, text)
		case ext != ".md" && !strings.Contains(at, "testdata") && isRules.MatchString(text):
			check("rules", at, text)
		case ext == ".md":
			for _, b := range servertest.Blocks(t, path) {
				switch text := b.Text; {
				case b.Language != "yaml" || isTest.MatchString(text):
				case isRules.MatchString(text):
					check("rules", at, text)
				case keys.MatchString(text) && !foreign.MatchString(text):
					check("config", at, text)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen["rules"] < 50 || seen["config"] < 25 {
		t.Errorf("%v: does the search still fit?", seen)
	}
	if status, out := weirOutput(t, "lint", "--schema", "rule"); status != exitUsage ||
		!strings.Contains(out, "one of config") {
		t.Errorf("exit status %d\n%s", status, out)
	}
}
