package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
)

// TestDiskFull: what finds no room on the disk is refused, and all goes on when there is room
// again. A bound on the size of files needs no rights; a file system of its own does.
func TestDiskFull(t *testing.T) {
	effort.Long(t, "fills disks")
	t.Parallel()
	t.Run("RLIMIT_FSIZE", func(t *testing.T) {
		t.Parallel()
		s := pgtest.Start(t)
		w := newTaker(t, open(t, postgres.Options{URL: s.URL()}))
		w.well()
		// Rows as small as the store's leave no room in the pages that there are.
		s.Exec(`insert into weir.states (key, version, until, data) select decode(md5(n::text), 'hex'), 1, 9223372036854775807, repeat('x', 20)::bytea
			from generate_series(1, 150000) n`)
		s.BoundFiles(int(s.Number("select pg_relation_size('weir.states')")) + 4<<10)
		w.full(func() {})
		s.BoundFiles(0)
		w.counted()
	})
	t.Run("tmpfs", func(t *testing.T) {
		t.Parallel()
		s := pgtest.Start(t)
		w := newTaker(t, open(t, postgres.Options{URL: s.URL()}))
		w.well()
		disk, err := s.SmallDisk(1 << 20)
		if err != nil {
			t.Logf(
				"no file system can be made here (that needs CAP_SYS_ADMIN), so only the bound on a file's size is tested: %v", err)
			return
		}
		s.Exec("create tablespace small location '" + disk + "'")
		s.Exec("alter table weir.states set tablespace small")
		s.Exec("create table filler (data text) tablespace small")
		w.full(func() { _ = s.Try("insert into filler select repeat('x', 1000) from generate_series(1, 100)") })
		s.Exec("drop table filler")
		w.counted()
	})
}

// full makes calls on new keys, and takes more room before each, until one is refused since
// there is none.
func (t *taker) full(fill func()) {
	t.Helper()
	var err error
	patience.Until(t, "the store finds no room", func() bool {
		fill()
		results := make([]algo.Result, 1)
		_, err = t.s.Take(t.Context(), []store.Charge{{
			Counter: t.counter, Limit: t.counter.Limit, Key: fmt.Append(nil, time.Now().UnixNano()), Ask: algo.Ask{Cost: 1, MaxDelay: -1},
		}}, results)
		return err != nil
	})
	if !errors.Is(err, store.ErrNotCharged) || !strings.Contains(err.Error(), "53100") {
		t.Errorf("no room on the disk: %v", err)
	}
}
