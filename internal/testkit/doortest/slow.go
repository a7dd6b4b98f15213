package doortest

import (
	"fmt"
	"strings"
)

// SlowRules is a rule file of a domain in which a request that has the attribute is tried on
// hundreds of limits, which nothing tells apart. It meets one, of 3 an hour for each value of the
// attribute; one without it is limited to 3 an hour for each value of the attribute other.
func SlowRules(domain, attribute, other string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\nlimits:\n", domain)
	for i := range 400 {
		fmt.Fprintf(&b, "- {name: r%d, when: {%s: \"~^[A-Z]{1,%d}[0-9]+$\"}, allow: 1/min}\n", i, attribute, 1+i)
	}
	fmt.Fprintf(&b, "- {name: met, per: [%s], allow: 3/hour}\n", attribute)
	fmt.Fprintf(&b, "- {name: other, when: {%s: \"!**\"}, per: [%s], allow: 3/hour}\n", attribute, other)
	return b.String()
}
