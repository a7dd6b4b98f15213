//go:build soak && linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/soaktest"
)

// What insight costs a running server, as ratios and shares of one run each (scripts/soak insight).
// They need a machine with nothing else to do.

// manyRules returns a folder of 1,000 rules.
func manyRules(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"), soaktest.ManyRules())
	return dir
}

// caller asks the HTTP door over one connection.
type caller struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func newCaller(t *testing.T, door string) *caller {
	t.Helper()
	c, err := net.Dial("tcp", door)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &caller{t, c, bufio.NewReader(c)}
}

func (c *caller) ask(query string) {
	if _, err := io.WriteString(c.c, "GET /api/v1/limit?"+query+" HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		c.t.Error(err)
		return
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Error(err)
		return
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// TestDecidingWhilePreviewed compares how long clients wait for decisions while previews run, one
// after the other, with their waits without: 1,000 requests a second over 4 connections, in windows
// of 4 s in turn.
func TestDecidingWhilePreviewed(t *testing.T) {
	rules := t.TempDir()
	text := "domain: shop\nlimits:\n  - { name: login, when: { path: /login }, per: [ip], allow: 5/min }\n  - { name: api, per: [ip], allow: [600/min, 9000/hour] }\n"
	servertest.WriteRules(t, filepath.Join(rules, "shop.yaml"), text)
	p := servertest.Launch(t, servertest.BuildProgram(t), t.TempDir(), "serve", "--rules", rules, "--insight-record",
		"64MiB")
	door, admin := p.Addr("http"), "http://"+p.Addr("admin")

	var previewing atomic.Bool
	var mu sync.Mutex
	var waits [2][]float64 // µs, without and with
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 4 {
		c := newCaller(t, door)
		all.Go(func() {
			next := time.Now()
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				time.Sleep(time.Until(next))
				next = next.Add(4 * time.Millisecond)
				with := previewing.Load()
				at := time.Now()
				c.ask(fmt.Sprintf("path=/p%d&ip=192.0.%d.%d", n%9, i, n%250))
				took := float64(time.Since(at).Nanoseconds()) / 1e3
				if with == previewing.Load() {
					mu.Lock()
					k := 0
					if with {
						k = 1
					}
					waits[k] = append(waits[k], took)
					mu.Unlock()
				}
			}
		})
	}
	body, err := json.Marshal(
		map[string]any{"files": map[string]string{"shop.yaml": strings.ReplaceAll(text, "5/min", "3/min")}})
	if err != nil {
		t.Fatal(err)
	}
	previews, requests := 0, 0
	preview := func() {
		res, err := http.Post(admin+"/api/v1/preview", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var begun struct{ Preview string }
		if err := json.NewDecoder(res.Body).Decode(&begun); err != nil || res.StatusCode != http.StatusAccepted {
			t.Fatalf("status %d, %v", res.StatusCode, err)
		}
		res.Body.Close()
		if res, err = http.Get(admin + begun.Preview); err != nil {
			t.Fatal(err)
		}
		stream, err := io.ReadAll(res.Body)
		res.Body.Close()
		m := regexp.MustCompile(`"requests":(\d+)`).FindAllSubmatch(stream, -1)
		if err != nil || m == nil {
			t.Fatalf("%v: %s", err, stream)
		}
		requests, _ = strconv.Atoi(string(m[len(m)-1][1]))
		previews++
	}
	p99 := func(list []float64) float64 {
		list = slices.Sorted(slices.Values(list))
		return list[len(list)*99/100]
	}
	time.Sleep(2 * time.Minute) // a record of which the replay takes longer than the start
	before := servertest.ProcStatus(t, p.Cmd.Process.Pid, "VmHWM")
	var ratios []float64
	for range 7 {
		mu.Lock()
		waits = [2][]float64{}
		mu.Unlock()
		time.Sleep(4 * time.Second)
		previewing.Store(true)
		for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
			preview()
		}
		previewing.Store(false)
		mu.Lock()
		without, with := p99(waits[0]), p99(waits[1])
		t.Logf("p99 %.0f µs without, %.0f µs with; p50 %.0f and %.0f", without, with, median(waits[0]),
			median(waits[1]))
		mu.Unlock()
		ratios = append(ratios, with/without)
	}
	close(stop)
	all.Wait()
	peak := servertest.ProcStatus(t, p.Cmd.Process.Pid, "VmHWM")
	t.Logf(
		"%d previews of up to %d requests: p99 %.2f × (median of %.2f); the server at most %d MB, before the first %d MB",
		previews, requests, median(ratios), ratios, peak>>20, before>>20)
	if median(ratios) > 1.25 {
		t.Errorf("p99 of a decision is %.2f times as long while a preview runs", median(ratios))
	}
}

// TestManyRules sends 1,000 rules traffic of 20,000 clients, and says what insight's memory is, by
// its own count and beside a server that gathers nothing; and what either takes of a core when
// nothing comes any more.
func TestManyRules(t *testing.T) {
	rules := manyRules(t)
	program := servertest.BuildProgram(t)
	off := []string{"--insight-memory=0", "--insight-record=0"}
	var most [2]int
	for i, args := range [][]string{nil, off} {
		p := servertest.Launch(t, program, t.TempDir(), append([]string{"serve", "--rules", rules}, args...)...)
		door, admin := p.Addr("http"), p.Addr("admin")
		var all sync.WaitGroup
		for k := range 4 {
			c := newCaller(t, door)
			all.Go(func() {
				for n := range 100_000 {
					c.ask(fmt.Sprintf("path=/p%d&ip=192.%d.%d.%d", (n*7+k)%1000, k, n/250%20, n%250))
				}
			})
		}
		all.Wait()
		time.Sleep(65 * time.Second) // verdicts are made
		before := soaktest.Busy(t, p.Cmd.Process.Pid)
		time.Sleep(60 * time.Second)
		share := (soaktest.Busy(t, p.Cmd.Process.Pid) - before).Seconds() / 60
		var now int
		now, most[i] = servertest.ProcStatus(t, p.Cmd.Process.Pid, "VmRSS"),
			servertest.ProcStatus(t, p.Cmd.Process.Pid, "VmHWM")
		_, _, metrics := servertest.Get(t, "http://"+admin+"/metrics")
		m := regexp.MustCompile(`(?m)^weir_insight_bytes(?:\{[^}]*\})? (\S+)`).FindAllStringSubmatch(metrics, -1)
		t.Logf("%q: resident %d MB, at most %d MB; at rest %.2f %% of a core; weir_insight_bytes %v", args, now>>20,
			most[i]>>20, 100*share, m)
		if i == 0 && share > 0.01 {
			t.Errorf("with 1,000 rules it takes %.1f %% of a core when nothing comes", 100*share)
		}
		_ = p.Cmd.Process.Kill()
	}
	// What is gathered is garbage in part until the collector runs, which lets the memory double.
	if more := most[0] - most[1]; more > 2*(64+16)<<20 {
		t.Errorf("insight takes %d MB", more>>20)
	}
}

// TestStartTime compares how long the doors take to open with and without insight, the page and its
// record, in turn.
func TestStartTime(t *testing.T) {
	rules := manyRules(t)
	program := servertest.BuildProgram(t)
	others := []string{"--insight-memory=0", "--insight-record=0", "--admin-page=off"}
	before := program
	if path := os.Getenv("WEIR_BEFORE"); path != "" { // a build from before
		before, others = path, nil
	}
	open := func(program string, args ...string) float64 {
		at := time.Now()
		p := servertest.Launch(t, program, t.TempDir(), append([]string{"serve", "--rules", rules}, args...)...)
		for {
			if c, err := net.Dial("tcp", p.Addr("http")); err == nil {
				c.Close()
				break
			}
		}
		took := time.Since(at).Seconds() * 1e3
		_ = p.Cmd.Process.Kill()
		<-p.Exited
		return took
	}
	open(program)
	open(before, others...)
	var with, without, more []float64
	for range 15 {
		a, b := open(program), open(before, others...)
		with, without, more = append(with, a), append(without, b), append(more, a-b)
	}
	t.Logf("%.0f ms with, %.0f ms without: %+.1f ms (median of pairs)", median(with), median(without), median(more))
	if median(more) > 20 {
		t.Errorf("the start takes %.0f ms longer", median(more))
	}
}

// TestTopCost says what weir top takes of a core in a real terminal, and the server that it asks.
func TestTopCost(t *testing.T) {
	for name, rules := range map[string]string{"3 rules": "", "1,000 rules": manyRules(t)} {
		program := servertest.BuildProgram(t)
		args := []string{"serve"}
		if rules != "" {
			args = append(args, "--rules", rules)
		}
		p := servertest.Launch(t, program, t.TempDir(), args...)
		admin, door := p.Addr("admin"), p.Addr("http")
		stop := make(chan struct{})
		c := newCaller(t, door)
		var sender sync.WaitGroup
		sender.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
					c.ask(fmt.Sprintf("key=k%d&path=/p%d&ip=192.0.2.%d", n%20, n%1000, n%50))
				}
			}
		})
		x := newTerminal(t, 200, 60, nil, fmt.Sprintf("exec %s top --server http://%s", program, admin))
		pane := strings.TrimSpace(x.tmux("display-message", "-p", "#{pane_pid}"))
		x.awaits(`weir top`, `rules`)
		pid, err := strconv.Atoi(pane)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		before := soaktest.Busy(t, pid)
		time.Sleep(60 * time.Second)
		share := (soaktest.Busy(t, pid) - before).Seconds() / 60
		t.Logf("%s: weir top takes %.2f %% of a core", name, 100*share)
		if share > 0.01 {
			t.Errorf("%s: weir top takes %.2f %% of a core", name, 100*share)
		}
		close(stop)
		sender.Wait()
		_ = exec.Command("tmux", "-S", x.socket, "kill-server").Run()
		_ = p.Cmd.Process.Kill()
	}
}
