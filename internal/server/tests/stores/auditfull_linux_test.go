package stores

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// smallDisk is where an audit log lies, with a bound that a test sets and takes away.
type smallDisk struct {
	folder string
	says   string // the error of a write when it is full
	// fill leaves no room for many more records of a server, and free gives all of it back.
	fill, free func(server *servertest.Process)
	// outlives says that the disk is still full when the server has ended.
	outlives bool
}

// tmpfs is a file system of 64 KiB in memory, which hangs nowhere in the tree of files: no other
// program sees it, and it goes with the test.
func tmpfs(t *testing.T) (*smallDisk, error) {
	made, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(made)
	if err := errors.Join(unix.FsconfigSetString(made, "size", "64k"), unix.FsconfigCreate(made)); err != nil {
		return nil, err
	}
	fd, err := unix.Fsmount(made, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	d := &smallDisk{folder: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), says: "no space left on device",
		outlives: true}
	ballast := filepath.Join(d.folder, "ballast")
	d.fill = func(*servertest.Process) {
		f, err := os.OpenFile(ballast, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 1<<10))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
	}
	d.free = func(*servertest.Process) {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
	return d, nil
}

// bounded is a folder of the disk that is there, and a bound of the kernel on how large a file of
// the server may become (RLIMIT_FSIZE). That needs no rights, and cuts a record short as a full
// disk does.
func bounded(t *testing.T) *smallDisk {
	d := &smallDisk{folder: t.TempDir(), says: "file too large"}
	set := func(server *servertest.Process, bytes uint64) {
		t.Helper()
		if err := unix.Prlimit(server.Cmd.Process.Pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: math.MaxUint64}, nil); err != nil {
			t.Fatal(err)
		}
	}
	d.fill = func(server *servertest.Process) {
		info, err := os.Stat(filepath.Join(d.folder, "audit.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		set(server, uint64(info.Size())+100)
	}
	d.free = func(server *servertest.Process) { set(server, math.MaxUint64) }
	return d
}

// TestAuditFullDisk: while there is no room for records, changes are refused with the reason, and
// decisions go on; when there is room again, changes are made, and the chain holds. So it does when
// the server is killed meanwhile, and the last record cut short.
func TestAuditFullDisk(t *testing.T) {
	t.Parallel()
	effort.Long(t, "does all operations three times on each disk")
	t.Run("RLIMIT_FSIZE", func(t *testing.T) {
		t.Parallel()
		testAuditFullDisk(t, bounded(t))
	})
	disk, err := tmpfs(t)
	if err != nil {
		t.Logf(
			"no file system can be made here (that needs CAP_SYS_ADMIN), so only the bound on a file's size is tested: %v", err)
		return
	}
	t.Run("tmpfs", func(t *testing.T) {
		t.Parallel()
		testAuditFullDisk(t, disk)
	})
}

func testAuditFullDisk(t *testing.T, disk *smallDisk) {
	a := prepareAudited(t, filepath.Join(disk.folder, "audit.jsonl"))
	a.begin(a.log)
	a.make()
	a.values["token"] = tokenOf("support")
	// There is something to take back.
	for i := range operations {
		if o := &operations[i]; strings.HasPrefix(o.record, "ban set") || strings.HasPrefix(o.record, "grant made") {
			a.changes(o, o.status)
		}
	}
	a.full(disk)

	before, whole := a.state(), a.text()
	if !strings.HasSuffix(whole, "\n") {
		t.Errorf("the last record is torn: %q", whole[max(0, len(whole)-1000):])
	}
	refused := 0
	for i := range operations {
		o := &operations[i]
		if o.record == "" || o.gently {
			a.changes(o, o.status)
			continue
		}
		refused++
		if body := a.changes(o, 503); !strings.Contains(body,
			"nothing was changed: the audit log cannot be written: ") || !strings.Contains(body, disk.says) {
			t.Errorf("%s: %s", o.route, body)
		}
	}
	if after := a.state(); refused == 0 || after != before {
		t.Errorf("%d changes were refused, and there is\n%s\nbefore it was\n%s", refused, after, before)
	}
	if now := a.text(); now != whole {
		t.Errorf("the log has become %q from %q", now, whole)
	}
	command := func(args ...string) (string, error) {
		out, err := exec.Command(servertest.BuiltProgram(t),
			append(args, "--server", a.admin, "--token-file", filepath.Join(a.dir, "admin.token"))...).CombinedOutput()
		return string(out), err
	}
	if out, err := command("ban", "set", "login", "192.0.2.8", "--for=1h"); !isExit(err, 1) ||
		!strings.Contains(out, "weir: nothing was changed: the audit log cannot be written: ") {
		t.Errorf("weir ban set: %v\n%s", err, out)
	}
	if out, err := command("audit"); err != nil || !strings.Contains(out, " records could not be written\n") {
		t.Errorf("weir audit: %v\n%s", err, out)
	}
	// Decisions go on, and denials lead to bans.
	for i, want := range []int{200, 200, 429, 429, 429, 429} {
		if status := a.decide("/login", "ip=192.0.2.77"); status != want {
			t.Errorf("decision %d: %d, want %d", i, status, want)
		}
	}
	if _, body, _ := a.do(&operation{route: "GET /api/v1/bans"}, "admin"); !strings.Contains(body, "192.0.2.77") {
		t.Errorf("denials led to no ban: %s", body)
	}

	disk.free(a.Process)
	n := len(records(t, a.log))
	var want []string
	for i := range operations {
		a.changes(&operations[i], operations[i].status)
		if o := &operations[i]; !strings.HasPrefix(o.record, "signal") && o.record != "" {
			want = append(want, o.record)
		}
	}
	a.changes(&operation{route: "POST /api/v1/bans", body: `{"limit": "login", "key": "192.0.2.9", "for": "1h"}`}, 200) // behind all that were told
	want = append(want, "ban set")
	list := records(t, a.log)[n:]
	if list[0].What != "records lost" || !strings.Contains(fmt.Sprint(list[0].After), "records:") {
		t.Errorf("the first record behind those that were lost is %+v", list[0])
	}
	i := 0
	each, _ := apart(list[1:])
	for _, e := range each {
		if e.Who == audit.Weir {
			continue
		}
		if i >= len(want) || !strings.HasPrefix(want[i], e.What) {
			t.Fatalf("record %d behind a full disk is %+v", i, e)
		}
		i++
	}
	if i != len(want) {
		t.Errorf("%d records behind a full disk, want %d", i, len(want))
	}
	a.verify(n + len(list))

	// The machine dies while a record is written to a full disk, and comes back with it full.
	a.full(disk)
	n = len(records(t, a.log))
	a.Signal(syscall.SIGKILL)
	a.Wait()
	if disk.outlives {
		disk.free(nil)
	}
	text := a.text()
	last := text[strings.LastIndexByte(text[:len(text)-1], '\n')+1:]
	if err := os.WriteFile(a.log, []byte(text+last[:len(last)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	if disk.outlives {
		disk.fill(nil)
	}
	a.begin(a.log)
	a.full(disk)
	if status := a.decide("/notes", "user=bob"); status != 200 {
		t.Errorf("a decision: %d", status)
	}
	disk.free(a.Process)
	a.changes(&operation{route: "POST /api/v1/bans", body: `{"limit": "login", "key": "192.0.2.10", "for": "1h"}`}, 200)
	a.Signal(syscall.SIGTERM)
	if status := a.Wait(); status != 0 {
		t.Errorf("exit status %d\n%s", status, a.Stderr)
	}
	list = records(t, a.log)
	a.verify(len(list))
	torn := 0
	for _, e := range list[n:] {
		if e.What == "torn record cut" || e.What == "records lost" {
			torn++
		}
	}
	if torn == 0 || list[len(list)-1].What != "ban set" {
		t.Errorf("behind a torn record: %+v", list[n:])
	}
}

// full fills the disk, until no record fits: a login leaves the shortest, except for the record of
// how many were lost, which is tried before each.
func (a *audited) full(disk *smallDisk) {
	a.t.Helper()
	disk.fill(a.Process)
	login := operation{route: "POST /login", body: `{"token": "` + tokenOf("admin") + `"}`}
	servertest.Eventually(a.t, "the disk is full", func() bool {
		a.changes(&login, 204)
		var answer struct{ Lost int }
		_, body, _ := a.do(&operation{route: "GET /api/v1/audit"}, "admin")
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			a.t.Fatalf("%v: %s", err, body)
		}
		return answer.Lost >= 2
	})
}

// changes does an operation as admin, and returns the answer.
func (a *audited) changes(o *operation, want int) string {
	a.t.Helper()
	status, body, _ := a.do(o, "admin")
	if i := strings.Index(body, `"preview":"/api/v1/preview/`); i >= 0 {
		a.values["preview"] = strings.TrimSuffix(strings.TrimSpace(body[i+len(`"preview":"/api/v1/preview/`):]), `"}`)
	}
	if status != want {
		a.t.Fatalf("%s: %d %s, want %d", o.route, status, body, want)
	}
	return body
}

// state is the state that operations could change, without the time that is left of anything.
func (a *audited) state() string {
	a.t.Helper()
	var b strings.Builder
	for _, target := range []string{"/api/v1/bans", "/api/v1/grants", "/api/v1/keys?limit=notes",
		"/api/v1/keys?limit=login", "/api/v1/deferred"} {
		_, body, _ := a.do(&operation{route: "GET " + target}, "admin")
		for line := range strings.Lines(body) {
			if !volatile.MatchString(line) {
				b.WriteString(line)
			}
		}
	}
	return b.String()
}

// volatile are members of answers that change by themselves.
var volatile = regexp.MustCompile(`"(left|reset_after|retry_after|looked_at|of)"`)

// text is the log as it lies on the disk.
func (a *audited) text() string {
	a.t.Helper()
	data, err := os.ReadFile(a.log)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(data)
}

// isExit reports whether a program ended with a status.
func isExit(err error, status int) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	return ok && exit.ExitCode() == status
}
