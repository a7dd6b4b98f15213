package fleet

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
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
				f, nodes, err := m.Find(t.Context(), q)
				found = f
				return err == nil && nodes.Answered == 3
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
	if _, n, err := all[0].Find(t.Context(), q); err != nil || n.Answered != 1 || n.Remark == "" {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestFindShared: those who ask the same at one time share one search of all nodes, and may each
// change what they got; other questions are other searches.
func TestFindShared(t *testing.T) {
	t.Parallel()
	all := newFleet(t, redistest.Start(t).URL(), 2, shop)
	m := all[1]
	m.ask(t, "batch-17")
	patience.Until(t, "both nodes answer", func() bool {
		_, n, err := m.Find(t.Context(), find.Query{Text: []byte("other")})
		return err == nil && n.Answered == 2
	})
	m.searching <- struct{}{} // no search goes on until all have asked
	before := m.o.Nodes.Stats().Asked
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			q := find.Query{Text: []byte("batch"), Whole: i%2 == 1}
			if q.Whole {
				q.Text = []byte("batch-17")
			}
			found, _, err := m.Find(t.Context(), q)
			if err != nil || len(found.Hits) != 1 || found.Hits[0].Key != "user=batch-17" {
				t.Errorf("%+v, %v", found, err)
				return
			}
			found.Hits[0].Key = "changed"
		})
	}
	patience.Until(t, "all wait", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		waiting := 0
		for _, s := range m.searches {
			waiting += s.waiting
		}
		return waiting == 20
	})
	<-m.searching
	wg.Wait()
	if asked := m.o.Nodes.Stats().Asked - before; asked != 2 {
		t.Errorf("20 who asked two questions asked the nodes %d times", asked)
	}
}

// TestFindGivenUp: a search ends when the last one who waits for it goes away, and not before.
func TestFindGivenUp(t *testing.T) {
	t.Parallel()
	all := newFleet(t, redistest.Start(t).URL(), 1, shop)
	m := all[0]
	m.searching <- struct{}{}
	var ends [2]context.CancelFunc
	var gone [2]chan error
	for i := range ends {
		var ctx context.Context
		ctx, ends[i] = context.WithCancel(t.Context())
		gone[i] = make(chan error, 1)
		go func() {
			_, _, err := m.Find(ctx, find.Query{Text: []byte("batch")})
			gone[i] <- err
		}()
	}
	under := func() (s *search, waiting int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if s = m.searches[wanted{text: "batch"}]; s != nil {
			waiting = s.waiting
		}
		return s, waiting
	}
	patience.Until(t, "both wait", func() bool { _, n := under(); return n == 2 })
	s, _ := under()
	ends[0]()
	if err := <-gone[0]; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if again, n := under(); again != s || n != 1 {
		t.Errorf("the search of another one ended with the first: %d wait", n)
	}
	ends[1]()
	<-gone[1]
	<-s.done // although no search can go on
	if again, _ := under(); again != nil || !errors.Is(s.err, context.Canceled) {
		t.Errorf("%v, %v", again, s.err)
	}
	<-m.searching
	if _, _, err := m.Find(t.Context(), find.Query{Text: []byte("batch")}); err != nil {
		t.Error(err)
	}
}
