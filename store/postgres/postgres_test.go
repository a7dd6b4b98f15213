package postgres_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
	"github.com/weir-rl/weir/store/storetest"
)

var schemas atomic.Int64

// newSchema returns the name of a schema that no test has used.
func newSchema() string { return fmt.Sprint("of_", schemas.Add(1)) }

// inSchema returns the URL of a schema that no test has used.
func inSchema(url string) string { return url + "&weir_schema=" + newSchema() }

// open opens a store.
func open(t testing.TB, o postgres.Options) *postgres.Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second // a busy machine is no failure
	}
	s, err := postgres.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestContract(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, postgres.Options{URL: inSchema(s.URL()), Clock: clock})
	})
}

// TestDifferential: decisions equal a plain model's, step by step.
func TestDifferential(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	steps := effort.Of(200, 2000)
	storetest.Differential(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, postgres.Options{URL: inSchema(s.URL()), Clock: clock})
	}, steps, 0)
}

func TestBoard(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	storetest.Board(t, func(t *testing.T, clock func() int64) store.Board {
		return open(t, postgres.Options{URL: inSchema(s.URL()), Clock: clock})
	})
}

func TestMatrix(t *testing.T) {
	effort.Long(t, "TestMatrix of store/cas runs the same over an engine in memory")
	t.Parallel()
	storetest.Matrix(t, open(t, postgres.Options{URL: pgtest.Shared(t).URL()}))
}
