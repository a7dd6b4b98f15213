package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// wanted is what makes two searches the same. Refusals are counted from an instant on that differs
// by keptFor at most.
type wanted struct {
	text, domain string
	whole        bool
}

// search is one under way, or of a moment ago.
type search struct {
	done    chan struct{}
	waiting int    // who wait for it; under Fleet.mu
	stop    func() // it, when nobody waits any more
	at      time.Time
	found   find.Found
	nodes   insight.Nodes
	err     error
}

var errSearch = errors.New("what the nodes found could not be merged; the log says why")

// Find implements admin.Nodes. Those who ask the same at one time, or within keptFor, share the
// answer. A search that nobody waits for any more ends.
func (f *Fleet) Find(ctx context.Context, q find.Query) (find.Found, insight.Nodes, error) {
	want := wanted{string(q.Text), q.Domain, q.Whole}
	f.mu.Lock()
	s := f.searches[want]
	if s == nil || !s.at.IsZero() && time.Since(s.at) >= keptFor {
		f.forgetSearches()
		if len(f.searches) >= mostUnderWay {
			f.mu.Unlock()
			return find.Found{}, insight.Nodes{}, fmt.Errorf("%d other searches are under way; try again", mostUnderWay)
		}
		s = &search{done: make(chan struct{})}
		f.searches[want] = s
		// It serves all who wait, so that it does not end with the first of them.
		under, stop := context.WithCancel(context.WithoutCancel(ctx))
		s.stop = stop
		go f.run(under, q, s)
	}
	s.waiting++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.waiting--; s.waiting > 0 || !s.at.IsZero() {
			return
		}
		s.stop()
		if f.searches[want] == s {
			delete(f.searches, want)
		}
	}()
	select {
	case <-s.done:
		found := s.found // the caller may change the lists
		found.Hits, found.Decisions = slices.Clone(found.Hits), slices.Clone(found.Decisions)
		return found, s.nodes, s.err
	case <-ctx.Done():
		return find.Found{}, insight.Nodes{}, ctx.Err()
	}
}

// forgetSearches drops answers that are not used again, and if there are many also others that are
// there. f.mu is held.
func (f *Fleet) forgetSearches() {
	for want, s := range f.searches {
		if !s.at.IsZero() && (time.Since(s.at) >= keptFor || len(f.searches) >= mostUnderWay) {
			delete(f.searches, want)
		}
	}
}

// run searches on all nodes. It recovers: a bad answer of another node must not end the program.
func (f *Fleet) run(ctx context.Context, q find.Query, s *search) {
	defer s.stop()
	defer func() {
		f.mu.Lock()
		s.at = time.Now()
		f.mu.Unlock()
		close(s.done)
	}()
	defer f.recovered(func() { s.err = errSearch })
	if s.found, s.err = f.search(ctx, q); s.err != nil {
		return
	}
	s.nodes = f.others(ctx, kindFind, q, func(a nodes.Answer) {
		var more find.Found
		if f.read(a, &more) {
			s.found.Add(&more)
		}
	})
	s.found.Finish(&q)
}

// search searches what this node has seen.
func (f *Fleet) search(ctx context.Context, q find.Query) (find.Found, error) {
	select {
	case f.searching <- struct{}{}: // one at a time
		defer func() { <-f.searching }()
	case <-ctx.Done():
		return find.Found{}, ctx.Err()
	}
	var seed uint64 // the same for both
	switch {
	case f.o.Insight != nil:
		seed = f.o.Insight.Seed()
	case f.o.Recent != nil:
		seed = f.o.Recent.Seed()
	}
	b := find.NewBook(&q, seed)
	b.StopWhen(ctx.Done())
	if f.o.Recent != nil {
		f.o.Recent.Search(b)
	}
	if f.o.Insight != nil {
		f.o.Insight.Search(b)
	}
	return b.Found(), ctx.Err()
}

func (f *Fleet) answerFind(ctx context.Context, args []byte) ([]byte, error) {
	var q find.Query
	if err := json.Unmarshal(args, &q); err != nil {
		return nil, err
	}
	found, err := f.search(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(found)
}
