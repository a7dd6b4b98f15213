package servertest

import (
	"fmt"
	"strings"
)

// CostlyRules have an expression that takes too long on any request, and one that does not.
var CostlyRules = func() string {
	list := "[" + strings.TrimSuffix(strings.Repeat("1, ", 100), ", ") + "]"
	return fmt.Sprintf(`
domain: same
limits:
  - name: before
    when: {path: /costly}
    allow: 1000/min
  - name: costly
    when: {path: /costly}
    per: [door]
    allow: 1000/min
    if: &long "%[1]s.all(a, %[1]s.all(b, %[1]s.all(c, a + b + c < 10)))"
  - name: priced
    when: {path: /priced}
    per: [door]
    allow: 1000/min
    cost: "%[1]s.all(a, %[1]s.all(b, %[1]s.all(c, a + b + c < 10))) ? 1 : 2"
  - name: trial
    when: {path: /trial}
    allow: 1000/min
    if: *long
    on_limit: shadow
  - name: beside-trial
    when: {path: /trial}
    allow: 1000/min
    if: 1 + 1 == 2
`, list)
}()
