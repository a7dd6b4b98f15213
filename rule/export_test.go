package rule

// What package rule/file does for the tests of this one; bridge_test.go sets it.
var (
	CompileIf   func(source string) (Predicate, error)
	CompileCost func(source string) (Amount, error)
	LoadText    func(text string) (*Set, error)
)
