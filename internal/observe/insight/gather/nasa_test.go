package gather

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/traffic"
	"github.com/weir-rl/weir/rule"
)

// visit is a request of a trace.
type visit struct {
	at     int64 // µs
	client string
}

// visits reads a trace: the time in ms, the client, and more, apart by tabs.
func visits(t testing.TB, name string) (list []visit) {
	t.Helper()
	f, err := os.Open(traffic.File(t, name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(z); lines.Scan(); {
		fields := strings.SplitN(lines.Text(), "\t", 3)
		ms, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, visit{ms * 1000, fields[1]})
	}
	return list
}

// The share of the clients that a limit would touch is told within 0.07 of the truth, for each
// limit, on a real log: of a sample of the clients, through the deciding path. The truth is counted
// by hand, of all of them.
func TestAffectedOnRealTraffic(t *testing.T) {
	trace := visits(t, "nasa_19950801/trace.tsv.gz")
	truth := map[string]*judge.Demand{}
	for _, v := range trace {
		if truth[v.client] == nil {
			truth[v.client] = &judge.Demand{}
		}
		truth[v.client].Add(v.at, time.Minute.Microseconds(), 1)
	}
	touched := func(limit int64) (share float64) {
		for _, d := range truth {
			if d.Peak() > limit {
				share += 1 / float64(len(truth))
			}
		}
		return share
	}
	var shares []float64
	for len(shares) == 0 || shares[len(shares)-1] > 0 {
		shares = append(shares, touched(int64(len(shares))))
	}
	for _, allow := range []int{10, 100} {
		for seed := range uint64(5) {
			rules := fmt.Sprintf("domain: nasa\nlimits: [{name: each, per: [ip], allow: %d/min}]", allow)
			b := startBench(t, Options{Seed: seed + 1}, time.UnixMicro(trace[0].at), "", rules)
			for _, v := range trace {
				b.µs.Store(v.at)
				b.send(weir.Request{Attributes: rule.Pairs{{Name: "ip", Value: v.client}}})
				b.gather(true)
			}
			f := b.Snapshot(snapshot.Want{Samples: true}).Facts(0)
			if len(f.Sample) >= len(truth) {
				t.Fatalf("a sample of %d of %d clients is none", len(f.Sample), len(truth))
			}
			worst, at := 0.0, 0
			for limit, want := range shares {
				keys, _ := judge.Affected(f.Sample, f.Keys, 0, int64(limit))
				if off := math.Abs(keys/f.Keys - want); off > worst {
					worst, at = off, limit
				}
			}
			t.Logf("%d/min, seed %d: %d of %d clients; off by %.3f at most, at %d",
				allow, seed, len(f.Sample), len(truth), worst, at)
			if worst > 0.07 {
				t.Errorf("%d/min, seed %d: what %d would touch is off by %.3f", allow, seed, at, worst)
			}
		}
	}
}
