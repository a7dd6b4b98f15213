package fleet

import (
	"context"
	"encoding/json"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// Find implements admin.Nodes.
func (f *Fleet) Find(ctx context.Context, q find.Query) (find.Found, insight.Nodes) {
	found := f.search(q)
	n := f.others(ctx, kindFind, q, func(a nodes.Answer) {
		var more find.Found
		if f.read(a, &more) {
			found.Add(&more)
		}
	})
	found.Finish(&q)
	return found, n
}

// search searches what this node has seen.
func (f *Fleet) search(q find.Query) find.Found {
	f.searching.Lock()
	defer f.searching.Unlock()
	var seed uint64 // the same for both
	switch {
	case f.o.Insight != nil:
		seed = f.o.Insight.Seed()
	case f.o.Recent != nil:
		seed = f.o.Recent.Seed()
	}
	b := find.NewBook(&q, seed)
	if f.o.Recent != nil {
		f.o.Recent.Search(b)
	}
	if f.o.Insight != nil {
		f.o.Insight.Search(b)
	}
	return b.Found()
}

func (f *Fleet) answerFind(_ context.Context, args []byte) ([]byte, error) {
	var q find.Query
	if err := json.Unmarshal(args, &q); err != nil {
		return nil, err
	}
	return json.Marshal(f.search(q))
}
