package server

import (
	"math"
	"runtime"
	"runtime/metrics"
	"testing"
)

func gogc() int {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	return int(sample[0].Value.Uint64())
}

func TestPaceIsLeftAlone(t *testing.T) {
	before := gogc()
	for _, c := range []struct {
		name  string
		gogc  bool
		limit int64
		paced bool
	}{
		{"nothing set", false, math.MaxInt64, true},
		{"GOMEMLIMIT of the chart", false, 1 << 30, true},
		{"a GOMEMLIMIT that is small", false, 256 << 20, false},
		{"GOGC", true, math.MaxInt64, false},
	} {
		stop := pace(func(s string) (string, bool) { return "100", c.gogc && s == "GOGC" }, c.limit)
		if paced := gogc() != before; paced != c.paced {
			t.Errorf("%s: paced: %v", c.name, paced)
		}
		stop()
		if now := gogc(); now != before {
			t.Errorf("%s: GOGC is %d after it, want %d", c.name, now, before)
		}
	}
}

// TestOnePacer has two servers in one process that end in the order in which they began.
func TestOnePacer(t *testing.T) {
	before := gogc()
	none := func(string) (string, bool) { return "", false }
	first, second := pace(none, math.MaxInt64), pace(none, math.MaxInt64)
	first()
	second()
	if now := gogc(); now != before {
		t.Errorf("GOGC is %d after both, want %d", now, before)
	}
}

func TestPercent(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		name          string
		live, scanned uint64
		want          int
	}{
		{"at the start", 0, 0, 700},
		{"a few MB", 8 * mb, 5 * mb, 350},
		{"five million keys", 400 * mb, 6 * mb, 7},
		{"a GB of rules", 1000 * mb, 900 * mb, 90},
	} {
		if got := percentFor(c.live, c.scanned); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

// TestPaceFollows fills the heap with memory that holds no pointers, and wants the collector's goal
// to follow.
func TestPaceFollows(t *testing.T) {
	stop := pace(func(string) (string, bool) { return "", false }, math.MaxInt64)
	defer stop()
	tables := make([]byte, 512<<20)
	for range 100 {
		runtime.GC()
		if p := gogc(); p < 30 {
			runtime.KeepAlive(tables)
			return
		}
		runtime.Gosched()
	}
	runtime.KeepAlive(tables)
	t.Errorf("GOGC is %d with 512 MiB of tables: the heap would grow by %d MiB", gogc(), gogc()*512/100)
}
