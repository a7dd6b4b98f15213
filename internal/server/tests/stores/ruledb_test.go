package stores

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule/file"
)

// ruleBed is the built program with rules in a real PostgreSQL.
type ruleBed struct {
	t       *testing.T
	program string
	url     string
	address *ruledb.Address
}

// newRuleBed makes one whose database is ready.
func newRuleBed(t *testing.T, url string) *ruleBed {
	t.Helper()
	b := &ruleBed{t: t, program: servertest.BuildProgram(t), url: url}
	var err error
	if b.address, err = ruledb.Parse(url); err != nil {
		t.Fatal(err)
	}
	b.does(0, "init")
	return b
}

// run runs weir rules with arguments as ada, and returns its exit status and all that it wrote.
func (b *ruleBed) run(args ...string) (int, string) {
	b.t.Helper()
	cmd := exec.Command(b.program, append([]string{"rules"}, args...)...)
	cmd.Dir = b.t.TempDir()
	cmd.Env = append(servertest.PlainEnvironment(), "WEIR_RULES="+b.url)
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		b.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// does runs weir rules and checks how it ends, and that all parts are in its output.
func (b *ruleBed) does(status int, args ...string) *servertest.RuleWords {
	b.t.Helper()
	got, out := b.run(args...)
	if got != status {
		b.t.Fatalf("weir rules %q: exit status %d, want %d\n%s", args, got, status, out)
	}
	return &servertest.RuleWords{T: b.t, Args: args, Text: out}
}

// says waits until weir rules ends well and writes all parts, which may depend on messages that
// nodes have yet to say of themselves.
func (b *ruleBed) says(command string, parts ...string) {
	b.t.Helper()
	servertest.Eventually(b.t, fmt.Sprintf("weir rules %s says %q", command, parts), func() bool {
		status, out := b.run(command)
		return status == 0 && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(out, p) })
	})
}

// folder makes a folder of rules.
func (b *ruleBed) folder(n int) string {
	b.t.Helper()
	dir := b.t.TempDir()
	servertest.WriteRules(b.t, filepath.Join(dir, "shop.yaml"), servertest.LimitRules(n))
	servertest.WriteRules(b.t, filepath.Join(dir, "shop_test.yaml"), servertest.LimitTest(n))
	return dir
}

// node starts a server that follows the rules, in a folder of its own, or in dir.
func (b *ruleBed) node(dir string, args ...string) *ruleNode {
	b.t.Helper()
	if dir == "" {
		dir = b.t.TempDir()
	}
	cmd := exec.Command(b.program, append([]string{"serve", "--rules-db-every=300ms"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(servertest.PlainEnvironment(), "WEIR_RULES="+b.url, "WEIR_LISTEN_HTTP=127.0.0.1:0",
		"WEIR_LISTEN_GRPC=off", "WEIR_LISTEN_RESP=off", "WEIR_LISTEN_ADMIN=127.0.0.1:0", "WEIR_INSIGHT_MEMORY=0", "WEIR_INSIGHT_RECORD=0")
	n := &ruleNode{Process: servertest.Begin(b.t, cmd), dir: dir}
	n.http, n.admin = n.Addr("http"), n.Addr("admin")
	return n
}

type ruleNode struct {
	*servertest.Process
	dir, http, admin string
}

// limit is the n of LimitRules in force; 0 if it does not answer.
func (n *ruleNode) limit() int {
	r, err := http.Get("http://" + n.http + "/api/v1/limit?hits=0&domain=shop&key=none")
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	limit, _ := strconv.Atoi(r.Header.Get("X-RateLimit-Limit"))
	return limit
}

// follows waits until a limit is in force.
func (n *ruleNode) follows(limit int) {
	n.T.Helper()
	servertest.Eventually(n.T, fmt.Sprintf("a limit of %d is in force", limit),
		func() bool { return n.limit() == limit })
}

// metric reads a metric without labels.
func (n *ruleNode) metric(name string) string {
	n.T.Helper()
	_, _, body := servertest.Get(n.T, "http://"+n.admin+"/metrics")
	found := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*\})? (\S+)$`).FindStringSubmatch(body)
	if found == nil {
		n.T.Fatalf("no metric %s", name)
	}
	return found[1]
}

// A day in the life of rules in a database, as its commands tell it.
func TestRulesInDatabase(t *testing.T) {
	t.Parallel()
	effort.Long(t, "runs the program many times")
	b := newRuleBed(t, pgtest.Start(t).URL())
	dir := b.folder(10)
	b.does(0, "init").With("is ready")
	b.does(0, "status").With("holds no rules", "no node follows")
	b.does(0, "history").With("No rules were pushed yet")
	cmd := exec.Command(b.program, "serve", "--check", "--rules", b.url)
	cmd.Dir, cmd.Env = t.TempDir(), servertest.PlainEnvironment()
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "holds no rules") ||
		!strings.Contains(string(out), "weir rules import DIR") {
		t.Errorf("a server without rules: %v\n%s", err, out)
	}
	b.does(0, "import", dir, "--note", "from git").With("1 test passed",
		"version 1 is to be in force, in place of none")
	b.does(1, "import", b.folder(11)).With("nothing was imported", "version 1 is in force")
	nodes := []*ruleNode{b.node(""), b.node("")}
	for _, n := range nodes {
		n.follows(10)
	}

	// A change, and one that began with the same version.
	ada, bob := filepath.Join(t.TempDir(), "ada"), filepath.Join(t.TempDir(), "bob")
	b.does(0, "pull", ada).With("holds version 1: 2 files")
	b.does(0, "pull", bob)
	b.does(0, "diff", ada)
	change := func(dir string, n int) {
		servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"), servertest.LimitRules(n))
		servertest.WriteRules(t, filepath.Join(dir, "shop_test.yaml"), servertest.LimitTest(n))
	}
	change(ada, 20)
	change(bob, 30)
	b.does(1, "diff", ada).With("-    allow: 10/day", "+    allow: 20/day", "--- shop.yaml (version 1)")
	b.does(0, "push", ada, "--author", "ada", "--note", "more room", "--wait",
		"10m").With("version 2 is to be in force, in place of version 1", "in force on 2 nodes")
	for _, n := range nodes {
		if got := n.limit(); got != 20 {
			t.Errorf("the push has waited, and a node has %d", got)
		}
		if got := n.metric("weir_rules_behind"); got != "0" {
			t.Errorf("behind %s", got)
		}
	}
	b.does(0, "push", ada).With("is version 2, which is in force")
	b.does(1, "push", bob).With("version 2 came meanwhile, by ada", "(more room)", "-    allow: 10/day",
		"+    allow: 20/day", "push with --base 2")
	if text, err := os.ReadFile(filepath.Join(bob, "shop.yaml")); err != nil ||
		string(text) != servertest.LimitRules(30) {
		t.Errorf("the loser's folder was changed: %q, %v", text, err)
	}
	b.does(1, "pull", bob).With("rules that were not pushed")
	b.does(0, "push", bob, "--base", "2", "--author", "bob", "--wait", "10m").With("version 3")
	b.does(2, "push", b.folder(40)).With("does not say which version", "--base 3")

	// What lint or tests refuse is not pushed; by force it is, and each node refuses it.
	servertest.WriteRules(t, filepath.Join(bob, "shop_test.yaml"), servertest.LimitTest(31))
	b.does(1, "push", bob).With("nothing was pushed, since these failed: tests", "--force")
	broken := filepath.Join(t.TempDir(), "broken")
	b.does(0, "pull", broken)
	servertest.WriteRules(t, filepath.Join(broken, "shop.yaml"),
		"domain: shop\nlimits:\n  - name: daily\n    alow: 1/day\n")
	b.does(1, "push", broken).With("since these failed: lint")
	b.does(1, "push", broken, "--force", "--author", "bob", "--wait", "10m").With("version 4 is refused by 2 nodes",
		`unknown key "alow"`)
	b.does(1, "status").With("version 4, by bob", "refuses 4", `unknown key "alow"`)
	for _, n := range nodes {
		if n.limit() != 30 || n.metric("weir_rules_broken") != "1" {
			t.Errorf("after a broken version: %d", n.limit())
		}
	}
	b.does(0, "rollback", "--author", "ada", "--note", "broken", "--wait",
		"10m").With("version 5, which is version 3 again", "in force on 2 nodes")
	b.does(0, "status").With("version 5, by ada", "in force")
	b.does(0, "diff", "3", "5")
	b.does(2, "rollback", "x").With(`"x": expected the number`)
	b.does(1, "rollback", "3").With("has the files that are in force")

	// A new limit, first in shadow.
	b.does(0, "pull", ada)
	servertest.WriteRules(t, filepath.Join(ada, "more.yaml"),
		"domain: shop\nlimits:\n  - name: more # new\n    per: [key]\n    allow: 5/day\n    algorithm: sliding_log\n")
	servertest.WriteRules(t, filepath.Join(ada, "shop_test.yaml"),
		strings.Replace(servertest.LimitTest(5), "by: daily", "by: more", 1))
	b.does(0, "push", ada, "--shadow", "--wait", "10m").With("in shadow, beside what is in force: shop/more",
		"version 6")
	if got := nodes[0].limit(); got != 30 {
		t.Errorf("with a new limit in shadow: %d", got)
	}
	b.does(0, "push", ada, "--wait", "10m").With("version 7")
	if got := nodes[0].limit(); got != 5 {
		t.Errorf("with the new limit: %d", got)
	}
	b.does(0, "rollback", "5", "--wait", "10m").With("version 8, which is version 5 again")
	b.does(0, "pull", ada)
	if _, err := os.Stat(filepath.Join(ada, "more.yaml")); !os.IsNotExist(err) {
		t.Errorf("a file that the version does not have: %v", err)
	}

	// History, and what is left of it.
	b.does(0, "history").With("push: by force, since these failed: lint", "rollback: version 3 again", "from git",
		"bob")
	b.does(0, "history", "--json", "-n", "1").With(`"after":8`)
	checked := b.does(0, "history", "--check").With("8 records and 8 versions", "last hash ")
	_, noted, _ := strings.Cut(checked.Text, "last hash ")
	noted = strings.TrimSpace(noted)
	b.does(2, "history", "--noted", noted).With("--noted is for --check")
	b.does(1, "history", "--check", "--noted", strings.Repeat("0", 64)).With("BROKEN: no record has the hash 000")
	b.does(0, "prune", "--keep", "2").With("6 versions")
	b.does(0, "history", "--check", "--noted", noted).With("9 records and 8 versions, 6 of these without",
		"up to record 8 nothing was altered, left out, put in or moved since that hash was noted")
	b.does(1, "pull", "--version", "1", ada).With("version 1 were pruned")
	b.does(1, "push", b.folder(50), "--base", "1").With("version 8 came meanwhile",
		"cannot be shown: the files of version 1 were pruned", "push with --base 8")
	nodes[0].Signal(syscall.SIGTERM)
	if status := nodes[0].Wait(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	if out := b.does(0, "status").Text; strings.Count(out, "in force") != 1 {
		t.Errorf("one node ended, and the status is\n%s", out)
	}
}

// Two editors push at the same time, each a change of the same version: one wins, the other one
// sees what that changed, and both changes are whole.
func TestTwoEditors(t *testing.T) {
	t.Parallel()
	effort.Long(t, "runs the program many times")
	b := newRuleBed(t, pgtest.Start(t).URL())
	b.does(0, "import", b.folder(10))
	for round := range 3 {
		var dirs [2]string
		for i := range dirs {
			dirs[i] = filepath.Join(t.TempDir(), "rules")
			b.does(0, "pull", dirs[i])
			limit := 20 + 2*round + i
			servertest.WriteRules(t, filepath.Join(dirs[i], "shop.yaml"), servertest.LimitRules(limit))
			servertest.WriteRules(t, filepath.Join(dirs[i], "shop_test.yaml"), servertest.LimitTest(limit))
		}
		var statuses [2]int
		var texts [2]string
		var both sync.WaitGroup
		for i := range dirs {
			both.Go(func() { statuses[i], texts[i] = b.run("push", dirs[i], "--author", fmt.Sprint("editor", i)) })
		}
		both.Wait()
		winner := slices.Index(statuses[:], 0)
		if winner < 0 || statuses[1-winner] != 1 {
			t.Fatalf("statuses %v\n%s", statuses, texts)
		}
		(&servertest.RuleWords{T: t, Text: texts[1-winner]}).With(fmt.Sprintf("by editor%d", winner),
			fmt.Sprintf("+    allow: %d/day", 20+2*round+winner), fmt.Sprintf("push with --base %d", round+2))
		b.does(0, "diff", dirs[winner])
	}
	b.does(0, "history", "--check").With("4 records and 4 versions")
}

// Many pushes come quicker than nodes load them. No node misses the last one, and each puts what it
// does put in force in force in order. WEIR_RULE_PUSHES says how many.
func TestManyPushes(t *testing.T) {
	t.Parallel()
	effort.Long(t, "runs the program many times")
	pushes, err := strconv.Atoi(cmp.Or(os.Getenv("WEIR_RULE_PUSHES"), "60"))
	if err != nil {
		t.Fatal(err)
	}
	b := newRuleBed(t, pgtest.Start(t).URL())
	b.does(0, "import", b.folder(1))
	nodes := make([]*ruleNode, 4)
	for i := range nodes {
		nodes[i] = b.node("")
	}
	ctx := patience.Context(t)
	d, err := ruledb.Open(ctx, b.address)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	began := time.Now()
	for n := range pushes {
		v, err := d.Push(ctx, ruledb.Change{
			Base: int64(n + 1), Files: []file.Source{{Name: "shop.yaml", Data: []byte(servertest.LimitRules(n + 2))}}, Author: "ada", Origin: ruledb.Push,
		})
		if err != nil || v != int64(n+2) {
			t.Fatal(v, err)
		}
	}
	pushed := time.Since(began)
	for _, n := range nodes {
		n.follows(pushes + 1)
	}
	t.Logf("%d pushes in %v, in force on %d nodes after %v", pushes, pushed.Round(time.Millisecond), len(nodes),
		time.Since(began).Round(time.Millisecond))
	began = time.Now()
	b.does(0, "rollback", "1", "--wait", "10m").With("in force on 4 nodes")
	t.Logf("a rollback was in force on %d nodes after %v", len(nodes), time.Since(began).Round(time.Millisecond))
	loaded := regexp.MustCompile(`rules loaded.* version=(\d+)`)
	for i, n := range nodes {
		last, loads := 0, 0
		for _, m := range loaded.FindAllStringSubmatch(n.Stderr.String(), -1) {
			v, _ := strconv.Atoi(m[1])
			if v <= last {
				t.Errorf("node %d: version %d after %d", i, v, last)
			}
			last, loads = v, loads+1
		}
		if last != pushes+2 {
			t.Errorf("node %d ends with version %d", i, last)
		}
		t.Logf("node %d loaded %d versions", i, loads)
	}
	b.does(0, "history", "--check").With(fmt.Sprintf("%d records and %d versions", pushes+2, pushes+2))
}
