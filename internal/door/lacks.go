package door

import (
	"fmt"
	"strings"

	"github.com/weir-rl/weir/rule"
)

// maxNoted is up to how many names one note lists.
const maxNoted = 8

// DescribeLacks says in words which rules cannot be met, and which attributes are missing; "" if
// there are none. Servers log it when a door starts.
func DescribeLacks(lacks []rule.Lack) string {
	var names []string
	for i, l := range lacks {
		if i == maxNoted {
			names = append(names, fmt.Sprintf("%d more", len(lacks)-i))
			break
		}
		names = append(names, fmt.Sprintf("%s (no %s)", l.Rule.Name, l.Attribute))
	}
	return strings.Join(names, ", ")
}
