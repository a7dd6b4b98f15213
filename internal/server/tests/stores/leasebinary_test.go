//go:build unix

package stores

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestLeases: two servers of the built program on one Redis, with a leased limit of one busy key.
// Most requests are decided without Redis. What a server was lent it gives back as it ends, so that
// the other one admits what is left, to the last unit, and none beyond. Units last for a minute or
// more here: what was not given back would be missing.
func TestLeases(t *testing.T) {
	t.Parallel()
	const callers = 32
	limit := effort.Of(5000, 20_000)
	program := servertest.BuiltProgram(t)
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), fmt.Sprintf(`domain: shop
limits:
  - { name: api, per: [tenant], allow: %d/year, algorithm: fixed_window, consistency: { lease: 10%%, for: 1m } }
`, limit))
	args := append([]string{"serve", "--rules=rules.yaml", "--store=" + redistest.Start(t).URL(), "--drain=1m"},
		servertest.Patient...)
	var programs []*servertest.Process
	var nodes []*servertest.Node
	for range 2 {
		p := servertest.Launch(t, program, dir, args...)
		programs, nodes = append(programs, p), append(nodes, servertest.NodeOf(t, p.Stderr, p.Addr))
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	defer client.CloseIdleConnections()
	// asks asks a number of times at some of the nodes in turn, from many callers at once.
	asks := func(times int, nodes ...*servertest.Node) (admitted int) {
		t.Helper()
		var left, passed atomic.Int64
		left.Store(int64(times))
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for n := left.Add(-1); n >= 0; n = left.Add(-1) {
					r, err := client.Get(nodes[n%int64(len(nodes))].Http + "/api/v1/limit?tenant=acme")
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					r.Body.Close()
					switch r.StatusCode {
					case 200:
						passed.Add(1)
					case 429:
					default:
						t.Errorf("status %d", r.StatusCode)
						return
					}
				}
			})
		}
		all.Wait()
		return int(passed.Load())
	}
	asked := limit * 3 / 5
	total := asks(asked, nodes...)
	if total != asked {
		t.Errorf("%d of %d were admitted, far below the limit", total, asked)
	}
	ops, local, decided := 0, 0, 0
	const labels = `domain="shop",limit="api",rule="api"`
	for _, n := range nodes {
		ops += n.Number("weir_redis_decisions_total") - n.Number("weir_redis_merged_decisions_total")
		for _, by := range []string{"local", "store", "mixed"} {
			made := n.Number(`weir_lease_decisions_total{by="` + by + `",` + labels + `}`)
			if decided += made; by == "local" {
				local += made
			}
		}
		if late, lapsed := n.Number("weir_lease_late_total"), n.Number(`weir_lease_units_total{`+labels+`,what="lapsed"}`); late != 0 || lapsed != 0 {
			t.Errorf("%d late, %d lapsed", late, lapsed)
		}
	}
	t.Logf("%d decisions: %d without Redis, %d operations in Redis (%.3f each)", decided, local, ops,
		float64(ops)/float64(asked))
	if decided != asked || local < asked*9/10 || ops > asked/10 {
		t.Errorf("%d decisions of %d are told: %d without Redis, %d operations in Redis", decided, asked, local, ops)
	}
	if held := nodes[0].Number("weir_lease_held_units") + nodes[0].Number("weir_lease_untold_units"); held == 0 {
		t.Error("the server that is to end holds nothing that it could give back")
	}
	if status, out, errs := servertest.RunBuilt(t, "keys", "show", "api", "acme", "--server="+nodes[1].Admin); status != 0 || !strings.Contains(out, "leased: ") {
		t.Errorf("%d %s%s", status, out, errs)
	}

	programs[0].Signal(syscall.SIGTERM)
	if status := programs[0].Wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if log := programs[0].Stderr.String(); strings.Contains(log, "given back") {
		t.Errorf("it wrote\n%s", log)
	}
	rest := nodes[1]
	servertest.Eventually(t, "all of the limit is admitted", func() bool {
		total += asks(max(100, limit-total), rest)
		return total >= limit
	})
	if more := asks(limit/10, rest); more > 0 || total != limit {
		t.Errorf("admitted %d, and %d more, of %d", total, more, limit)
	}
	programs[1].Signal(syscall.SIGTERM)
	if status := programs[1].Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, programs[1].Stderr)
	}
}
