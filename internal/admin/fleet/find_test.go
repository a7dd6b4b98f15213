package fleet

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestFind: each node finds the same, and counts what all of them refused.
func TestFind(t *testing.T) {
	t.Parallel()
	all := newFleet(t, redistest.Start(t).URL(), 3, shop)
	for i := range 7 {
		for range 3 + i%2 {
			all[i%3].ask(t, "batch-17") // is refused from the sixth on
		}
	}
	all[2].ask(t, "nobatch")
	for range 6 {
		all[1].ask(t, "Batch-\xff")
	}
	refused := 7*3 + 3 - 5
	q := find.Query{Since: time.Now().Add(-time.Hour).UnixMicro()}
	for _, text := range []string{"batch", "user=BATCH-1", "batch-17"} {
		q.Text = []byte(text)
		var first find.Found
		for i, m := range all {
			var found find.Found
			patience.Until(t, "all nodes answer", func() bool {
				f, nodes := m.Find(t.Context(), q)
				found = f
				return nodes.Answered == 3
			})
			if i == 0 {
				first = found
			}
			if !reflect.DeepEqual(found, first) {
				t.Errorf("%s: node %d finds\n%+v, and node 0\n%+v", text, i, found, first)
			}
		}
		if h := first.Hits[0]; h.Key != "user=batch-17" || int(h.Refused) != refused || h.By[0].Value != "search" ||
			int(h.By[0].Count) != refused {
			t.Errorf("%s: %+v", text, h)
		}
		var keys []string
		for _, h := range first.Hits {
			keys = append(keys, fmt.Sprintf("%s %d %d", h.Key, h.Refused, h.Allowed))
		}
		const want = "user=batch-17 19 5, user=Batch-\uFFFD 1 5, user=nobatch 0 1"
		if got := strings.Join(keys, ", "); text == "batch" && got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	// A text that is too long for a question is found here alone, and the answer says so.
	q.Domain = strings.Repeat("d", 1000)
	if _, n := all[0].Find(t.Context(), q); n.Answered != 1 || n.Remark == "" {
		t.Errorf("%+v", n)
	}
}
