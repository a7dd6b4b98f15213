package doortest

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
)

// Described is a description in OpenAPI 3.1, of the part of it that ours use. Make one with
// ReadDescription. Safe for concurrent use.
type Described struct {
	// Paths has the operations of each path by their methods, in small letters.
	Paths map[string]map[string]Operation `yaml:"paths"`
	// Components are what $ref leads to.
	Components Components `yaml:"components"`

	OpenAPI  string           `yaml:"openapi"`
	Info     map[string]any   `yaml:"info"`
	Servers  []map[string]any `yaml:"servers"`
	Security []map[string]any `yaml:"security"`
}

// Components are the named parts of a description.
type Components struct {
	SecuritySchemes map[string]map[string]string `yaml:"securitySchemes"`
	Parameters      map[string]Parameter         `yaml:"parameters"`
	Schemas         map[string]*Schema           `yaml:"schemas"`
	Headers         map[string]DescribedHeader   `yaml:"headers"`
	Responses       map[string]DescribedAnswer   `yaml:"responses"`
}

// Operation is a method of a path.
type Operation struct {
	ID          string                     `yaml:"operationId"`
	Summary     string                     `yaml:"summary"`
	Description string                     `yaml:"description"`
	Security    []map[string]any           `yaml:"security"`
	Parameters  []Parameter                `yaml:"parameters"`
	Body        *DescribedBody             `yaml:"requestBody"`
	Answers     map[string]DescribedAnswer `yaml:"responses"`
}

// Parameter is one of an operation.
type Parameter struct {
	Ref         string  `yaml:"$ref"`
	Name        string  `yaml:"name"`
	In          string  `yaml:"in"`
	Required    bool    `yaml:"required"`
	Description string  `yaml:"description"`
	Style       string  `yaml:"style"`
	Explode     bool    `yaml:"explode"`
	Schema      *Schema `yaml:"schema"`
	Example     any     `yaml:"example"`
}

// DescribedBody is the body of a request.
type DescribedBody struct {
	Required    bool             `yaml:"required"`
	Description string           `yaml:"description"`
	Content     map[string]Media `yaml:"content"`
}

// DescribedAnswer is an answer of a status.
type DescribedAnswer struct {
	Ref         string                     `yaml:"$ref"`
	Description string                     `yaml:"description"`
	Headers     map[string]DescribedHeader `yaml:"headers"`
	Content     map[string]Media           `yaml:"content"`
}

// DescribedHeader is a field of an answer's header.
type DescribedHeader struct {
	Ref         string  `yaml:"$ref"`
	Description string  `yaml:"description"`
	Schema      *Schema `yaml:"schema"`
}

// Media describes a body of a media type.
type Media struct {
	Schema  *Schema `yaml:"schema"`
	Example any     `yaml:"example"`
}

// Schema is a schema of JSON Schema 2020-12, of the keywords that ours use.
type Schema struct {
	Ref              string             `yaml:"$ref"`
	Type             any                `yaml:"type"` // a name, or a list of them
	Format           string             `yaml:"format"`
	Description      string             `yaml:"description"`
	Default          any                `yaml:"default"`
	Example          any                `yaml:"example"`
	Enum             []any              `yaml:"enum"`
	Const            any                `yaml:"const"`
	Pattern          string             `yaml:"pattern"`
	Minimum          *float64           `yaml:"minimum"`
	Maximum          *float64           `yaml:"maximum"`
	ExclusiveMinimum *float64           `yaml:"exclusiveMinimum"`
	MinLength        int                `yaml:"minLength"`
	MinItems         int                `yaml:"minItems"`
	MaxItems         int                `yaml:"maxItems"`
	Items            *Schema            `yaml:"items"`
	Required         []string           `yaml:"required"`
	Properties       map[string]*Schema `yaml:"properties"`
	Additional       any                `yaml:"additionalProperties"` // a bool or a schema
	PropertyNames    *Schema            `yaml:"propertyNames"`
	OneOf            []*Schema          `yaml:"oneOf"`
	AllOf            []*Schema          `yaml:"allOf"`

	members *Schema // Additional, if it is a schema
}

// ReadDescription reads a description. It takes no key that it does not know, so that one with a
// comma too much is an error, and no reference that leads nowhere.
func ReadDescription(text []byte) (*Described, error) {
	d := new(Described)
	if err := yaml.UnmarshalWithOptions(text, d, yaml.Strict()); err != nil {
		return nil, err
	}
	ids := map[string]string{}
	for path, methods := range d.Paths {
		for method, o := range methods {
			at := strings.ToUpper(method) + " " + path
			if o.ID == "" || ids[o.ID] != "" {
				return nil, fmt.Errorf("%s: its operationId is %q, as at %q", at, o.ID, ids[o.ID])
			}
			ids[o.ID] = at
			if err := d.readOperation(&o); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
		}
	}
	for name, s := range d.Components.Schemas {
		if err := d.readSchema(s); err != nil {
			return nil, fmt.Errorf("schema %s: %w", name, err)
		}
	}
	for name, p := range d.Components.Parameters {
		if _, clash := d.Components.Schemas[name]; clash {
			return nil, fmt.Errorf("%s is a parameter and a schema: generators make one type of each", name)
		}
		if err := d.readSchema(p.Schema); err != nil {
			return nil, fmt.Errorf("parameter %s: %w", name, err)
		}
	}
	for name, a := range d.Components.Responses {
		if _, clash := d.Components.Schemas[name]; clash {
			return nil, fmt.Errorf("%s is a response and a schema: generators make one type of each", name)
		}
		if err := d.readAnswer(&a); err != nil {
			return nil, fmt.Errorf("response %s: %w", name, err)
		}
	}
	return d, nil
}

func (d *Described) readOperation(o *Operation) error {
	for i := range o.Parameters {
		p, err := d.Parameter(&o.Parameters[i])
		if err == nil {
			err = d.readSchema(p.Schema)
		}
		if err != nil {
			return err
		}
	}
	if o.Body != nil {
		for _, m := range o.Body.Content {
			if err := d.readSchema(m.Schema); err != nil {
				return err
			}
		}
	}
	for status, a := range o.Answers {
		if err := d.readAnswer(&a); err != nil {
			return fmt.Errorf("answer %s: %w", status, err)
		}
	}
	return nil
}

func (d *Described) readAnswer(a *DescribedAnswer) error {
	a, err := d.Answer(a)
	if err != nil {
		return err
	}
	if a.Description == "" {
		return fmt.Errorf("it has no description")
	}
	for name, h := range a.Headers {
		if h.Ref != "" {
			if h, err = named(d.Components.Headers, "headers", h.Ref); err != nil {
				return err
			}
		}
		if err := d.readSchema(h.Schema); err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
	}
	for kind, m := range a.Content {
		if err := d.readSchema(m.Schema); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
	}
	return nil
}

// named finds the component that a reference leads to.
func named[T any](components map[string]T, kind, ref string) (x T, err error) {
	name, ok := strings.CutPrefix(ref, "#/components/"+kind+"/")
	x, known := components[name]
	if !ok || !known {
		return x, fmt.Errorf("%s leads nowhere", ref)
	}
	return x, nil
}

// Parameter returns a parameter, or the one it refers to.
func (d *Described) Parameter(p *Parameter) (*Parameter, error) {
	if p.Ref == "" {
		return p, nil
	}
	x, err := named(d.Components.Parameters, "parameters", p.Ref)
	return &x, err
}

// Answer returns an answer, or the one it refers to.
func (d *Described) Answer(a *DescribedAnswer) (*DescribedAnswer, error) {
	if a.Ref == "" {
		return a, nil
	}
	x, err := named(d.Components.Responses, "responses", a.Ref)
	return &x, err
}

// readSchema reads what of a schema the decoder left, and checks that generators can make a type of
// it.
func (d *Described) readSchema(s *Schema) error {
	if s == nil {
		return fmt.Errorf("it has no schema")
	}
	if s.Ref != "" {
		_, err := named(d.Components.Schemas, "schemas", s.Ref)
		return err
	}
	types := s.Types()
	switch {
	case len(types) == 0 && (len(s.Enum) > 0 || s.Const != nil || s.Format != "" || len(s.Properties) > 0 ||
		s.Items != nil):
		return fmt.Errorf("it has no type")
	case slices.Contains(types, "integer") && s.Format != "int64" && s.Format != "int32":
		return fmt.Errorf("an integer has no format: generators make one of 32 bits of it")
	case slices.Contains(types, "array") && s.Items == nil:
		return fmt.Errorf("an array has no items")
	}
	if m, ok := s.Additional.(map[string]any); ok {
		text, err := yaml.Marshal(m)
		if err != nil {
			return err
		}
		s.members = new(Schema)
		if err := yaml.UnmarshalWithOptions(text, s.members, yaml.Strict()); err != nil {
			return err
		}
	}
	for _, name := range s.Required {
		if s.Properties[name] == nil {
			return fmt.Errorf("%s is required, and not described", name)
		}
	}
	for name, p := range s.Properties {
		if err := d.readSchema(p); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	below := append(slices.Clone(s.OneOf), s.AllOf...)
	for _, each := range append(below, s.Items, s.members) {
		if each != nil {
			if err := d.readSchema(each); err != nil {
				return err
			}
		}
	}
	return nil
}

// Types are the types that a value may have; none for any.
func (s *Schema) Types() (list []string) {
	switch t := s.Type.(type) {
	case string:
		return []string{t}
	case []any:
		for _, each := range t {
			list = append(list, fmt.Sprint(each))
		}
	}
	return list
}

// At returns the operation that answers a request; path is the description's path for it, "" if it
// describes none.
func (d *Described) At(method, target string) (path string, o *Operation) {
	u, err := url.Parse(target)
	if err != nil {
		return "", nil
	}
	if path = d.path(u.EscapedPath()); path == "" {
		return "", nil
	}
	if x, ok := d.Paths[path][strings.ToLower(method)]; ok {
		return path, &x
	}
	return path, nil
}

func (d *Described) path(escaped string) string {
	if _, ok := d.Paths[escaped]; ok {
		return escaped
	}
	segments, best := strings.Split(escaped, "/"), ""
	for path := range d.Paths {
		parts := strings.Split(path, "/")
		if len(parts) != len(segments) || !strings.Contains(path, "{") {
			continue
		}
		fits := true
		for i, part := range parts {
			fits = fits && (part == segments[i] || strings.HasPrefix(part, "{"))
		}
		// Of two, the one that says more itself.
		if fits && (best == "" || strings.Count(path, "{") < strings.Count(best, "{")) {
			best = path
		}
	}
	return best
}

// Hold returns what in an answer is not as described.
func (d *Described) Hold(method, target string, got Answer) error {
	path, o := d.At(method, target)
	head := false
	if o == nil && method == "HEAD" {
		head = true
		path, o = d.At("GET", target)
	}
	switch {
	case path == "":
		return nil // it is described nowhere
	case o == nil && got.Status >= 400 && got.Status < 500:
		return nil // such a method is refused everywhere
	case o == nil:
		return fmt.Errorf("this method is answered with %d, and not described", got.Status)
	}
	described, ok := o.Answers[strconv.Itoa(got.Status)]
	if !ok {
		return fmt.Errorf("it answers %d, which is not described: %.300s", got.Status, got.Body)
	}
	a, err := d.Answer(&described)
	if err != nil {
		return err
	}
	for name, h := range a.Headers {
		if h.Ref != "" {
			if h, err = named(d.Components.Headers, "headers", h.Ref); err != nil {
				return err
			}
		}
		if lines := got.Header.Values(name); len(lines) > 0 {
			if err := d.checkText(h.Schema, lines[0]); err != nil {
				return fmt.Errorf("%d: header %s: %w", got.Status, name, err)
			}
		}
	}
	kind, _, _ := strings.Cut(got.Header.Get("Content-Type"), ";")
	m, ok := a.Content[kind]
	switch {
	case head || got.Header.Get("Content-Encoding") != "":
		return nil
	case got.Body == "" && kind == "" && (len(a.Content) == 0 || got.Status >= 400):
		return nil
	case !ok:
		return fmt.Errorf("%d: a body of type %q is not described: %.300s", got.Status, kind, got.Body)
	case strings.HasSuffix(kind, "json"):
		var v any
		in := json.NewDecoder(strings.NewReader(got.Body))
		in.UseNumber()
		if err := in.Decode(&v); err != nil {
			return fmt.Errorf("%d: %w", got.Status, err)
		}
		if err := d.Check(m.Schema, v); err != nil {
			return fmt.Errorf("%d: %w in %.1000s", got.Status, err, got.Body)
		}
		return nil
	case kind == "application/yaml":
		return nil // a description
	}
	return d.checkText(m.Schema, got.Body)
}

// checkText holds a text that is no JSON against a schema.
func (d *Described) checkText(s *Schema, text string) error {
	if s.Ref == "" && slices.Contains(s.Types(), "integer") {
		return d.Check(s, json.Number(text))
	}
	return d.Check(s, text)
}

// Check returns where v, as JSON with UseNumber decodes it, is not as a schema of an answer says. A
// member that is not described is an error.
func (d *Described) Check(s *Schema, v any) error {
	if s.Ref != "" {
		x, err := named(d.Components.Schemas, "schemas", s.Ref)
		if err != nil {
			return err
		}
		return d.Check(x, v)
	}
	if len(s.OneOf) > 0 {
		var failures []error
		for _, each := range s.OneOf {
			if err := d.Check(each, v); err != nil {
				failures = append(failures, err)
			}
		}
		if fit := len(s.OneOf) - len(failures); fit != 1 {
			return fmt.Errorf("%d of its forms fit: %v", fit, failures)
		}
	}
	for _, each := range s.AllOf {
		if err := d.Check(each, v); err != nil {
			return err
		}
	}
	if types := s.Types(); len(types) > 0 &&
		!slices.ContainsFunc(types, func(t string) bool { return isOf(t, s.Format, v) }) {
		return fmt.Errorf("%v is no %s %s", v, strings.Join(types, " or "), s.Format)
	}
	if len(s.Enum) > 0 && v != nil &&
		!slices.ContainsFunc(s.Enum, func(e any) bool { return fmt.Sprint(e) == fmt.Sprint(v) }) {
		return fmt.Errorf("%v is none of %v", v, s.Enum)
	}
	if s.Const != nil && fmt.Sprint(s.Const) != fmt.Sprint(v) {
		return fmt.Errorf("%v is not %v", v, s.Const)
	}
	switch v := v.(type) {
	case string:
		if len(v) < s.MinLength || s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(v) {
			return fmt.Errorf("%q does not match %s", v, s.Pattern)
		}
	case json.Number:
		x, _ := v.Float64()
		if s.Minimum != nil && x < *s.Minimum || s.Maximum != nil && x > *s.Maximum ||
			s.ExclusiveMinimum != nil && x <= *s.ExclusiveMinimum {
			return fmt.Errorf("%v is out of range", v)
		}
	case []any:
		if len(v) < s.MinItems || s.MaxItems > 0 && len(v) > s.MaxItems {
			return fmt.Errorf("%d items", len(v))
		}
		for i, each := range v {
			if s.Items == nil {
				break
			}
			if err := d.Check(s.Items, each); err != nil {
				return fmt.Errorf("[%d]: %w", i, err)
			}
		}
	case map[string]any:
		return d.checkObject(s, v)
	}
	return nil
}

func (d *Described) checkObject(s *Schema, v map[string]any) error {
	if len(s.Types()) == 0 {
		return nil // anything, or what oneOf and allOf have looked at
	}
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			return fmt.Errorf("%s is missing", name)
		}
	}
	for name, each := range v {
		p := s.Properties[name]
		if p == nil {
			p = s.members
		}
		switch {
		case p != nil:
			if err := d.Check(p, each); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		case s.Additional != true:
			return fmt.Errorf("%s is not described", name)
		}
	}
	return nil
}

// isOf reports whether a value is of a type of JSON Schema.
func isOf(kind, format string, v any) bool {
	switch v := v.(type) {
	case nil:
		return kind == "null"
	case bool:
		return kind == "boolean"
	case string:
		if kind == "string" && format == "date-time" {
			_, err := time.Parse(time.RFC3339, v)
			return err == nil
		}
		return kind == "string"
	case json.Number:
		if kind == "integer" {
			n, err := v.Int64()
			return err == nil && (format != "int32" || n >= math.MinInt32 && n <= math.MaxInt32)
		}
		_, err := v.Float64()
		return kind == "number" && err == nil
	case []any:
		return kind == "array"
	case map[string]any:
		return kind == "object"
	}
	return false
}
