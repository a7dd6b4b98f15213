package rule

import (
	"fmt"
	"slices"
	"strings"
)

// ValidName reports whether name can be the name of a limit or of a queue: 1 to 200 letters,
// digits, -, _ and dots.
func ValidName(name string) bool { return isName(name, 200, "_.-", true) }

// ValidAttribute reports whether name can be the name of an attribute: 1 to 256 bytes without
// spaces and control characters.
func ValidAttribute(name string) bool {
	return name != "" && len(name) <= 256 &&
		!strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f })
}

// maxPer is the most entries that per may have.
const maxPer = 16

// Fault is a fault of one text of a list; At is its index, -1 for the list as a whole.
type Fault struct {
	At int
	Problem
}

// ParsePer reads the entries of `per`: each names an attribute, or several with | between them, and
// then the first that a request has counts. It returns all faults.
func ParsePer(entries []string) (keys []Key, faults []Fault) {
	seen := map[string]bool{}
	fault := func(at int, hint, format string, args ...any) {
		faults = append(faults, Fault{at, Problem{Message: fmt.Sprintf(format, args...), Hint: hint}})
	}
	for i, entry := range entries {
		var k Key
		for name := range strings.SplitSeq(entry, "|") {
			switch name = strings.TrimSpace(name); {
			case !ValidAttribute(name):
				fault(i, "as in ip, path or header.x-plan", "per: %q is no name of an attribute", clip(name))
			case slices.Contains(k, name) || strings.Contains(name, ","):
				fault(i, "", "per: %q names an attribute twice, or holds a comma", clip(entry))
			default:
				k = append(k, name)
			}
		}
		if joined := strings.Join(k, "|"); len(k) > 0 {
			if seen[joined] {
				fault(i, "name it once", "per: %q stands twice", joined)
			}
			seen[joined] = true
			keys = append(keys, k)
		}
	}
	if len(keys) > maxPer {
		fault(-1, "", "per: at most %d attributes make a key, got %d", maxPer, len(keys))
	}
	return keys, faults
}

// isName reports whether name has 1 to longest bytes, all of them digits, lower-case letters,
// upper-case ones if those may stand there, or one of others.
func isName(name string, longest int, others string, upper bool) bool {
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || upper && 'A' <= c && c <= 'Z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return 0 < len(name) && len(name) <= longest
}
