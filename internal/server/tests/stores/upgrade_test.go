//go:build unix

package stores

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// firstOlder is compared with until there is a release.
const firstOlder = "8db6bd05340347b60205bae02b478a799d1ea8a4"

// older builds the program of the last release before this commit, or of the commit or tag in
// WEIR_OLDER, once for all tests.
var older = sync.OnceValues(func() (program string, err error) {
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = servertest.OriginalRoot
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	commit := os.Getenv("WEIR_OLDER")
	if commit == "" {
		if commit, err = git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^"); err != nil {
			commit = firstOlder
		}
	}
	if out, err := git("cat-file", "-e", commit+"^{commit}"); err != nil {
		return "", fmt.Errorf("%w: %s: %s", errNoHistory, commit, out)
	}
	dir, err := os.MkdirTemp("", "weir-older-")
	if err != nil {
		return "", err
	}
	olderIn = dir
	archive := filepath.Join(dir, "source.tar")
	if out, err := git("archive", "--output="+archive, commit); err != nil {
		return "", fmt.Errorf("git archive: %w: %s", err, out)
	}
	source := filepath.Join(dir, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		return "", err
	}
	program = filepath.Join(dir, "weir")
	build := exec.Command("sh", "-c", `tar -xf "$0" -C "$1" && exec "$1/scripts/build" "$2"`, archive, source, program)
	build.Env = append(os.Environ(), "VERSION="+olderVersion)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the program of %s: %w: %s", commit, err, out)
	}
	return program, nil
})

// olderVersion is what the older program calls itself here.
const olderVersion = "v0.0.0-older"

// errNoHistory is the reason for which a copy of the source without its history skips tests.
var errNoHistory = errors.New("no history to build the older program from")

// bothPrograms are the older program and the one of this source.
func bothPrograms(t *testing.T) (old, current string) {
	t.Helper()
	effort.Long(t, "builds an older program")
	old, err := older()
	if errors.Is(err, errNoHistory) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(old, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "weir "+olderVersion) {
		t.Fatalf("the older program says %s (%v)", out, err)
	}
	return old, servertest.BuiltProgram(t)
}

// upgradeRules have limits that no time of a test changes, by each algorithm.
const upgradeRules = `domain: default
limits:
  - { name: fixed, per: [fixed], allow: 60/year, algorithm: fixed_window }
  - { name: window, per: [window], allow: 60/year, algorithm: sliding_window }
  - { name: log, per: [log], allow: 60/year, algorithm: sliding_log }
  - { name: bucket, per: [bucket], allow: 60/year, algorithm: token_bucket }
`

var upgradeAlgorithms = []string{"fixed", "window", "log", "bucket"}

// rolling is a fleet of two nodes that are replaced one by one while clients ask.
type rolling struct {
	t     *testing.T
	dir   string
	args  []string
	mu    sync.RWMutex // held for reading while a client asks
	nodes [2]*rolled
}

type rolled struct {
	*servertest.Process
	*servertest.Node
}

func (r *rolling) start(i int, program string) {
	r.t.Helper()
	p := servertest.Launch(r.t, program, r.dir, r.args...)
	n := &rolled{p, servertest.NodeOf(r.t, p.Stderr, p.Addr)}
	r.mu.Lock()
	r.nodes[i] = n
	r.mu.Unlock()
}

// replace ends a node as a rolling restart does, so that clients ask the other one meanwhile, and
// starts a program in its place.
func (r *rolling) replace(i int, program string) {
	r.t.Helper()
	r.mu.Lock() // what is under way has its answer
	n := r.nodes[i]
	r.nodes[i] = nil
	r.mu.Unlock()
	n.Signal(syscall.SIGTERM)
	if status := n.Wait(); status != 0 {
		r.t.Fatalf("a node ended with %d\n%s", status, n.Stderr)
	}
	r.start(i, program)
}

// ask asks one of the nodes that take requests; turn says which where both do.
func (r *rolling) ask(turn int, query string) (status int, err error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := r.nodes[turn%2]
	if n == nil {
		n = r.nodes[(turn+1)%2]
	}
	answer, err := http.Get(n.Http + "/api/v1/limit?" + query)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode, err
}

// load asks in turn for keys of each algorithm, from several clients, until done says so and each
// key has been asked least times in all; it returns what was admitted of each.
func (r *rolling) load(least int, keys []string, done func() bool) map[string]int {
	r.t.Helper()
	admitted := make([]atomic.Int64, len(keys))
	asked := make([]atomic.Int64, len(keys))
	var all sync.WaitGroup
	for client := range 4 {
		all.Go(func() {
			for turn := client; ; turn++ {
				enough := done()
				for i, key := range keys {
					status, err := r.ask(turn+i, key)
					switch {
					case err != nil || status != 200 && status != 429:
						r.t.Errorf("%s: %d %v", key, status, err)
						return
					case status == 200:
						admitted[i].Add(1)
					}
					enough = asked[i].Add(1) >= int64(least) && enough
				}
				if enough {
					return
				}
			}
		})
	}
	all.Wait()
	counts := map[string]int{}
	for i, key := range keys {
		counts[key] = int(admitted[i].Load())
	}
	return counts
}

// TestUpgrade: nodes of an older Weir and of this one decide on one Redis and one PostgreSQL at the
// same time. Through a rolling restart from old to new and back each limit admits what it allows,
// to the last unit and none beyond, and bans made at one are in force at the other.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	old, current := bothPrograms(t)
	for name, start := range map[string]func(t *testing.T) string{
		"Redis":      func(t *testing.T) string { return redistest.Start(t).URL() },
		"PostgreSQL": func(t *testing.T) string { return pgtest.Start(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testRolling(t, start(t), old, current)
		})
	}
}

func testRolling(t *testing.T, store, old, current string) {
	r := &rolling{t: t, dir: t.TempDir(),
		args: append([]string{"serve", "--rules=rules.yaml", "--store=" + store}, servertest.Patient...)}
	servertest.WriteRules(t, filepath.Join(r.dir, "rules.yaml"), upgradeRules)
	r.start(0, old)
	r.start(1, old)

	var steady, busy []string
	for _, algorithm := range upgradeAlgorithms {
		steady = append(steady, algorithm+"=steady")
		busy = append(busy, algorithm+"=busy")
	}
	// The steady keys' units last for all fleets. Those of the busy keys are used up in the first
	// step, as a rule, and each fleet after that refuses them.
	total := map[string]int{}
	add := func(counts map[string]int) {
		for key, n := range counts {
			total[key] += n
		}
	}
	at := func(times int) { t.Helper(); add(r.load(times, steady, func() bool { return true })) }
	at(10)
	steps := []struct {
		node    int
		program string
	}{{0, current}, {1, current}, {0, old}, {1, old}}
	for _, s := range steps {
		var over atomic.Bool
		var counts map[string]int
		var all sync.WaitGroup
		all.Go(func() { counts = r.load(1, busy, over.Load) })
		r.replace(s.node, s.program)
		over.Store(true)
		all.Wait()
		add(counts)
		at(10)
	}
	// Ten or a few more were asked in each of five fleets: no unit is gone, and none was made.
	for _, key := range steady {
		if n := total[key]; n < 50 || n > 60 {
			t.Errorf("%s: %d of at least 50 were admitted by a limit of 60", key, n)
		}
	}
	at(40)
	add(r.load(100, busy, func() bool { return true }))
	for key, n := range total {
		if n != 60 {
			t.Errorf("%s: %d were admitted by a limit of 60", key, n)
		}
	}

	// A fleet of both: what operators order at one holds at the other.
	r.replace(1, current)
	for i, program := range []string{current, old} { // each asks the other's node
		n := r.nodes[1-i]
		key := fmt.Sprintf("banned%d", i)
		cmd := exec.Command(program, "ban", "set", "fixed", key, "--for=1h", "--server="+n.Admin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		servertest.Eventually(t, "the other node refuses "+key, func() bool { return r.nodes[i].Ask("fixed="+key) == 429 })
		list := exec.Command(program, "keys", "list", "fixed", "--server="+n.Admin)
		if out, err := list.CombinedOutput(); err != nil || !strings.Contains(string(out), "busy") {
			t.Errorf("keys: %v: %s", err, out)
		}
	}
}

// TestUpgradeSnapshot: the counters that an older Weir left in its file go on in this one, and
// those of this one in the older.
func TestUpgradeSnapshot(t *testing.T) {
	t.Parallel()
	old, current := bothPrograms(t)
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), upgradeRules)
	left := 60
	for _, program := range []string{old, current, old} {
		p := servertest.Launch(t, program, dir, "serve", "--rules=rules.yaml", "--snapshot-path=snapshot")
		n := servertest.NodeOf(t, p.Stderr, p.Addr)
		asked := 25
		for _, algorithm := range upgradeAlgorithms {
			if got := n.Admitted(asked, algorithm+"=ada"); got != min(asked, left) {
				t.Errorf("%s: %d of %d were admitted with %d left", algorithm, got, asked, left)
			}
		}
		left -= min(asked, left)
		p.Signal(syscall.SIGTERM)
		if status := p.Wait(); status != 0 {
			t.Fatalf("it ended with %d\n%s", status, p.Stderr)
		}
	}
}
