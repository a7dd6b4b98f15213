package pgtest

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// made describes how the template's data are made.
var made = struct {
	args     []string
	hba, sql string
}{
	args: []string{
		"--username=postgres", "--auth=trust", "--no-sync", "--wal-segsize=1", "--encoding=UTF8", "--locale=C",
		"--no-instructions",
	},
	hba: `local all all trust
local replication all trust
host all guarded 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
`,
	sql: `create role weir login;
create role guarded login password '` + Password + `';
create database weir owner weir;
`,
}

// template returns a folder with the data of a server that has never run: to copy them takes a
// tenth of the time of initdb. It is kept beside Go's own caches, for the next run too.
func template(t testing.TB) string {
	t.Helper()
	dir, err := makeTemplate(binary(t, "initdb"), binary(t, "postgres"))
	if err != nil {
		t.Skipf("PostgreSQL does not start here: %v", err)
	}
	return dir
}

var templates sync.Mutex

func makeTemplate(initdb, postgres string) (dir string, err error) {
	templates.Lock()
	defer templates.Unlock()
	owner, err := ownerOfServers()
	if err != nil {
		return "", err
	}
	what, err := exec.Command(postgres, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", postgres, err)
	}
	caches, err := os.UserCacheDir()
	if err == nil {
		err = os.MkdirAll(filepath.Join(caches, "weir-pgtest"), 0o700)
	}
	if err != nil {
		caches = os.TempDir()
	}
	hash := fnv.New64a()
	fmt.Fprint(hash, string(what), made, owner.name)
	dir = filepath.Join(caches, "weir-pgtest", fmt.Sprintf("%016x", hash.Sum64()))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	work, err := makeDir(owner)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	data := filepath.Join(work, "data")
	run := func(input string, args ...string) error {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Stdin = work, strings.NewReader(input)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		owner.run(cmd)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s, as the user %s in %s: %w\n%s", args[0], owner.name, work, err, out)
		}
		return nil
	}
	err = errors.Join(run("", append([]string{initdb, "-D", data}, made.args...)...),
		run(made.sql, postgres, "--single", "-F", "-D", data, "postgres"))
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(made.hba), 0o600); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", err
	}
	// Another process may have been quicker; then its data are as good.
	if err := exec.Command("cp", "-a", data, dir+filepath.Base(work)).Run(); err != nil {
		return "", fmt.Errorf("cp: %w", err)
	}
	if err := os.Rename(dir+filepath.Base(work), dir); err != nil {
		_ = os.RemoveAll(dir + filepath.Base(work))
		if _, gone := os.Stat(dir); gone != nil {
			return "", err
		}
	}
	return dir, nil
}

// account is the user as whom servers run. PostgreSQL refuses to run as root.
type account struct {
	name     string
	other    bool // not the user of this process
	uid, gid int
}

// copy copies a folder of data.
func (a *account) copy(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w\n%s", err, out)
	}
	return nil
}

// own makes it the owner of a file.
func (a *account) own(file string) error {
	if !a.other {
		return nil
	}
	return os.Chown(file, a.uid, a.gid)
}
