package file

import "strings"

// Starter returns the rules that a server starts with when it has none of its own: 10 requests a
// minute and 500 an hour for each value of the attribute "key", in the default domain.
func Starter() Source {
	return Source{Name: "starter.yaml", Data: []byte(strings.TrimLeft(starter, "\n"))}
}

const starter = `
domain: default
limits:
  - name: starter
    per: [key]
    allow: [10/min, 500/hour]
    algorithm: sliding_log
`
