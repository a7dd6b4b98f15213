package deferred

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestPostgresReads: how many rows operations read does not grow with those that wait and those
// that are done, whether plans were made when there were few, many, or many that were counted.
func TestPostgresReads(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t, "autovacuum = off")
	open := func() (*Postgres, *pgxpool.Pool) {
		config, err := pgxpool.ParseConfig(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		config.MaxConns = 1 // which has made its plans before
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		q, err := NewPostgres(pool, "s", Bounds{})
		if err != nil {
			t.Fatal(err)
		}
		return q, pool
	}
	work := func(q Queue, jobs int) {
		t.Helper()
		for range jobs {
			put(t, q, job("one"))
			j := next(t, q)
			if ok, err := q.Take(t.Context(), j, time.Minute); !ok {
				t.Fatal(err)
			}
			if err := q.Sent(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			if err := q.Done(t.Context(), j, 200); err != nil {
				t.Fatal(err)
			}
		}
	}
	q, pool := open()
	reads := func() (n int64) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), "select pg_stat_force_next_flush()"); err != nil {
			t.Fatal(err)
		}
		return server.Number(
			"select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint from pg_stat_user_tables where schemaname = 's'")
	}
	const jobs, most = 10, 60
	judge := func(when string) {
		t.Helper()
		work(q, 10) // PostgreSQL chooses its plans by the first calls
		before := reads()
		work(q, jobs)
		if n := (reads() - before) / jobs; n > most {
			t.Errorf("%s: %d rows are read for each job, want %d at most", when, n, most)
		} else {
			t.Logf("%s: %d rows are read for each job", when, n)
		}
	}
	work(q, 10)
	many := effort.Of(100, 500)
	for range many {
		put(t, q, job("one"))
	}
	work(q, many)
	judge("with the plans of an empty table")
	q, pool = open()
	judge("with those of a full one")
	server.Exec("analyze s.deferred_jobs, s.deferred_lines, s.deferred_sums")
	judge("with those of one that was counted")
}

// TestPostgresSilent: a server that is gone without a word keeps nobody, and what was put before is
// found once there is one again.
func TestPostgresSilent(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	network := redistest.Proxy(t, server.Addr())
	pool, err := pgxpool.New(t.Context(), strings.Replace(server.URL(), server.Addr(), network.Addr(), 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	q, err := NewPostgres(pool, "s", Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	first := put(t, q, job("one"))
	network.BlackHole()
	t.Cleanup(network.Pass) // else the pool would wait for ever
	q.timeout = 50 * time.Millisecond
	ended := make(chan error, 1)
	go func() {
		_, _, err := q.Next(t.Context(), time.Minute)
		ended <- err
	}()
	if err := patience.Receive(t, "the end of the call", ended); err == nil {
		t.Fatal("a server that says nothing has answered")
	}
	q.timeout = postgresTimeout
	network.Pass()
	patience.Until(t, "the job is found", func() bool {
		j, _, err := q.Next(t.Context(), time.Minute)
		return err == nil && j != nil && j.ID == first.ID
	})
}
