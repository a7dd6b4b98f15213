package rule

import (
	"fmt"
	"testing"
)

// However many expressions a request is tried on, none of usual size refuses it.
func TestManyExpressions(t *testing.T) {
	p, err := CompileIf("path.size() + host.size() == 107 && (path.contains(host) || host.endsWith(path))")
	if err != nil {
		t.Fatal(err)
	}
	rules := make([]*Rule, 20_000)
	for i := range rules {
		rules[i] = testRule(t, fmt.Sprint("r", i)).with(func(r *Rule) { r.Exprs = &Exprs{If: p} })
	}
	rules = append(rules, testRule(t, "last"))
	m := matchMap(testSet(t, &File{Rules: rules}), Map{"path": "/aaaaa", "host": "a"})
	if met(m) != "last" || m.TooCostly != nil || m.CELErrors > 0 {
		t.Errorf("met %q, %d failed", met(m), m.CELErrors)
	}
}
