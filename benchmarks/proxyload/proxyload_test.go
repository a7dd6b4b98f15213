package main

import (
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	// The name of a program may hold what separates the fields.
	pid, parent, used, err := parseStat(
		"4242 (a) b (c) S 17 4242 4242 0 -1 4194560 1 2 3 4 150 25 0 0 20 0 1 0 100 1 2 3\n")
	if err != nil || pid != 4242 || parent != 17 || used != 1750*time.Millisecond {
		t.Errorf("%d %d %v %v", pid, parent, used, err)
	}
	for _, bad := range []string{"", "1", "1 (x", "1 (x) S 1", "x (x) S 17 1 1 0 1 1 1 1 1 1 1 1",
		"1 (x) S 17 1 1 0 1 1 1 1 1 1 a 1"} {
		if _, _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestParseDone(t *testing.T) {
	d, err := parseDone([]byte("Running 2s test\n  Latency …\nDONE 1000 2000000 1500 0\n"))
	if err != nil || d.requests != 1000 || d.took != 2*time.Second || d.p99 != 1500*time.Microsecond {
		t.Errorf("%+v %v", d, err)
	}
	for _, bad := range []string{"", "DONE x", "DONE 1000 2000000 1500 3\n", "DONE 0 2000000 0 0\n"} {
		if _, err := parseDone([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestParseH2load(t *testing.T) {
	const told = "\nfinished in 2.00s, 29615.00 req/s, 3.61MB/s\nrequests: 59230 total, 59358 started, 59230 done, 59230 succeeded, %s failed, 0 errored, 0 timeout\nstatus codes:"
	if d, err := parseH2load([]byte(strings.Replace(told, "%s", "0", 1))); err != nil || d.requests != 59230 {
		t.Errorf("%+v %v", d, err)
	}
	for _, bad := range []string{"", "\nrequests: x", strings.Replace(told, "%s", "3", 1),
		"\nrequests: 9 total, 9 started, 9 done, 8 succeeded, 0 failed"} {
		if _, err := parseH2load([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// The table has the medians, beside the best bare proxy and nginx.
func TestTable(t *testing.T) {
	var b strings.Builder
	rivals := []*rival{{name: "nginx"}, {name: "bare"}, {name: "bare-tuned"}, {name: "weir"}}
	results := map[string][]result{
		"get nginx":      {{CPU: 10, PerSecond: 100, P99: time.Millisecond}},
		"get bare":       {{CPU: 100}},
		"get bare-tuned": {{CPU: 40}},
		"get weir":       {{CPU: 90}, {CPU: 20, PerSecond: 50, P99: 2 * time.Millisecond}, {CPU: 10}},
	}
	if err := writeTable(&b, "get", rivals, results); err != nil {
		t.Fatal(err)
	}
	if want := "| weir | 20.0 | 0.50 × | 2.00 × |"; !strings.Contains(b.String(), want) {
		t.Errorf("%q is not in\n%s", want, &b)
	}
}
