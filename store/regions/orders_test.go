package regions

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// TestOrdersKeepTheirAge: a ban that another region takes over late, and one that it takes over of
// a third, says how long it has been in force, and all else as it was.
func TestOrdersKeepTheirAge(t *testing.T) {
	c := borrowable(t, kinds[1], rule.Regions{Tell: 2})
	var clock atomic.Int64
	clock.Store(time.Now().UnixMicro())
	us, err := memory.New(memory.Options{Clock: clock.Load})
	if err != nil {
		t.Fatal(err)
	}
	for id, data := range map[string]string{
		"own": `{"v":1,"limit":"<a>","at":1700000000000000}`, "relayed": `{"v":1,"before":5000000,"at":1700000000000000}`, "strange": `{"v":1,"before":"x","at":1700000000000000}`,
	} {
		if err := us.Post(context.Background(), "ban", []store.Fact{{ID: id, Data: []byte(data), TTL: 24 * time.Hour}}); err != nil {
			t.Fatal(err)
		}
	}
	clock.Add(time.Hour.Microseconds())
	own := newMemory(t)
	s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}}, Own: own,
		Peers: map[string]Neighbour{"us": us}, Rules: rulesOf(c)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	patience.Until(t, "eu has taken them over", func() bool { return s.Stats().Orders == 3 })
	facts, err := own.List(context.Background(), "ban")
	if err != nil || len(facts) != 3 {
		t.Fatalf("%+v, %v", facts, err)
	}
	for _, f := range facts {
		var got struct {
			Limit  string
			At     int64
			Before any
		}
		if err := json.Unmarshal(f.Data, &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]any{"own": 3.6e9, "relayed": 3.605e9, "strange": "x"}[f.ID]
		if got.Before != want || got.At != 1700000000000000 || (got.Limit == "<a>") != (f.ID == "own") {
			t.Errorf("%s: %s", f.ID, f.Data)
		}
	}
}
