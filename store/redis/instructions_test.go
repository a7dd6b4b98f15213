//go:build soak && unix

package redis_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// TestInstructions counts what Redis executes for a decision without a lease, under valgrind. It
// needs nothing of this module that its first versions had not, so that scripts/measure
// instructions can run it there, too.
func TestInstructions(t *testing.T) {
	const decisions = 4000
	limit := func(id uint64, c algo.Config) *rule.Counter {
		l, err := algo.New(c)
		if err != nil {
			t.Fatal(err)
		}
		return &rule.Counter{ID: id * 0x9E3779B97F4A7C15, Group: 7, Domain: "test", Rule: fmt.Sprint(id),
			Window: fmt.Sprint(id), Limit: l}
	}
	const n = 1_000_000
	fixed := limit(1, algo.Config{Algorithm: algo.FixedWindow, N: n, Window: time.Hour})
	bucket := limit(2, algo.Config{Algorithm: algo.TokenBucket, N: n, Window: time.Hour})
	window := limit(3, algo.Config{Algorithm: algo.SlidingWindow, N: n, Window: time.Hour})
	log := limit(4, algo.Config{Algorithm: algo.SlidingLog, N: 10, Window: 10 * time.Hour})
	for _, c := range []struct {
		name   string
		limits []*rule.Counter
	}{
		{"fixed_window", []*rule.Counter{fixed}}, {"token_bucket", []*rule.Counter{bucket}},
		{"sliding_window", []*rule.Counter{window}}, {"sliding_log", []*rule.Counter{log}},
		{"three limits", []*rule.Counter{fixed, bucket, window}},
	} {
		fmt.Printf("| %s | %d |\n", c.name, (executed(t, decisions, c.limits)-executed(t, 0, c.limits))/decisions)
	}
}

// executed runs a Redis, makes decisions one after the other, 200 more than are asked for, and
// returns how many instructions that took in all.
func executed(t *testing.T, decisions int, limits []*rule.Counter) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	cmd := exec.Command("valgrind", "--tool=cachegrind", "--cache-sim=no",
		"--cachegrind-out-file="+filepath.Join(dir, "out"), "--log-file="+said,
		"redis-server", "--port", address[strings.LastIndexByte(address, ':')+1:], "--save", "", "--dir", dir, "--hz", "1", "--dynamic-hz", "no")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	// Nothing but the decisions depends on how long it takes.
	s, err := redis.Open(redis.Options{URL: "redis://" + address, Timeout: 10 * time.Minute, Heartbeat: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for i := range decisions + 200 {
		charges, results := make([]store.Charge, len(limits)), make([]algo.Result, len(limits))
		for j, c := range limits {
			charges[j] = store.Charge{Counter: c, Limit: c.Limit, Key: fmt.Appendf(nil, "user-%04d", i%100),
				Ask: algo.Ask{Cost: 1, MaxDelay: -1}}
		}
		for { // until it has started
			if _, err = s.Take(context.Background(), charges, results); err == nil {
				break
			}
			if i > 0 {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	s.Close()
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait() // of a signal
	text, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`I *refs: *([0-9,]+)`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("valgrind says %s", text)
	}
	count, err := strconv.Atoi(string(bytes.ReplaceAll(found[1], []byte(","), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return count
}
