package main

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// previewServer is a server that has recorded four requests, two of which it refused.
func previewServer(t *testing.T, program string, with func(*exec.Cmd)) *servertest.Process {
	t.Helper()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), servertest.PreviewedRules)
	cmd := exec.Command(program, "serve", "--rules=rules.yaml", "--listen-http=127.0.0.1:0", "--listen-grpc=off", "--listen-resp=off", "--listen-admin=127.0.0.1:0")
	cmd.Dir, cmd.Env = dir, append(servertest.PlainEnvironment(), "WEIR_DRAIN=1s", "TZ=Europe/Berlin")
	if with != nil {
		with(cmd)
	}
	p := servertest.Begin(t, cmd)
	for range 4 {
		servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?ip=192.0.2.1")
	}
	return p
}

// gone waits for the end of a process, which may have become another one's to bury.
func gone(t *testing.T, pid int) {
	t.Helper()
	servertest.Eventually(t, "the process that replays ends", func() bool {
		fields := servertest.StatOf(fmt.Sprintf("/proc/%d/stat", pid))
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
	p := previewServer(t, program, func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{inherited} })
	p.Previews()

	at, pid := p.Slow()
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
			if fields := servertest.StatOf(name); len(fields) > 38 {
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
	if want := []string{"GOMAXPROCS=1", "GOMEMLIMIT=560MiB", "TZ=Europe/Berlin"}; err != nil || !slices.Equal(slices.Sorted(strings.SplitSeq(strings.TrimRight(string(environment), "\x00"), "\x00")), want) {
		t.Errorf("its environment is %q, %v", environment, err)
	}
	files, err := filepath.Glob(proc + "fd/*")
	open := map[string]string{}
	for _, name := range files {
		open[filepath.Base(name)], _ = os.Readlink(name)
	}
	for fd, file := range open {
		// Go looks how much processor its control group has.
		if !strings.HasPrefix(file, "pipe:") && !strings.HasPrefix(file, "anon_inode:") && !strings.HasPrefix(file, "/sys/fs/cgroup/") && !strings.HasPrefix(file, proc) {
			t.Errorf("it has %s open as %s", file, fd)
		}
	}
	if err != nil || open["0"] == "" || open["1"] == "" || open["2"] == "" || p.HasNoFile(inherited.Name()) {
		t.Errorf("its files are %v, %v", slices.Collect(maps.Values(open)), err)
	}
	if at := p.BeginPreview(servertest.QuickPreview()); at != "" {
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
	if status, text := servertest.Outcome(t, at); status != 503 || !strings.Contains(text, "it was ended before it was done") {
		t.Errorf("%d %s", status, text)
	}
	// The command is interrupted.
	dir := t.TempDir()
	for name, text := range servertest.SlowPreview() {
		servertest.WriteRules(t, filepath.Join(dir, name), text)
	}
	// The result of the one before is there, so that this one can begin.
	client := servertest.Begin(t, exec.Command(program, "preview", dir, "--server=http://"+p.Addr("admin")))
	pid = p.Child()
	client.Signal(syscall.SIGINT)
	gone(t, pid)
	if status := client.Wait(); status != 2 || !strings.Contains(client.Stderr.String(), "interrupted") {
		t.Errorf("weir preview: exit status %d: %s", status, client.Stderr)
	}

	// It is killed.
	at, pid = p.Slow()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if status, text := servertest.Outcome(t, at); status != 503 || !strings.Contains(text, "the process that replays the requests ended before it was done: signal: killed") {
		t.Errorf("%d %s", status, text)
	}
	p.Previews()

	// The server is killed, before the process knows what it is to do, or later.
	_, pid = p.Slow()
	p.Signal(syscall.SIGKILL)
	p.Wait()
	gone(t, pid)
	for line := range strings.Lines(p.Stderr.String()) {
		if strings.Contains(line, "level=WARN") && (denied == nil || !strings.Contains(line, "the priority could not be lowered")) {
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

// TestPreviewOfReplacedProgram: a server goes on with the program that it is, where another file
// has its name or none has. Where the program may be started no more, it replays requests itself,
// and says so once.
func TestPreviewOfReplacedProgram(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "weir")
	copyFile(t, servertest.BuildProgram(t), program)
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	const here = "previews replay requests in this process"
	p := previewServer(t, program, nil)
	p.Previews()
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	p.Previews()
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.Previews()
	_, pid := p.Slow() // it is still another process
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 || strings.Contains(p.Stderr.String(), here) {
		t.Errorf("exit status %d\n%s", status, p.Stderr)
	}
	gone(t, pid)

	copyFile(t, servertest.BuildProgram(t), program)
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	p = previewServer(t, program, nil)
	if err := os.Chmod(program, 0o644); err != nil { // as on a file system that was mounted with noexec since
		t.Fatal(err)
	}
	p.Previews()
	p.Previews()
	if text := p.Stderr.String(); strings.Count(text, here) != 1 || !strings.Contains(text, "permission denied") {
		t.Errorf("it logged\n%s", text)
	}
}
