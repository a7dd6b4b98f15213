//go:build unix

package stores

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// sameFound checks that each node finds the same keys of the rule search, so many that
// were refused. How many refusals are of the last minute changes while they are asked.
func sameFound(t *testing.T, all []*fleetNode, text string, refused int) {
	t.Helper()
	var first string
	for i, n := range all {
		var list admin.FoundList
		servertest.Eventually(t, "all nodes answer in time", func() bool {
			list = get[admin.FoundList](t, n.Admin+"/api/v1/find?n=200&text="+url.QueryEscape(text))
			return list.Nodes.Answered == len(all)
		})
		var keys []string
		for _, h := range list.Found {
			if h.RefusedAt != nil {
				keys = append(keys, fmt.Sprint(h.Domain, " ", h.Key, " ", h.Counter, " ", h.RefusedAt, " ", h.SeenAt))
			}
		}
		slices.Sort(keys)
		found := strings.Join(keys, "\n")
		if len(keys) != refused || list.LeftOut != 0 {
			t.Errorf("%s: node %d finds %d that were refused, want %d:\n%s", text, i, len(keys), refused, found)
		}
		if i == 0 {
			first = found
		}
		if found != first {
			t.Errorf("%s: node %d finds\n%s\nand node 0\n%s", text, i, found, first)
		}
	}
}
