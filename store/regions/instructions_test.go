//go:build soak && unix

package regions

import (
	"bytes"
	"context"
	"fmt"
	stdnet "net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// TestInstructions says what a decision over regions costs the Redis of its region, in instructions
// under valgrind, beside one without regions. Unlike time, that is the same on a busy machine.
func TestInstructions(t *testing.T) {
	const decisions = 12_000
	fmt.Printf(
		"| instructions of Redis a decision | one window | over: 0%% | over: 20%% |\n| --- | --- | --- | --- |\n")
	for _, a := range []algo.Algorithm{algo.FixedWindow, algo.SlidingWindow, algo.TokenBucket} {
		config := algo.Config{Algorithm: a, N: 1_000_000, Window: time.Hour}
		var counts []int
		for _, c := range []*rule.Counter{grouped(t, config), borrowable(t, config, rule.Regions{Tell: 2}),
			borrowable(t, config, rule.Regions{Over: 20, Tell: 2})} {
			counts = append(counts, (executed(t, decisions, c)-executed(t, 0, c))/decisions)
		}
		fmt.Printf("| %v | %d", a, counts[0])
		for _, n := range counts[1:] {
			fmt.Printf(" | %d = %.2f", n, float64(n)/float64(counts[0]))
		}
		fmt.Println(" |")
	}
}

// executed runs a Redis, has 64 callers make decisions, 12,800 more than are asked for, and returns
// how many instructions that took in all.
func executed(t *testing.T, decisions int, c *rule.Counter) int {
	t.Helper()
	const callers = 64
	l, err := stdnet.Listen("tcp", "127.0.0.1:0")
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
	own, err := redis.Open(redis.Options{URL: "redis://" + address, Timeout: 10 * time.Minute, Heartbeat: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	// Without the log and the other regions: nothing but decisions.
	s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}, {"ap", 1}}})
	if err != nil {
		t.Fatal(err)
	}
	take := func(i int) error {
		charges := [1]store.Charge{{Counter: c, Limit: c.Limit, Key: fmt.Appendf(nil, "user-%04d", i%6400),
			Ask: algo.Ask{Cost: 1, MaxDelay: -1}}}
		_, err := s.Take(context.Background(), charges[:], make([]algo.Result, 1))
		return err
	}
	for take(0) != nil { // until it has started
		time.Sleep(50 * time.Millisecond)
	}
	var all sync.WaitGroup
	for g := range callers {
		all.Go(func() {
			for i := range decisions/callers + 200 {
				if err := take(i*callers + g); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
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
