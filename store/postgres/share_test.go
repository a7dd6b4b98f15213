package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
)

// TestSchemaAtOnce: nodes that are started together on an empty database make its tables once.
func TestSchemaAtOnce(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	var wg sync.WaitGroup
	for range 8 {
		w := newTaker(t, open(t, postgres.Options{URL: s.URL()}))
		wg.Go(func() {
			if err := w.try(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w := newTaker(t, open(t, postgres.Options{URL: s.URL()}))
	w.made = 8
	w.counted()
}

// TestTables: the URL says whether tables are logged, and what they hold outlives a change.
func TestTables(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	of := func() string {
		return s.Text("select relpersistence from pg_class where oid = 'weir.states'::regclass")
	}
	made := int64(0)
	for _, step := range []struct{ tables, want string }{{"", "p"}, {"unlogged", "u"}, {"", "u"}, {"synced", "p"},
		{"logged", "p"}} {
		address := s.URL()
		if step.tables != "" {
			address += "&weir_tables=" + step.tables
		}
		w := newTaker(t, open(t, postgres.Options{URL: address}))
		w.made = made
		w.counted()
		made = w.made
		if got := of(); got != step.want {
			t.Errorf("weir_tables=%s: the table is %s, want %s", step.tables, got, step.want)
		}
	}
}

// TestTablesTakeLong: a change of the table's kind that takes longer than a call goes on while
// calls fail, rather than being begun anew by each.
func TestTablesTakeLong(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	newTaker(t, open(t, postgres.Options{URL: s.URL()})).well()
	ctx := context.Background()
	reader, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close(ctx) }()
	if _, err := reader.Exec(ctx, "begin; lock table weir.states in access share mode"); err != nil {
		t.Fatal(err)
	}
	w := newTaker(t, open(t, postgres.Options{URL: s.URL() + "&weir_tables=unlogged", Timeout: 300 * time.Millisecond}))
	patience.Until(t, "the table is being changed", func() bool {
		err := w.try(ctx)
		return errors.Is(err, store.ErrNotCharged) && strings.Contains(err.Error(), "is being made another kind")
	})
	const changing = "select coalesce(min(pid), 0) from pg_stat_activity where datname = current_database() and query like 'alter table%' and wait_event_type = 'Lock'"
	pid := int64(0)
	patience.Until(t, "the change waits for a reader", func() bool { pid = s.Number(changing); return pid != 0 })
	for range 3 {
		if err := w.try(ctx); !errors.Is(err, store.ErrNotCharged) {
			t.Errorf("while the table is changed: %v", err)
		}
	}
	if now := s.Number(changing); now != pid {
		t.Errorf("the change was given up, and begun anew")
	}
	if _, err := reader.Exec(ctx, "rollback"); err != nil {
		t.Fatal(err)
	}
	w.well()
	if kind := s.Text("select relpersistence from pg_class where oid = 'weir.states'::regclass"); kind != "u" {
		t.Errorf("the table is %s, want u", kind)
	}
}

// TestNoRights: a role that may create nothing works on tables that are there, and else says so.
func TestNoRights(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	s.Exec("create role small login")
	w := newTaker(t, open(t, postgres.Options{URL: s.URLOf("small")}))
	if err := w.try(t.Context()); !errors.Is(err, store.ErrNotCharged) ||
		!strings.Contains(err.Error(), "permission denied for database weir") {
		t.Errorf("there are no tables: %v", err)
	}
	newTaker(t, open(t, postgres.Options{URL: s.URL()})).well()
	s.Exec("grant usage on schema weir to small")
	s.Exec("grant select, insert, update, delete on all tables in schema weir to small")
	w.well()
}

// TestNewerSchema: tables of a version that this program does not know are left alone.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	newTaker(t, open(t, postgres.Options{URL: s.URL()})).well()
	s.Exec("update weir.meta set value = '99' where name = 'version'")
	err := newTaker(t, open(t, postgres.Options{URL: s.URL()})).try(t.Context())
	if !errors.Is(err, store.ErrNotCharged) || !strings.Contains(err.Error(), "its version is 99") {
		t.Errorf("a newer version: %v", err)
	}
}

// TestNodes: nodes know how many they are.
func TestNodes(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	o := postgres.Options{URL: s.URL(), Heartbeat: 200 * time.Millisecond}
	a, b := open(t, o), open(t, o)
	both := func(n int) func() bool { return func() bool { return a.Nodes() == n && b.Nodes() == n } }
	patience.Until(t, "both know of two", both(2))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "one is left", func() bool { return a.Nodes() == 1 })
}

// TestWatch: what one node posts, another hears; also where a pooler loses all messages.
func TestWatch(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for name, address := range map[string]string{"Direct": s.URL(),
		"Transaction": s.Bouncer("transaction", "default_pool_size = 3").URL()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := postgres.Options{URL: address + "&weir_schema=watch_" + strings.ToLower(name)}
			a, b := open(t, o), open(t, o)
			heard := make(chan string, 100)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				_ = a.Watch(ctx, "ban", func(facts []store.Fact, anew bool) {
					for _, f := range facts {
						heard <- fmt.Sprint(f.ID, "=", string(f.Data), f.Removed)
					}
					if anew {
						heard <- "anew"
					}
				})
			}()
			before := ""
			want := func(what string) {
				t.Helper()
				got := <-heard
				for got == before && got != "anew" { // one read in thirty looks back
					got = <-heard
				}
				if before = got; got != what {
					t.Errorf("heard %s, want %s", got, what)
				}
			}
			want("anew")
			if err := b.Post(t.Context(), "ban", []store.Fact{{ID: "x", Data: []byte("1"), TTL: time.Hour}}); err != nil {
				t.Fatal(err)
			}
			want("x=1false")
			if err := b.Remove(t.Context(), "ban", []string{"x"}); err != nil {
				t.Fatal(err)
			}
			want("x=true")
		})
	}
}

// TestForget: a refusal that one node remembers is forgotten when another one resets the key.
func TestForget(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	o := postgres.Options{URL: s.URL(), RememberRefusals: time.Hour}
	a, b := newTaker(t, open(t, o)), newTaker(t, open(t, o))
	c, err := counterOf(algo.Config{Algorithm: algo.FixedWindow, N: 1, Window: 366 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	a.counter, b.counter = c, c
	a.well()
	patience.Until(t, "the refusal is remembered", func() bool {
		if _, err := a.take(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		return a.s.Stats().Remembered > 0
	})
	patience.Until(t, "another node has freed the key", func() bool {
		if _, err := b.s.Reset(t.Context(), c, []byte("key")); err != nil {
			t.Fatal(err)
		}
		r, err := a.take(t.Context(), 1)
		return err == nil && r.Allowed
	})
}

// TestReservations: several nodes share them, and each is handed out once.
func TestReservations(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	a, b := open(t, postgres.Options{URL: s.URL()}), open(t, postgres.Options{URL: s.URL()})
	const n = 300
	for i := range n {
		if err := a.Hold(t.Context(), fmt.Sprint(i), fmt.Append(nil, i), time.Microsecond); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Hold(t.Context(), "0", nil, time.Hour); !errors.Is(err, store.ErrNotCharged) {
		t.Errorf("an id twice: %v", err)
	}
	var mu sync.Mutex
	times := map[string]int{}
	var wg sync.WaitGroup
	for _, node := range []*postgres.Store{a, b, a, b} {
		wg.Go(func() {
			for {
				notes, err := node.Expired(context.Background(), 7)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				for _, note := range notes {
					times[string(note)]++
				}
				done := len(times) == n || err != nil
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	for note, k := range times {
		if k != 1 {
			t.Errorf("note %s was handed out %d times", note, k)
		}
	}
}
