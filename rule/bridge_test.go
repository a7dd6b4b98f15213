package rule_test

import (
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// The tests inside package rule cannot import package rule/file, which imports it.
func init() {
	rule.CompileIf, rule.CompileCost = file.CompileIf, file.CompileCost
	rule.LoadText = func(text string) (*rule.Set, error) {
		set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(text)}}, file.Options{})
		return set, err
	}
}
