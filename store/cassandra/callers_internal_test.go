package cassandra

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Nodes that are processes of their own: this program again, with a job in its environment.

const jobVariable = "WEIR_CASSANDRA_JOB"

func TestMain(m *testing.M) {
	if text := os.Getenv(jobVariable); text != "" {
		if err := runJob(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	cassandratest.Main(m)
}

// job is what a process does: clients that take from keys, each Each times, or until they are told
// to stop and have an answer once more.
type job struct {
	URL     string
	Timeout time.Duration
	Limit   int64 // of each key, in a year
	Keys    int
	Clients int
	Each    int // 0: until standard input ends
}

// taken is one call, as it came out.
type taken struct {
	Key       int
	Cost      int64
	Called    time.Duration // by testproc.Clock
	Returned  time.Duration
	Allowed   bool
	Remaining int64
	Err       string
	Unknown   bool // after an error: it may be charged
}

// counterOf returns the counter of a job: fixed windows of a year, so that none turns meanwhile.
func counterOf(limit int64) (*rule.Counter, error) {
	l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: limit, Window: algo.MaxWindow})
	if err != nil {
		return nil, err
	}
	return &rule.Counter{ID: 7, Limit: l}, nil
}

func runJob(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	s, err := Open(Options{URL: j.URL, Timeout: j.Timeout})
	if err != nil {
		return err
	}
	defer s.Close()
	c, err := counterOf(j.Limit)
	if err != nil {
		return err
	}
	for s.engine.connection.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready")
	var stopped atomic.Bool
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil { // all begin together
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		stopped.Store(true)
	}()
	histories := make([][]taken, j.Clients)
	var all sync.WaitGroup
	for client := range histories {
		all.Go(func() {
			for i := 0; j.Each == 0 || i < j.Each; i++ {
				last := stopped.Load()
				one := j.take(s, c)
				histories[client] = append(histories[client], one)
				if last && one.Err == "" {
					break
				}
			}
		})
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(histories)
}

func (j *job) take(s store.Store, c *rule.Counter) taken {
	one := taken{Key: rand.IntN(j.Keys), Cost: 1}
	if j.Each == 0 {
		one.Cost = rand.Int64N(4) // some only look
	}
	results := make([]algo.Result, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*j.Timeout)
	defer cancel()
	one.Called = testproc.Clock()
	_, err := s.Take(ctx, []store.Charge{{
		Counter: c, Limit: c.Limit, Key: fmt.Append(nil, "key", one.Key), Ask: algo.Ask{Cost: one.Cost, MaxDelay: -1},
	}}, results)
	one.Returned = testproc.Clock()
	if err != nil {
		one.Err, one.Unknown = err.Error(), !errors.Is(err, store.ErrNotCharged)
		time.Sleep(20 * time.Millisecond) // it is away; there is no need to ask a thousand times
		return one
	}
	one.Allowed, one.Remaining = results[0].Allowed, results[0].Remaining
	return one
}

// fleet is some processes at work.
type fleet struct {
	t     testing.TB
	nodes []*node
}

type node struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startFleet starts processes that do the same job at the same time.
func startFleet(t testing.TB, processes int, j job) *fleet {
	t.Helper()
	text, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t}
	for range processes {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
		cmd.Stderr = os.Stderr
		n := &node{cmd: cmd}
		if n.in, err = cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		n.out = bufio.NewReader(out)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		f.nodes = append(f.nodes, n)
	}
	for _, n := range f.nodes {
		if line, err := n.out.ReadString('\n'); err != nil || line != "ready\n" {
			t.Fatalf("a process says %q, %v", line, err)
		}
	}
	for _, n := range f.nodes {
		if _, err := io.WriteString(n.in, "go\n"); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// end tells all to stop, and returns what they did.
func (f *fleet) end() (all []taken) {
	f.t.Helper()
	for _, n := range f.nodes {
		_ = n.in.Close()
	}
	return f.wait()
}

// wait waits until all have done their job, and returns what they did.
func (f *fleet) wait() (all []taken) {
	f.t.Helper()
	for _, n := range f.nodes {
		var histories [][]taken
		done := make(chan error, 1)
		go func() { done <- json.NewDecoder(n.out).Decode(&histories) }()
		select {
		case err := <-done:
			if err != nil {
				f.t.Fatal(err)
			}
		case <-time.After(patience.Left(f.t)):
			f.t.Fatal("a process does not end")
		}
		for _, h := range histories {
			all = append(all, h...)
		}
	}
	return all
}
