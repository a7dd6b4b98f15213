package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// previewServer is a server whose previews are done by another process.
type previewServer struct{ *servertest.Process }

const previewedRules = "domain: shop\nlimits: [{ name: api, per: [ip], allow: 2/hour }]\n"

// quickPreview is over at once; slowPreview goes on until somebody ends it.
func quickPreview() map[string]string {
	return map[string]string{"shop.yaml": strings.Replace(previewedRules, "2/hour", "1/hour", 1)}
}

func slowPreview() map[string]string {
	tests := "tests:\n" +
		strings.Repeat(
			"  - name: many\n    steps: [{ send: { ip: 192.0.2.1, times: 10000000 }, expect: { allowed: true } }]\n", 100)
	files := quickPreview()
	files["shop_test.yaml"] = tests
	return files
}

// beginPreview starts a preview, and returns where it is asked for; "" if another one runs.
func (p previewServer) beginPreview(files map[string]string) string {
	p.T.Helper()
	body, err := json.Marshal(map[string]any{"files": files})
	if err != nil {
		p.T.Fatal(err)
	}
	res, err := http.Post("http://"+p.Addr("admin")+"/api/v1/preview", "application/json", bytes.NewReader(body))
	if err != nil {
		p.T.Fatal(err)
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusConflict:
		return ""
	case http.StatusAccepted:
		return "http://" + p.Addr("admin") + res.Header.Get("Location")
	}
	text, _ := io.ReadAll(res.Body)
	p.T.Fatalf("%d %s", res.StatusCode, text)
	return ""
}

// slow starts a preview that goes on, as soon as the last one has ended, and returns where it is
// asked for and its process.
func (p previewServer) slow() (at string, pid int) {
	p.T.Helper()
	servertest.Eventually(p.T, "a preview begins", func() bool {
		at = p.beginPreview(slowPreview())
		return at != ""
	})
	return at, p.child()
}

// outcome waits for a preview, and returns the answer.
func outcome(t *testing.T, at string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// previews checks that a preview has the result that it must have.
func (p previewServer) previews() {
	p.T.Helper()
	var result insight.PreviewResult
	status, text := outcome(p.T, p.beginPreview(quickPreview()))
	servertest.SkipIfStarved(p.T, text)
	if err := json.Unmarshal([]byte(text), &result); err != nil || status != 200 || result.Requests != 4 ||
		result.Now.Refused != 2 || result.Then.Refused != 3 {
		p.T.Errorf("%d %s\n%s", status, text, p.Stderr)
	}
}

// child waits for the process that the program has started.
func (p previewServer) child() (pid int) {
	p.T.Helper()
	servertest.Eventually(p.T, "a process replays", func() bool {
		stats, err := filepath.Glob("/proc/[0-9]*/stat")
		if err != nil {
			p.T.Fatal(err)
		}
		for _, name := range stats {
			// The fields after the name: state, and the process that started it.
			if fields := statOf(name); len(fields) > 1 && fields[1] == strconv.Itoa(p.Cmd.Process.Pid) &&
				fields[0] != "Z" {
				pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(name)))
			}
		}
		return pid != 0
	})
	return pid
}

// statOf reads the fields of a stat file of /proc from the state on; none if it is gone.
func statOf(name string) []string {
	data, _ := os.ReadFile(name)
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
}

// hasNoFile reports whether the program itself does not have a file open, so that it would show in
// no process that it starts.
func (p previewServer) hasNoFile(name string) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.Cmd.Process.Pid))
	return !slices.ContainsFunc(files, func(fd string) bool {
		file, _ := os.Readlink(fd)
		return file == name && filepath.Base(fd) == "3"
	})
}

// startPreviewServer is a server that has recorded four requests, two of which it refused.
func startPreviewServer(t *testing.T, program string, with func(*exec.Cmd)) previewServer {
	t.Helper()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), previewedRules)
	cmd := exec.Command(program, "serve", "--rules=rules.yaml", "--listen-http=127.0.0.1:0", "--listen-grpc=off",
		"--listen-resp=off", "--listen-admin=127.0.0.1:0")
	cmd.Dir, cmd.Env = dir, append(servertest.PlainEnvironment(), "WEIR_DRAIN=1s", "TZ=Europe/Berlin")
	if with != nil {
		with(cmd)
	}
	p := previewServer{servertest.Begin(t, cmd)}
	for range 4 {
		servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?ip=192.0.2.1")
	}
	return p
}

// gone waits for the end of a process, which may have become another one's to bury.
func gone(t *testing.T, pid int) {
	t.Helper()
	servertest.Eventually(t, "the process that replays ends", func() bool {
		fields := statOf(fmt.Sprintf("/proc/%d/stat", pid))
		return len(fields) == 0 || fields[0] == "Z" || fields[0] == "X"
	})
}

// TestPreviewProcess: requests are replayed by a process of its own, which has the lowest priority
// and nothing of the server's; it ends with whatever ends the preview, and its end ends nothing
// else.
func TestPreviewProcess(t *testing.T) {
	t.Parallel()
	inherited, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer inherited.Close()
	program := servertest.BuiltProgram(t)
	p := startPreviewServer(t, program, func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{inherited} })
	p.previews()

	at, pid := p.slow()
	proc := fmt.Sprintf("/proc/%d/", pid)
	denied := noLowering()
	if denied != nil {
		t.Logf("the priority is not checked, since it cannot be lowered here: %v", denied)
	}
	// A preview that no processor is left for ends after a minute.
	while := func(what string, ok func() bool) {
		t.Helper()
		servertest.Eventually(t, what, func() bool {
			if _, err := os.Stat(proc); err != nil {
				t.Skip(servertest.Starved)
			}
			return ok()
		})
	}
	while("all threads have the lowest priority", func() bool {
		tasks, _ := filepath.Glob(proc + "task/*/stat")
		policies := map[string]int{}
		for _, name := range tasks {
			if fields := statOf(name); len(fields) > 38 {
				policies[fields[38]]++ // the policy is the 41st field of all
			}
		}
		return denied != nil || policies["5"] > 2 && len(policies) == 1 // SCHED_IDLE
	})
	while("the kernel ends it first", func() bool {
		score, _ := os.ReadFile(proc + "oom_score_adj")
		return string(score) == "1000\n"
	})
	environment, err := os.ReadFile(proc + "environ")
	if want := []string{"GOMAXPROCS=1", "GOMEMLIMIT=560MiB", "TZ=Europe/Berlin"}; err != nil ||
		!slices.Equal(slices.Sorted(strings.SplitSeq(strings.TrimRight(string(environment), "\x00"), "\x00")), want) {
		t.Errorf("its environment is %q, %v", environment, err)
	}
	files, err := filepath.Glob(proc + "fd/*")
	open := map[string]string{}
	for _, name := range files {
		open[filepath.Base(name)], _ = os.Readlink(name)
	}
	for fd, file := range open {
		// Go looks how much processor its control group has.
		if !strings.HasPrefix(file, "pipe:") && !strings.HasPrefix(file, "anon_inode:") &&
			!strings.HasPrefix(file, "/sys/fs/cgroup/") && !strings.HasPrefix(file, proc) {
			t.Errorf("it has %s open as %s", file, fd)
		}
	}
	if err != nil || open["0"] == "" || open["1"] == "" || open["2"] == "" || p.hasNoFile(inherited.Name()) {
		t.Errorf("its files are %v, %v", slices.Collect(maps.Values(open)), err)
	}
	if at := p.beginPreview(quickPreview()); at != "" {
		t.Error("a second preview began")
	}

	// The client wants it no more.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if res, err := http.DefaultClient.Do(r); err != nil || res.StatusCode != http.StatusNoContent {
		t.Fatal(res, err)
	}
	gone(t, pid)
	if status, text := outcome(t, at); status != 503 || !strings.Contains(text, "it was ended before it was done") {
		t.Errorf("%d %s", status, text)
	}
	// The command is interrupted.
	dir := t.TempDir()
	for name, text := range slowPreview() {
		servertest.WriteRules(t, filepath.Join(dir, name), text)
	}
	// The result of the one before is there, so that this one can begin.
	client := servertest.Begin(t, exec.Command(program, "preview", dir, "--server=http://"+p.Addr("admin")))
	pid = p.child()
	client.Signal(syscall.SIGINT)
	gone(t, pid)
	if status := client.Wait(); status != 2 || !strings.Contains(client.Stderr.String(), "interrupted") {
		t.Errorf("weir preview: exit status %d: %s", status, client.Stderr)
	}

	// It is killed.
	at, pid = p.slow()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if status, text := outcome(t, at); status != 503 ||
		!strings.Contains(text, "the process that replays the requests ended before it was done: signal: killed") {
		t.Errorf("%d %s", status, text)
	}
	p.previews()

	// The server is killed, before the process knows what it is to do, or later.
	_, pid = p.slow()
	p.Signal(syscall.SIGKILL)
	p.Wait()
	gone(t, pid)
	for line := range strings.Lines(p.Stderr.String()) {
		if strings.Contains(line, "level=WARN") &&
			(denied == nil || !strings.Contains(line, "the priority could not be lowered")) {
			t.Errorf("it logged\n%s", line)
		}
	}
}

// noLowering is why a process cannot have the lowest priority here; nil if it can.
func noLowering() error {
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with this goroutine, since there is no way back
		const idle = 5         // SCHED_IDLE
		var param struct{ priority int32 }
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETSCHEDULER, 0, idle, uintptr(unsafe.Pointer(&param))); errno != 0 {
			failed <- errno
			return
		}
		failed <- nil
	}()
	return <-failed
}

// copyProgram makes a copy of the program. Another process writes it: what this one has open for
// writing, the children that other tests start meanwhile have too, until they execute, and a file
// that is written cannot be executed.
func copyProgram(t *testing.T, to string) {
	t.Helper()
	if out, err := exec.Command("install", "-m", "755", servertest.BuildProgram(t), to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestPreviewOfReplacedProgram: a server goes on with the program that it is, where another file
// has its name or none has. Where the program may be started no more, it replays requests itself,
// and says so once.
func TestPreviewOfReplacedProgram(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "weir")
	copyProgram(t, program)
	const here = "previews replay requests in this process"
	p := startPreviewServer(t, program, nil)
	p.previews()
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	p.previews()
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.previews()
	_, pid := p.slow() // it is still another process
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 || strings.Contains(p.Stderr.String(), here) {
		t.Errorf("exit status %d\n%s", status, p.Stderr)
	}
	gone(t, pid)

	copyProgram(t, program)
	p = startPreviewServer(t, program, nil)
	if err := os.Chmod(program, 0o644); err != nil { // as on a file system that was mounted with noexec since
		t.Fatal(err)
	}
	p.previews()
	p.previews()
	if text := p.Stderr.String(); strings.Count(text, here) != 1 || !strings.Contains(text, "permission denied") {
		t.Errorf("it logged\n%s", text)
	}
}
