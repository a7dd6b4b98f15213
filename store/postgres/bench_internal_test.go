package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/store/cas"
)

func BenchmarkBare(b *testing.B) {
	s := pgtest.Start(b)
	s.Exec("create table bare (key bytea primary key, version bigint, until bigint, data bytea) with (fillfactor=60)")
	s.Exec("alter table bare owner to weir")
	s.Exec("insert into bare select decode(lpad(to_hex(i), 8, '0'), 'hex'), 0, 0, '' from generate_series(0, 9999) i")
	pool, err := pgxpool.New(context.Background(), s.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	began := s.CPU()
	defer func() { b.ReportMetric(float64((s.CPU()-began).Nanoseconds())/float64(b.N), "server-ns/change") }()
	for b.Loop() {
		n := rand.IntN(10000)
		key := []byte{0, 0, byte(n >> 8), byte(n)}
		var v int64
		if err := pool.QueryRow(context.Background(), "update bare set version = version + 1, data = $2 where key = $1 returning version", key, make([]byte, 40)).Scan(&v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSwap(b *testing.B) {
	for _, groups := range []int{1, 8, 64} {
		for _, parallel := range []int{1, 2} {
			b.Run(fmt.Sprint("groups=", groups, "/callers=", parallel), func(b *testing.B) {
				s := pgtest.Start(b)
				e := engineAt(b, s.URL())
				const keys = 512
				var next atomic.Int64
				b.SetParallelism(parallel)
				swap := func(first int, versions map[int]uint64) {
					gs := make([]cas.Group, groups)
					for i := range gs {
						k := first + i
						name := fmt.Appendf(nil, "key %d of a client", k)
						gs[i].Changes = []cas.Change{{Key: cas.Key{Place: uint64(k), Name: name}, Was: versions[k],
							Version: rand.Uint64() | 1, Data: make([]byte, 40), Until: time.Now().UnixMicro() + 60e6}}
					}
					if _, err := e.Swap(context.Background(), 0, gs); err != nil {
						b.Fatal(err)
					}
					for i := range gs {
						if gs[i].Done {
							versions[first+i] = gs[i].Changes[0].Version
						} else {
							versions[first+i] = gs[i].Values[0].Version
						}
					}
				}
				b.ResetTimer()
				began := s.CPU()
				b.RunParallel(func(pb *testing.PB) {
					me := int(next.Add(1))
					versions := map[int]uint64{}
					for pb.Next() {
						swap(me*keys+rand.IntN(keys/groups)*groups, versions)
					}
				})
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*groups), "ns/change")
				b.ReportMetric(float64((s.CPU()-began).Nanoseconds())/float64(b.N*groups), "server-ns/change")
			})
		}
	}
}
