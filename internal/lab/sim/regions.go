package sim

import (
	"fmt"
	"slices"

	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

// mostRegional bounds the rules that Regional names.
const mostRegional = 8

// Regional names, in words, the limited rules of a domain that hold over several regions, and
// reports whether there are many; "" if there are none. The domain "" means all. A simulation is
// one region, which has all of each limit.
func Regional(s *rule.Set, domain string) (names string, many bool) {
	var list []string
	for _, r := range s.Rules() {
		if r.Regions != nil && !r.Unlimited && (domain == "" || r.Domain == domain) && !slices.Contains(list, r.Name) {
			list = append(list, r.Name)
		}
	}
	many = len(list) > 1
	if more := len(list) - mostRegional; more > 0 {
		list = append(list[:mostRegional], fmt.Sprintf("%d more", more))
	}
	return human.List(list, "and"), many
}

// noteRegional says which rules were replayed as if there was one region.
func (rep *Report) noteRegional(x *outcome) {
	names, many := Regional(x.Set, x.Domain)
	text := names +
		" holds over several regions: it was replayed as if all requests had come to one, which had all of the limit."
	if many {
		text = names +
			" hold over several regions: they were replayed as if all requests had come to one, which had all of each limit."
	}
	if names != "" && !slices.Contains(rep.Notes, text) { // two sets may say the same
		rep.note(text)
	}
}
