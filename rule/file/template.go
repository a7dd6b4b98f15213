package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	htmltemplate "html/template"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	texttemplate "text/template"
	"text/template/parse"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// Bounds on templates.
const (
	maxTemplate     = 64 << 10 // bytes of one, and of its result
	maxTemplateText = 4 << 20  // bytes of all of one load
)

// templateSyntax says by which rules a template puts values in.
type templateSyntax uint8

const (
	plainTemplate templateSyntax = iota // as they are; {{json .X}} quotes
	htmlTemplate                        // escaped for the place where they stand
)

// template is a compiled template over rule.ResponseData. A nil one stands for a text that is no
// template.
type template struct {
	execute func(w io.Writer, data any) error
}

type templateKey struct {
	text   string
	syntax templateSyntax
}

type compiledTemplate struct {
	template *template
	samples  []string
	err      error
}

var templateFuncs = sync.OnceValue(func() map[string]any {
	return map[string]any{
		"json": func(v any) (string, error) {
			b, err := json.Marshal(v)
			return string(b), err
		},
	}
})

// sampleData is what templates are tried on at load: a refusal that ends, and one that does not.
var sampleData = []rule.ResponseData{
	{Limit: "api:60s", RetryAfter: 90, RetryAfterText: "1 minute 30 seconds", ID: "0123456789abc", Domain: "shop", LimitValue: 10, Window: "minute", Status: 429},
	{Limit: "api:60s", RetryAfter: -1, RetryAfterText: "never", ID: "0123456789abc", Domain: "shop", LimitValue: 10, Window: "minute", Status: 429},
}

// render returns the output of the template; nil if it fails.
func (t *template) render(data *rule.ResponseData) []byte {
	var b bounded
	if t.execute(&b, data) != nil {
		return nil
	}
	return append([]byte{}, b.Bytes()...)
}

// bounded is a buffer that takes up to maxTemplate bytes.
type bounded struct{ bytes.Buffer }

var errTooLong = errors.New("it gives more than " + strconv.Itoa(maxTemplate) + " bytes")

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxTemplate {
		return 0, errTooLong
	}
	return b.Buffer.Write(p)
}

// WriteString keeps the buffer's own from being used in place of Write.
func (b *bounded) WriteString(s string) (int, error) { return b.Write([]byte(s)) }

// template compiles a text that holds {{, and tries it on samples, which it returns. For any other
// text the template is nil and the text itself the sample.
func (l *loader) template(v *yaml.Node, what, text string, syntax templateSyntax) (t *template, samples []string,
	ok bool) {
	if !strings.Contains(text, "{{") {
		return nil, []string{text}, true
	}
	t, samples, err := l.compiled.responseTemplate(text, syntax)
	if err == nil {
		return t, samples, true
	}
	hint := ""
	var field *unknownField
	if errors.As(err, &field) {
		hint = "known are ." + strings.Join(templateFields(), ", .")
		if near := suggest.Nearest(field.name, templateFields()); near != "" {
			hint = fmt.Sprintf("did you mean .%s?", near)
		}
	}
	l.err(v, hint, "%s: %v", what, err)
	return nil, nil, false
}

// responseTemplate is compileTemplate, remembered and bounded.
func (c *compiled) responseTemplate(text string, syntax templateSyntax) (*template, []string, error) {
	key := templateKey{text, syntax}
	if p, ok := c.templates[key]; ok {
		return p.template, p.samples, p.err
	}
	if c.templates == nil {
		c.templates = map[templateKey]compiledTemplate{}
	}
	var p compiledTemplate
	switch c.template += len(text); {
	case len(text) > maxTemplate:
		p.err = fmt.Errorf("the template is longer than %d KiB", maxTemplate>>10)
	case c.template > maxTemplateText:
		p.err = errors.New("the templates of all rules together are too large")
	default:
		p.template, p.samples, p.err = compileTemplate(text, syntax)
	}
	c.templates[key] = p
	return p.template, p.samples, p.err
}

func compileTemplate(text string, syntax templateSyntax) (*template, []string, error) {
	trees, err := parse.Parse(templateName, text, "", "", templateFuncs(), templateBuiltins())
	if err != nil {
		return nil, nil, templateError(err)
	}
	tree := trees[templateName]
	if len(trees) > 1 {
		return nil, nil, errors.New("define and block have no place here: a template is one piece")
	}
	if tree == nil || tree.Root == nil {
		return nil, []string{"", ""}, nil
	}
	if err := checkNodes(tree, tree.Root); err != nil {
		return nil, nil, err
	}
	t := &template{}
	if syntax == htmlTemplate {
		html, err := htmltemplate.New(templateName).Parse(text)
		if err != nil {
			return nil, nil, templateError(err)
		}
		t.execute = html.Execute
	} else {
		plain, err := texttemplate.New(templateName).Funcs(templateFuncs()).Parse(text)
		if err != nil {
			return nil, nil, templateError(err)
		}
		t.execute = plain.Execute
	}
	var samples []string
	for i := range sampleData {
		var b bounded
		if err := t.execute(&b, &sampleData[i]); err != nil {
			return nil, nil, templateError(err)
		}
		samples = append(samples, b.String())
	}
	return t, samples, nil
}

const templateName = "template"

// templateBuiltins are the functions that templates have of themselves, for the parser: it only
// asks whether a name is there.
var templateBuiltins = sync.OnceValue(func() map[string]any {
	m := map[string]any{}
	for _, name := range []string{"and", "or", "not", "len", "index", "slice", "print", "printf", "println", "html",
		"js", "urlquery", "eq", "ge", "gt", "le", "lt", "ne", "call"} {
		m[name] = true
	}
	return m
})

var templateFields = sync.OnceValue(func() []string {
	var names []string
	for t, i := reflect.TypeFor[rule.ResponseData](), 0; i < t.NumField(); i++ {
		names = append(names, t.Field(i).Name)
	}
	return names
})

// unknownField is a name in a template that ResponseData does not have.
type unknownField struct{ name, at string }

func (u *unknownField) Error() string { return fmt.Sprintf("%sthere is no .%s", u.at, u.name) }

// checkNodes refuses what would fail, or never end, in a branch that the samples do not take: names
// that are not known, loops, and other templates.
func checkNodes(tree *parse.Tree, n parse.Node) error {
	at := func(n parse.Node) string {
		place, _ := tree.ErrorContext(n)
		return placeInTemplate(place)
	}
	field := func(n parse.Node, names []string) error {
		if len(names) == 0 {
			return nil
		}
		if !slices.Contains(templateFields(), names[0]) || len(names) > 1 {
			return &unknownField{strings.Join(names, "."), at(n)}
		}
		return nil
	}
	var walk func(n parse.Node) error
	branch := func(b *parse.BranchNode) error {
		if err := walk(b.Pipe); err != nil {
			return err
		}
		if err := walk(b.List); err != nil || b.ElseList == nil {
			return err
		}
		return walk(b.ElseList)
	}
	walk = func(n parse.Node) error {
		switch n := n.(type) {
		case *parse.ListNode:
			for _, c := range n.Nodes {
				if err := walk(c); err != nil {
					return err
				}
			}
		case *parse.ActionNode:
			return walk(n.Pipe)
		case *parse.PipeNode:
			for _, c := range n.Cmds {
				for _, a := range c.Args {
					if err := walk(a); err != nil {
						return err
					}
				}
			}
		case *parse.FieldNode:
			return field(n, n.Ident)
		case *parse.VariableNode:
			return field(n, n.Ident[1:])
		case *parse.ChainNode:
			if err := walk(n.Node); err != nil {
				return err
			}
			return field(n, n.Field)
		case *parse.IfNode:
			return branch(&n.BranchNode)
		case *parse.WithNode:
			return branch(&n.BranchNode)
		case *parse.RangeNode:
			return fmt.Errorf("%srange has no place here: there is nothing to go through", at(n))
		case *parse.TemplateNode:
			return fmt.Errorf("%sthere is no other template to put in", at(n))
		}
		return nil
	}
	return walk(n)
}

var templatePlace = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:html/)?(?:template: ?)?` + templateName + `:(\d+)(?::(\d+))?:? ?`)
})

// placeInTemplate words a place such as "template:2:7" for a message.
func placeInTemplate(place string) string {
	m := templatePlace().FindStringSubmatch(place)
	switch {
	case m == nil:
		return ""
	case m[2] == "":
		return "in line " + m[1] + " of the template: "
	}
	var column int
	fmt.Sscan(m[2], &column)
	return fmt.Sprintf("at %s:%d of the template: ", m[1], column+1)
}

// templateError words an error of the template packages.
func templateError(err error) error {
	if errors.Is(err, errTooLong) {
		return errTooLong
	}
	text := err.Error()
	place := placeInTemplate(text)
	if place != "" {
		text = templatePlace().ReplaceAllString(text, "")
	}
	text = strings.TrimPrefix(text, fmt.Sprintf("executing %q at ", templateName))
	return errors.New(place + message.Clip(strings.ReplaceAll(text, "\n", " ")))
}
