package postgres_test

import (
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
)

// TestPasswordReplaced: new connections have the password that is in the file then.
func TestPasswordReplaced(t *testing.T) {
	effort.Long(t, "starts a server of its own; TestTLS has a password, too")
	t.Parallel()
	s := pgtest.Start(t)
	s.Exec("grant create on database weir to guarded")
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pgpass")
	write := func(password string) {
		t.Helper()
		line := host + ":" + port + ":weir:guarded:" + strings.ReplaceAll(password, ":", `\:`) + "\n"
		if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(pgtest.Password)
	w := newTaker(t, open(t, postgres.Options{URL: s.URLOf("guarded") + "&passfile=" + url.QueryEscape(file)}))
	w.well()
	s.Exec("alter role guarded password 'another'")
	s.Exec("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'guarded'")
	for err := error(nil); err == nil || !strings.Contains(err.Error(), "password"); {
		if err = w.try(t.Context()); err == nil {
			t.Fatal("it decides with the old password")
		}
	}
	write("another")
	w.counted()
}

// TestIsolation: a role whose transactions are isolated more than they should be is none the worse
// for it: two nodes that change one key do not fail.
func TestIsolation(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a server of its own")
	s := pgtest.Start(t)
	for _, level := range []string{"serializable", "repeatable read"} {
		s.Exec("alter role weir set default_transaction_isolation = '" + level + "'")
		address := inSchema(s.URL())
		nodes := []*postgres.Store{open(t, postgres.Options{URL: address}), open(t, postgres.Options{URL: address})}
		c, err := counterOf(algo.Config{Algorithm: algo.TokenBucket, N: 1e6, Window: 366 * 24 * 3600e9})
		if err != nil {
			t.Fatal(err)
		}
		const callers, each = 8, 50
		take := func(s *postgres.Store, cost int64) algo.Result {
			results := make([]algo.Result, 1)
			_, err := s.Take(t.Context(), []store.Charge{{
				Counter: c, Limit: c.Limit, Key: []byte("key"), Ask: algo.Ask{Cost: cost, MaxDelay: -1},
			}}, results)
			if err != nil {
				t.Errorf("%s: %v", level, err)
			}
			return results[0]
		}
		made := int64(0)
		// By chance one node may always come after the other one is done.
		patience.Until(t, level+": the nodes meet", func() bool {
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					for range each {
						take(nodes[i%len(nodes)], 1)
					}
				})
			}
			all.Wait()
			made += callers * each
			return t.Failed() || nodes[0].Stats().Conflicts+nodes[1].Stats().Conflicts > 0
		})
		if r := take(nodes[0], 0); r.Limit-r.Remaining != made {
			t.Errorf("%s: %d are counted of %d", level, r.Limit-r.Remaining, made)
		}
	}
}
