package file_test

import (
	"fmt"
	"log"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// A rule file becomes a set, which weir.WithRules puts in force.
func ExampleLoad() {
	set, warnings, err := file.Load([]file.Source{{Name: "api.yaml", Data: []byte(`
limits:
  - name: logins
    when: { path: /login }
    per: [ip]
    allow: 5/min
`)}}, file.Options{})
	if err != nil {
		log.Fatal(err)
	}
	var m rule.Matches
	set.Match(&rule.Query{Domain: rule.DefaultDomain, Attributes: rule.Map{"path": "/login", "ip": "192.0.2.1"}}, &m)
	fmt.Println(len(warnings), m.Hits[0].Window.Name, m.Hits[0].Window.KeyParts(m.Hits[0].Key))
	// Output: 0 logins [ip=192.0.2.1]
}
