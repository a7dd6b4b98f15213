package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// scripts are what wrk runs, by the name of the load. The last line of its output is for parseDone.
var scripts = map[string]string{
	"get":      scriptDone,
	"post":     scriptPost(answerSize),
	"post100k": scriptPost(100 << 10),
	"large":    scriptPath("/large"),
	"get16k":   scriptPath("/16k"),
	"get1m":    scriptPath("/1m"),
	"events":   scriptPath("/events"),
}

func scriptPost(size int) string {
	return fmt.Sprintf("wrk.method = \"POST\"\nwrk.body = string.rep(\"x\", %d)\n", size) + scriptDone
}

func scriptPath(path string) string { return fmt.Sprintf("wrk.path = %q\n", path) + scriptDone }

const scriptDone = `
function done(summary, latency, requests)
	io.write(string.format("DONE %d %d %d %d\n", summary.requests, summary.duration, latency:percentile(99),
		summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status + summary.errors.timeout))
end
`

// h2Paths are the paths of the loads over HTTP/2, and h2Posts how much they send, those that do.
var (
	h2Paths = map[string]string{"h2": "/", "h2-large": "/large", "h2-post": "/", "h2-post100k": "/"}
	h2Posts = map[string]int{"h2-post": answerSize, "h2-post100k": 100 << 10}
)

// loader returns a function that loads r for a time, and returns the results. script is the file
// that wrk runs, or the body that h2load sends.
func (p plan) loader(ctx context.Context, load, wrk, script string, r *rival) func(time.Duration) (done, error) {
	if path := h2Paths[load]; path != "" {
		return func(d time.Duration) (done, error) {
			args := []string{"-t1", "-c" + strconv.Itoa(max(1, p.connections/8)), "-m16",
				"-D" + strconv.Itoa(int(d/time.Second)), "http://" + r.h2 + path}
			if h2Posts[load] > 0 {
				args = append(args, "-d", script)
			}
			cmd := exec.CommandContext(ctx, "h2load", args...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				return done{}, fmt.Errorf("h2load: %w\n%s", err, out)
			}
			got, err := parseH2load(out)
			got.took = d
			return got, err
		}
	}
	return func(d time.Duration) (done, error) {
		cmd := exec.CommandContext(ctx, wrk, "-t1", "-c"+strconv.Itoa(p.connections),
			"-d"+strconv.Itoa(int(d/time.Second))+"s", "--timeout", "10s", "-s", script, "http://"+r.addr+"/")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return done{}, fmt.Errorf("wrk: %w\n%s", err, out)
		}
		return parseDone(out)
	}
}

// measure loads r once. All that its processes do meanwhile is counted.
func measure(ctx context.Context, load func(time.Duration) (done, error), r *rival, p plan) (result, error) {
	if _, err := load(time.Second); err != nil { // to warm it up
		return result{}, err
	}
	before, err := cpuTime(r.cmd.Process.Pid)
	if err != nil {
		return result{}, err
	}
	d, err := load(p.duration)
	if err != nil {
		return result{}, err
	}
	after, err := cpuTime(r.cmd.Process.Pid)
	if err != nil {
		return result{}, err
	}
	return result{
		CPU:       float64((after - before).Microseconds()) / float64(d.requests),
		PerSecond: float64(d.requests) / d.took.Seconds(),
		P99:       d.p99,
	}, nil
}

// done is wrk's report at its end.
type done struct {
	requests  int
	took, p99 time.Duration
}

// parseDone reads the line DONE of a script. A load with errors is no measurement.
func parseDone(out []byte) (done, error) {
	_, line, found := bytes.Cut(out, []byte("DONE "))
	if !found {
		return done{}, fmt.Errorf("wrk ended without telling its result:\n%s", out)
	}
	var requests, took, p99, failed int
	if _, err := fmt.Sscanf(string(line), "%d %d %d %d\n", &requests, &took, &p99, &failed); err != nil {
		return done{}, fmt.Errorf("wrk tells %.60q: %w", line, err)
	}
	if failed > 0 || requests == 0 {
		return done{}, fmt.Errorf("%d of %d requests failed", failed, requests)
	}
	return done{requests, time.Duration(took) * time.Microsecond, time.Duration(p99) * time.Microsecond}, nil
}

// parseH2load reads h2load's counts. It reports no quantiles.
func parseH2load(out []byte) (done, error) {
	_, line, found := bytes.Cut(out, []byte("\nrequests: "))
	if !found {
		return done{}, fmt.Errorf("h2load ended without telling its result:\n%s", out)
	}
	var total, started, ended, succeeded, failed int
	if _, err := fmt.Sscanf(string(line), "%d total, %d started, %d done, %d succeeded, %d failed", &total, &started,
		&ended, &succeeded, &failed); err != nil {
		return done{}, fmt.Errorf("h2load tells %.60q: %w", line, err)
	}
	if failed > 0 || succeeded == 0 || succeeded != ended {
		return done{}, fmt.Errorf("%d of %d requests failed", ended-succeeded, ended)
	}
	return done{requests: succeeded}, nil
}

// cpuTime is the processor time, user and system, that a process and its children have used, of
// /proc/PID/stat.
func cpuTime(pid int) (time.Duration, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	found := false
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		id, parent, used, err := parseStat(string(text))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if id == pid || parent == pid {
			sum += used
			found = found || id == pid
		}
	}
	if !found {
		return 0, errors.New("the proxy has ended, or this is no Linux")
	}
	return sum, nil
}

// parseStat reads a line of /proc/PID/stat, whose times are in hundredths of a second (USER_HZ,
// which Linux has fixed).
func parseStat(line string) (pid, parent int, used time.Duration, err error) {
	// The name of the program, in parentheses, may hold anything.
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || end < open {
		return 0, 0, 0, errors.New("it names no program")
	}
	fields := strings.Fields(line[end+1:]) // from the third on
	if len(fields) < 13 {
		return 0, 0, 0, errors.New("it has too few fields")
	}
	var user, system int64
	for _, f := range []struct {
		text string
		set  func(int64)
	}{
		{strings.TrimSpace(line[:open]), func(n int64) { pid = int(n) }},
		{fields[1], func(n int64) { parent = int(n) }},
		{fields[11], func(n int64) { user = n }},
		{fields[12], func(n int64) { system = n }},
	} {
		n, err := strconv.ParseInt(f.text, 10, 64)
		if err != nil {
			return 0, 0, 0, err
		}
		f.set(n)
	}
	return pid, parent, time.Duration(user+system) * 10 * time.Millisecond, nil
}
