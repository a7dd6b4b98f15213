package gather

import (
	"fmt"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// TestTimelineSaysWhatChanged: the event of other rules has what changed and, once it is known, the
// version of the source. Only the latest of many keep it, and the others how much it was.
func TestTimelineSaysWhatChanged(t *testing.T) {
	n := 0
	c := New(Options{Changed: func(before, after *rule.Set) insight.RuleChanges {
		n++
		if before == nil || after == nil || before == after {
			t.Errorf("asked for %p and %p", before, after)
		}
		return insight.RuleChanges{Changes: []insight.RuleChange{{Domain: "shop", Rule: fmt.Sprint("r", n),
			Change: insight.Added}}, More: 3}
	}})
	hooks := c.Hooks()
	const many = snapshot.MostDetailed + 5
	for i := range many + 1 {
		s, err := rule.Of(rule.Spec{Name: "r", Allow: fmt.Sprint(i+1, "/min")})
		if err != nil {
			t.Fatal(err)
		}
		hooks.RulesChanged(s, uint64(i+1))
		if i > 0 {
			c.RulesVersion(fmt.Sprint(i))
		}
	}
	events := c.Snapshot(snapshot.Want{}).Events[1:] // behind the start
	if len(events) != many || n != many {
		t.Fatalf("%d events, asked %d times", len(events), n)
	}
	for i, e := range events {
		want := insight.RuleChanges{More: 4}
		if i >= 5 {
			want = insight.RuleChanges{Changes: []insight.RuleChange{{Domain: "shop", Rule: fmt.Sprint("r", i+1),
				Change: insight.Added}}, More: 3}
		}
		if e.Kind != "rules" || e.Version != fmt.Sprint(i+1) || fmt.Sprint(e.RuleChanges) != fmt.Sprint(want) {
			t.Errorf("event %d: %+v", i, e)
		}
	}
}
