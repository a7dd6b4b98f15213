package sim

import (
	"bufio"
	"compress/gzip"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/testkit/traffic"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

func load(t testing.TB, yaml string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatalf("rules:\n%s\n%v", yaml, err)
	}
	return set
}

var combined = regexp.MustCompile(`^(\S+) \S+ .*?\[([^\]]+)\] "`)

// readSimply reads a log line by line with the standard library alone.
func readSimply(t testing.TB, path string, parse func(line string) (bruteRequest, bool)) []bruteRequest {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var list []bruteRequest
	s := bufio.NewScanner(z)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if r, ok := parse(s.Text()); ok {
			list = append(list, r)
		}
	}
	if s.Err() != nil {
		t.Fatal(s.Err())
	}
	return list
}

func parseCombined(line string) (bruteRequest, bool) {
	m := combined.FindStringSubmatch(line)
	if m == nil {
		return bruteRequest{}, false
	}
	at, err := time.Parse("02/Jan/2006:15:04:05 -0700", m[2])
	return bruteRequest{at.UnixMicro(), m[1]}, err == nil
}

func parseColumns(timeColumn, clientColumn int, unit int64) func(string) (bruteRequest, bool) {
	return func(line string) (bruteRequest, bool) {
		cells := strings.Split(line, "\t")
		n, err := strconv.ParseInt(cells[timeColumn], 10, 64)
		return bruteRequest{n * unit, cells[clientColumn]}, err == nil
	}
}

// The replay of every real log that has clients gives the same counts as the brute-force counters.
func TestReplayEqualsBruteForce(t *testing.T) {
	logs := []struct {
		name  string
		parse func(string) (bruteRequest, bool)
	}{
		{"nasa_19950801/trace.tsv.gz", parseColumns(0, 1, 1000)},
		{"nasa_19950801/19950801.tsv.gz", parseColumns(2, 0, 1e6)},
		{"secrepo_202110/access.log.gz", parseCombined},
		{"basjes_hackers/access.log.gz", parseCombined},
		{"elastic_apache_logs/access.log.gz", parseCombined},
	}
	const minute, hour = 60_000_000, 3_600_000_000
	limits := []struct {
		name  string
		yaml  string
		limit bruteLimit
	}{
		{"fixed-3-min", "allow: 3/min, algorithm: fixed_window", bruteFixedWindow(3, minute)},
		{"fixed-20-hour", "allow: 20/hour, algorithm: fixed_window", bruteFixedWindow(20, hour)},
		{"log-3-min", "allow: 3/min, algorithm: sliding_log", bruteSlidingLog(3, minute)},
		{"log-10-min", "allow: 10/min, algorithm: sliding_log", bruteSlidingLog(10, minute)},
		{"log-20-hour", "allow: 20/hour, algorithm: sliding_log", bruteSlidingLog(20, hour)},
		{"window-3-min", "allow: 3/min, algorithm: sliding_window", bruteSlidingWindow(3, minute, 1)},
		{"window-10-min", "allow: 10/min", bruteSlidingWindow(10, minute, 1)},
		{"window-20-hour", "allow: 20/hour", bruteSlidingWindow(20, hour, 1)},
		{"window-60-20-hour", "allow: 20/hour, buckets: 60", bruteSlidingWindow(20, hour, 60)},
		{"window-60-7-min", "allow: 7/min, buckets: 60", bruteSlidingWindow(7, minute, 60)},
		{"token-4-min", "allow: 4/min, algorithm: token_bucket", bruteTokenBucket(4, minute, 4)},
		{"token-7-hour-burst-13", "allow: { rate: 7/hour, burst: 13 }, algorithm: token_bucket", bruteTokenBucket(7, hour, 13)},
		{"leaky-6-min-burst-2", "allow: { rate: 6/min, burst: 2 }, algorithm: leaky_bucket", bruteLeakyBucket(6, minute, 2)},
		{"leaky-7-hour-burst-11", "allow: { rate: 7/hour, burst: 11 }, algorithm: leaky_bucket", bruteLeakyBucket(7, hour, 11)},
	}
	for _, log := range logs {
		t.Run(strings.ReplaceAll(log.name, "/", "_"), func(t *testing.T) {
			path := traffic.File(t, log.name)
			requests := readSimply(t, path, log.parse)
			for _, l := range limits {
				want := brute(requests, l.limit)
				if want.denied == 0 && !strings.Contains(log.name, "elastic") && !strings.Contains(l.name, "10-min") {
					t.Logf("%s refuses nothing here", l.name)
				}
				// Shadow limits do not change each other; but each alone is the plainest case.
				rep := replayFile(t, path, "limits: [{ name: "+l.name+", per: [ip], "+l.yaml+" }]")
				if rep.Requests != int64(len(requests)) || rep.Skipped != 0 || rep.Late != 0 {
					t.Fatalf("requests %d, skipped %d, late %d; the log has %d", rep.Requests, rep.Skipped, rep.Late,
						len(requests))
				}
				x := rep.Limits[0]
				if got := (bruteCounts{x.Allowed, x.Denied, x.Keys, x.KeysDenied}); got != want {
					t.Errorf("%s: %+v, brute force %+v", l.name, got, want)
				}
				if rep.Denied != want.denied || rep.Allowed != want.allowed {
					t.Errorf("%s: allowed %d, denied %d in all, want %d, %d", l.name, rep.Allowed, rep.Denied,
						want.allowed, want.denied)
				}
				var sum, denied int64
				for i := range rep.Timeline.Requests {
					sum += rep.Timeline.Requests[i]
					denied += rep.Timeline.Denied[i]
				}
				if sum != rep.Requests || denied != rep.Denied || len(rep.Timeline.Requests) > maxBuckets {
					t.Errorf("%s: the timeline of %d buckets sums to %d, %d", l.name, len(rep.Timeline.Requests), sum,
						denied)
				}
			}
		})
	}
}

// Two limits at once: each admits only what both admit, and each tells its own verdict.
func TestReplaySeveralLimitsEqualsBruteForce(t *testing.T) {
	const minute, hour = 60_000_000, 3_600_000_000
	path := traffic.File(t, "secrepo_202110/access.log.gz")
	requests := readSimply(t, path, parseCombined)
	rep := replayFile(t, path, "limits: [{ name: both, per: [ip], allow: [4/min, 30/hour], algorithm: sliding_log }]")

	var want [2]bruteCounts
	a, b := bruteSlidingLog(4, minute), bruteSlidingLog(30, hour)
	byKey := make(map[string][]int64)
	ordered := append([]bruteRequest(nil), requests...)
	for i := 1; i < len(ordered); i++ { // insertion sort: stable, and nearly sorted already
		for k := i; k > 0 && ordered[k].time < ordered[k-1].time; k-- {
			ordered[k], ordered[k-1] = ordered[k-1], ordered[k]
		}
	}
	deniedKeys := [2]map[string]bool{{}, {}}
	for _, r := range ordered {
		key := bruteKey(r.client)
		admitted := byKey[key]
		both := true
		for i, limit := range []bruteLimit{a, b} {
			if limit(admitted, r.time) {
				want[i].allowed++
			} else {
				want[i].denied++
				deniedKeys[i][key] = true
				both = false
			}
		}
		if both {
			admitted = append(admitted, r.time)
		}
		byKey[key] = admitted
	}
	for i, name := range []string{"both:60s", "both:3600s"} {
		want[i].keys, want[i].keysDenied = int64(len(byKey)), int64(len(deniedKeys[i]))
		x := rep.Limits[i]
		if got := (bruteCounts{x.Allowed, x.Denied, x.Keys, x.KeysDenied}); got != want[i] || x.Name != name {
			t.Errorf("%s: %+v, brute force %s %+v", x.Name, got, name, want[i])
		}
		if want[i].denied == 0 {
			t.Errorf("%s refuses nothing: the test shows nothing", name)
		}
	}
}

func replayFile(t testing.TB, path, rules string) *Report {
	t.Helper()
	log, err := accesslog.Open([]string{path}, nil, accesslog.Options{Reorder: 900_000_000})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	set := load(t, rules)
	rep, err := Replay(context.Background(), log, []RuleSet{{Name: "rules", Domain: set.Domains()[0], Set: set}},
		ReplayOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// nasaLines returns the NASA trace as plain lines.
func nasaLines(t testing.TB) []string {
	var lines []string
	readSimply(t, traffic.File(t, "nasa_19950801/trace.tsv.gz"), func(line string) (bruteRequest, bool) {
		lines = append(lines, line)
		return bruteRequest{}, false
	})
	return lines
}

// repeated writes the trace times over, each a day later than the one before, or all on the same
// day.
func repeated(t testing.TB, lines []string, times int, shift bool) string {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	for i := range times {
		for _, line := range lines {
			if ms, rest, _ := strings.Cut(line, "\t"); shift {
				n, _ := strconv.ParseInt(ms, 10, 64)
				fmt.Fprintf(w, "%d\t%s\n", n+int64(i)*86_400_000, rest)
			} else {
				w.WriteString(line)
				w.WriteByte('\n')
			}
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}
