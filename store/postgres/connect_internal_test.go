package postgres

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/store/cas"
)

// mustRead makes a call.
func (e *engine) mustRead(t *testing.T) {
	t.Helper()
	if _, _, err := e.Read(t.Context(), []cas.Key{{Name: []byte("k")}}); err != nil {
		t.Fatal(err)
	}
}

// TestStatementsLost: a connection that has forgotten its statements, and one whose statements are
// of a table that has been changed since, are given up. That is no pooler.
func TestStatementsLost(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	e := engineAt(t, s.URL())
	e.mustRead(t)
	c, err := e.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "deallocate all"); err != nil {
		t.Fatal(err)
	}
	c.Release()
	e.mustRead(t)

	scan := func() error {
		_, _, err := e.Scan(t.Context(), "", 10, func([]byte, cas.Value) {})
		return err
	}
	if err := scan(); err != nil {
		t.Fatal(err)
	}
	s.Exec("alter table weir.states alter version type bigint[] using array[version]")
	if err := scan(); err != nil {
		t.Errorf("a table without rows of another type: %v", err)
	}
	s.Exec("alter table weir.states alter version type bigint using version[1]")
	if err := scan(); err != nil {
		t.Errorf("a table that is as it was: %v", err)
	}
	if !e.named() {
		t.Error("a pooler is believed to be there")
	}
}

// TestPooler: a pooler that spreads statements is found, and looked for again after a while.
func TestPooler(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	e := engineAt(t, s.Bouncer("transaction").URL())
	found := func() bool {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, _, err := e.Read(t.Context(), []cas.Key{{Name: []byte("k")}}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		return !e.named()
	}
	patience.Until(t, "the pooler is found", found)
	e.unnamedUntil.Store(0)
	patience.Until(t, "the pooler is found again", found)
}

// TestIsolationPooled: what a pooler does not let a node set for itself alone is refused, and its
// remedy named.
func TestIsolationPooled(t *testing.T) {
	effort.Long(t, "starts a server of its own; TestPooler has one before that of all tests")
	t.Parallel()
	s := pgtest.Start(t)
	s.Exec("alter role weir set default_transaction_isolation = 'repeatable read'")
	e := engineAt(t, s.Bouncer("transaction").URL())
	_, _, err := e.Read(context.Background(), nil)
	const want = `give the role "weir" default_transaction_isolation = 'read committed'`
	if err == nil || !strings.Contains(err.Error(), "transactions in PostgreSQL are repeatable read") ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want that it says %q", err, want)
	}
	s.Exec("alter role weir reset default_transaction_isolation")
	s.Exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'weir'")
	patience.Until(t, "it is as it should be", func() bool {
		_, _, err := e.Read(t.Context(), nil)
		return err == nil
	})
}

// TestSilentBehindPooler: a connection to a pooler whose server says nothing is given up, so that
// it keeps no place in the pool.
func TestSilentBehindPooler(t *testing.T) {
	effort.Long(t, "starts a server of its own; TestPooler has one before that of all tests")
	t.Parallel()
	s := pgtest.Start(t)
	e := engineAt(t, s.Bouncer("session").URL()+"&connect_timeout=1")
	e.mustRead(t)
	e.pool.Reset()
	s.Pause()
	defer s.Resume()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, _, err := e.Read(ctx, []cas.Key{{Name: []byte("k")}})
		ended <- err
	}()
	patience.Until(t, "a connection is made", func() bool { return e.pool.Stat().ConstructingConns() > 0 })
	cancel()
	if err := <-ended; err == nil {
		t.Error("a server that is paused answers")
	}
	patience.Until(t, "it is given up", func() bool { return e.pool.Stat().ConstructingConns() == 0 })
}
