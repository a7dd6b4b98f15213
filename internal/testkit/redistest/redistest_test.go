//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

func TestStart(t *testing.T) {
	t.Parallel()
	s := Start(t, "maxmemory 20mb", "maxmemory-policy allkeys-lru")
	if got := s.Do("SET", "greeting", "line\r\nfeed"); got != "OK" {
		t.Errorf("SET: %v", got)
	}
	if got := s.Do("GET", "greeting"); got != "line\r\nfeed" {
		t.Errorf("GET: %q", got)
	}
	if got := s.Do("GET", "nothing"); got != nil {
		t.Errorf("GET of nothing: %v", got)
	}
	if got := s.Do("EVAL", "return {1, 'two', {3}, false, {err = 'ERR five'}}", "0"); !reflect.DeepEqual(got, []any{int64(1), "two", []any{int64(3)}, nil, Error("ERR five")}) {
		t.Errorf("EVAL: %#v", got)
	}
	var refused Error
	if _, err := s.Try("INCR", "greeting"); !errors.As(err, &refused) {
		t.Errorf("INCR of a text: %v", err)
	}
	if want := "redis://" + s.Addr(); s.URL() != want {
		t.Errorf("URL %s, want %s", s.URL(), want)
	}
	if s.Info("maxmemory_policy") != "allkeys-lru" || s.Info("process_id") != strconv.Itoa(s.PID()) {
		t.Errorf("policy %s, process %s", s.Info("maxmemory_policy"), s.Info("process_id"))
	}
	before := s.UsedMemory()
	s.Do("SET", "large", strings.Repeat("x", 1<<20))
	if grown := s.UsedMemory() - before; grown < 1<<20 {
		t.Errorf("a megabyte more takes %d bytes", grown)
	}
}

// TestConn: commands on one connection are answered in their order.
func TestConn(t *testing.T) {
	t.Parallel()
	s := Start(t, "requirepass secret")
	c := s.Dial()
	for i := range int64(3) {
		got := c.Do([]string{"INCR", "count"}, []string{"SET", "text", "x"}, []string{"GET", "nothing"})
		if !reflect.DeepEqual(got, []any{i + 1, "OK", nil}) {
			t.Errorf("%v", got)
		}
	}
}

// TestVersions: a server that is too old is not started; of one that says nothing known this is
// left to see.
func TestVersions(t *testing.T) {
	for text, ok := range map[string]bool{
		"Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0": true,
		"Redis server v=6.2.14 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0": false,
		"Redis server v=10.0.0 sha=0": true, "Valkey server v=8.0.1 sha=0": true, "": true, "redis": true,
	} {
		if err := checkVersion(text); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestKillStopRestart(t *testing.T) {
	t.Parallel()
	s := Start(t, "requirepass s:cret", "appendonly yes")
	if want := "redis://:s%3Acret@" + s.Addr(); s.URL() != want {
		t.Errorf("URL %s, want %s", s.URL(), want)
	}
	for i, end := range []func(){s.Kill, s.Stop, func() {}, func() { s.Pause(); s.Kill() }, func() { s.Pause(); s.Stop() }} {
		s.Do("INCR", "count")
		addr, pid := s.Addr(), s.PID()
		end()
		if i != 2 {
			if c, err := net.Dial("tcp", addr); err == nil {
				_ = c.Close()
				t.Errorf("%d: it listens after its end", i)
			}
			if syscall.Kill(pid, 0) == nil {
				t.Errorf("%d: its process is there after its end", i)
			}
		}
		s.Restart()
		if s.Addr() != addr || s.PID() == pid {
			t.Errorf("%d: from %s, %d to %s, %d", i, addr, pid, s.Addr(), s.PID())
		}
		// What SIGKILL met was written already: the file is written before the reply.
		if got := s.Do("GET", "count"); got != fmt.Sprint(i+1) {
			t.Errorf("%d: the count is %v", i, got)
		}
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Pause()
	if reply, err := s.try(50*time.Millisecond, "PING"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("paused: %v, %v", reply, err)
	}
	s.Resume()
	if got := s.Do("PING"); got != "PONG" {
		t.Errorf("resumed: %v", got)
	}
	s.Pause() // the cleanup ends it all the same
}

func TestCPU(t *testing.T) {
	t.Parallel()
	s := Start(t)
	before := s.CPU()
	s.Do("EVAL", "for i = 1, 10000000 do end", "0")
	worked := s.CPU() - before
	if worked < 5*time.Millisecond {
		t.Errorf("ten million rounds took %v", worked)
	}
	// The same in hundredths of a second is fields 14 and 15 of its stat.
	least := s.CPU()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	if err != nil {
		t.Skip(err)
	}
	fields := strings.Fields(string(stat))
	user, _ := strconv.Atoi(fields[13])
	system, _ := strconv.Atoi(fields[14])
	coarse, most := time.Duration(user+system)*10*time.Millisecond, s.CPU()
	if coarse < least-30*time.Millisecond || coarse > most+30*time.Millisecond {
		t.Errorf("CPU %v and later %v, stat %v between", least, most, coarse)
	}
}

// TestManyAtOnce: servers that start at the same time do not take each other's ports.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			s := Start(t)
			if got := s.Info("process_id"); got != strconv.Itoa(s.PID()) {
				t.Errorf("at %s answers process %s, not %d", s.Addr(), got, s.PID())
			}
		})
	}
}

// TestEndsWithTheProcess: servers end when the test binary is killed. The test runs its own binary
// as that.
func TestEndsWithTheProcess(t *testing.T) {
	if file := os.Getenv("REDISTEST_PID_FILE"); file != "" {
		s := Start(t)
		if err := os.WriteFile(file, []byte(strconv.Itoa(s.PID())), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	t.Parallel()
	Start(t) // or skip
	file := t.TempDir() + "/pid"
	cmd := exec.Command(os.Args[0], "-test.run=^TestEndsWithTheProcess$")
	// What it leaves behind goes with this test.
	cmd.Env = append(testproc.Environ(), "REDISTEST_PID_FILE="+file, "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	text, readErr := os.ReadFile(file)
	if readErr != nil {
		t.Fatalf("%v, %v\n%s", readErr, err, out)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server has ended with its test", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
