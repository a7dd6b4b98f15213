package sim

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/testkit/traffic"
)

// TestWindowErrorOnRealTraffic measures how often sliding_window decides otherwise than sliding_log
// would, both fed with the same requests by client. The figures stand in
// docs/operating/capacity.md:
//
//	WEIR_DATA=FOLDER go test ./internal/lab/sim -run TestWindowErrorOnRealTraffic -v
func TestWindowErrorOnRealTraffic(t *testing.T) {
	for _, tc := range []struct {
		log    string
		n      int64
		window time.Duration
	}{
		{"nasa_19950801/trace.tsv.gz", 10, time.Minute},
		{"nasa_19950801/trace.tsv.gz", 60, time.Hour},
		{"secrepo_202110/access.log.gz", 10, time.Minute},
		{"secrepo_202110/access.log.gz", 60, time.Hour},
		{"basjes_hackers/access.log.gz", 3, time.Minute},
		{"basjes_hackers/access.log.gz", 20, time.Hour},
	} {
		requests := clientsOf(t, traffic.File(t, tc.log))
		log := verdicts(t, requests, algo.Config{Algorithm: algo.SlidingLog, N: tc.n, Window: tc.window})
		var differ [3]float64
		for i, buckets := range []int{1, 12, 60} {
			for j, allowed := range verdicts(t, requests,
				algo.Config{Algorithm: algo.SlidingWindow, N: tc.n, Window: tc.window, Buckets: buckets}) {
				if allowed != log[j] {
					differ[i]++
				}
			}
			differ[i] *= 100 / float64(len(requests))
		}
		refused := 0
		for _, allowed := range log {
			if !allowed {
				refused++
			}
		}
		t.Logf(
			"%-30s %3d in %-6s the log refuses %6.3f %%; decided otherwise: %.3f %% with 1 bucket, %.3f %% with 12, %.3f %% with 60",
			tc.log, tc.n, tc.window, 100*float64(refused)/float64(len(requests)), differ[0], differ[1], differ[2])
		if differ[0] > 4 || differ[2] > 1 || differ[2] > differ[0] {
			t.Errorf("%s: more errors than the docs say: %v %%", tc.log, differ)
		}
	}
}

type clientRequest struct {
	at     int64
	client string
}

func clientsOf(t *testing.T, path string) []clientRequest {
	t.Helper()
	o := accesslog.Options{Reorder: (15 * time.Minute).Microseconds()}
	if strings.HasSuffix(path, "trace.tsv.gz") { // it has no header
		o.Fields = []string{"time", "ip", "method", "path", "status", "bytes"}
	}
	log, err := accesslog.Open([]string{path}, nil, o)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var list []clientRequest
	for {
		e, err := log.Next()
		if err == io.EOF {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, clientRequest{e.Time, string(e.Get(accesslog.FieldIP))})
	}
}

func verdicts(t *testing.T, requests []clientRequest, c algo.Config) []bool {
	t.Helper()
	limit, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]*algo.State{}
	out := make([]bool, len(requests))
	for i, r := range requests {
		s := states[r.client]
		if s == nil {
			s = new(algo.State)
			states[r.client] = s
		}
		out[i] = limit.Take(s, r.at, algo.Ask{Cost: 1}).Allowed
	}
	return out
}
