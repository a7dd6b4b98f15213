//go:build unix

package leasecheck_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestExactTotal: four nodes are asked 200,000 times for one key with 10,000 an hour, of which 5 %
// may be out. Under load at most those 5 % stay unused, in the hands of nodes that nobody asks any
// more. When all nodes have returned what they hold, the rest is there, to the last unit. The hour
// is that from the first request, so that none ends meanwhile.
func TestExactTotal(t *testing.T) {
	t.Parallel()
	const (
		limit    = 10_000
		percent  = 5
		clients  = 4
		attempts = 200_000
	)
	server := redistest.Start(t)
	of := limitSpec{ID: rand.Uint64(), Config: algo.Config{
		Algorithm: algo.FixedWindow, N: limit, Window: time.Hour, FirstRequest: true, Lease: percent,
		LeaseFor: algo.MaxLeaseFor, // a worker may stand still for a while
	}}
	folder := t.TempDir()
	burst := func(m mode, name string, each int) (admitted, refused int64, units [bys]int) {
		var fleet []*process
		var records []string
		for i := range workers {
			s := setup{
				URL: server.URL(), Mode: m, Limits: []limitSpec{of}, Calls: []callSpec{{Limits: []int{0}, Cost: 1}},
				Clients: clients, Each: each, Seed: rand.Uint64(), Nodes: workers,
				Record: filepath.Join(folder, fmt.Sprint(name, i)), Timeout: patience.Left(t), Drain: patience.Left(t),
			}
			records = append(records, s.Record)
			fleet = append(fleet, launch(t, &s))
		}
		for _, p := range fleet {
			p.await()
			p.tell(order{Wait: true})
		}
		for _, p := range fleet {
			a := p.await()
			if a.Failed > 0 {
				t.Errorf("%d calls failed", a.Failed)
			}
			admitted, refused = admitted+a.Admitted, refused+a.Refused
		}
		// All are at rest before the first returns what it holds.
		for _, p := range fleet {
			p.end()
		}
		for _, name := range records {
			list, err := readRecord(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				if e.By != sample {
					units[e.By] += int(e.Cost)
				}
			}
		}
		return admitted, refused, units
	}
	admitted, refused, units := burst(overLease, "load", attempts/workers/clients)
	t.Logf("under load: %d admitted (%d by Redis, %d with leases), %d refused", admitted, units[exact], units[leased],
		refused)
	if admitted < limit-limit*percent/100 || admitted > limit {
		t.Errorf("%d were admitted under load, want %d to %d", admitted, limit-limit*percent/100, limit)
	}
	if admitted+refused != attempts || int64(units[exact]+units[leased]) != admitted {
		t.Errorf("%d and %d of %d attempts came out; %d units are recorded", admitted, refused, attempts, units)
	}
	if units[leased] == 0 {
		t.Error("nothing was admitted with leases")
	}
	// By nodes that hold nothing.
	more, _, _ := burst(overRedis, "rest", 2*limit*percent/100/workers/clients)
	t.Logf("then: %d more", more)
	if admitted+more != limit {
		t.Errorf("%d were admitted in all, want %d", admitted+more, limit)
	}
}
