package load

import (
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzSystem reads files of /proc and control groups: nothing crashes, and what is understood is
// within bounds.
func FuzzSystem(f *testing.F) {
	f.Add([]byte("cpu  1 2 3 4 5 6 7 8 9 10\n"))
	f.Add(
		[]byte(
			"cpu  4611686018427387903 4611686018427387903 4611686018427387903 4611686018427387903 4611686018427387903"))
	f.Add(
		[]byte(
			"some avg10=1.50 avg60=0.04 avg300=0.31 total=4496481339\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"))
	f.Add([]byte("MemTotal: 10 kB\nMemAvailable: 5 kB\n"))
	f.Add([]byte("200000 100000\n"))
	f.Add([]byte("0::/../../x\n"))
	f.Add([]byte("usage_usec 5\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if j, err := parseStat(data); err == nil && j.idle > j.total {
			t.Errorf("idle %d of %d", j.idle, j.total)
		}
		if average, _, err := parsePressure(data); err == nil && !(average >= 0 && average <= 100) {
			t.Errorf("avg10 is %v", average)
		}
		if total, available, err := parseMeminfo(data); err == nil && (total == 0 || available > total) {
			t.Errorf("%d of %d is available", available, total)
		}
		if cpus, limited, err := parseCPUMax(data); err == nil && limited && !(cpus > 0 && !math.IsInf(cpus, 0)) {
			t.Errorf("%v processors", cpus)
		}
		if own := parseCgroup(data); !strings.HasPrefix(own, "/") || strings.Contains(own+"/", "/../") {
			t.Errorf("cgroup %q", own)
		}
		parseKeyed(data, "usage_usec")
	})
}

// FuzzAnswer reads answers of a Prometheus.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"0x1p3"]}]}}`))
	f.Add([]byte(`{"status":"success","data":{"resultType":"scalar","result":[1,"5"]}}`))
	f.Add([]byte(`{"status":"error","error":"\u0000\ud800"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := parseAnswer(body)
		if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
			t.Errorf("%v", v)
		}
		if err != nil && (!utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\n\r\x00\x1b")) {
			t.Errorf("%q", err.Error())
		}
	})
}
