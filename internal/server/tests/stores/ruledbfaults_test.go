package stores

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/internal/rulesource/ruledb"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule/file"
)

// pushes puts a limit in force, without the checks of the command.
func (b *ruleBed) pushes(base int64, limit int) {
	b.t.Helper()
	ctx := patience.Context(b.t)
	d, err := ruledb.Open(ctx, b.address)
	if err != nil {
		b.t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Push(ctx, ruledb.Change{Base: base, Files: []file.Source{{Name: "shop.yaml", Data: []byte(servertest.LimitRules(limit))}}, Author: "ada", Origin: ruledb.Push}); err != nil {
		b.t.Fatal(err)
	}
}

// A node decides even if the database of its rules is stopped, killed, or gone at the start. Once
// it is back, the node follows.
func TestRuleDatabaseFails(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts PostgreSQL and servers again and again")
	server := pgtest.Start(t)
	b := newRuleBed(t, server.URL())
	b.does(0, "import", b.folder(10))
	n := b.node("")
	n.follows(10)

	// Decisions go on while the database hangs. What a busy machine would make slow is counted, not
	// timed: all of them are answered while nothing of the database moves.
	server.Pause()
	for range 300 {
		if got := n.limit(); got != 10 {
			t.Fatalf("while the database hangs: a limit of %d", got)
		}
	}
	n.Stderr.Await(t, "rules cannot be followed")
	for range 300 {
		if got := n.limit(); got != 10 {
			t.Fatalf("while the database hangs, and that is known: a limit of %d", got)
		}
	}
	server.Resume()
	b.pushes(1, 20)
	n.follows(20)

	server.Kill()
	n.Stderr.Await(t, "(?s)rules are followed again.*rules cannot be followed")
	if got := n.limit(); got != 20 {
		t.Errorf("after the database was killed: %d", got)
	}
	// Another start, with nothing but the cache; and one without it.
	n.Signal(syscall.SIGTERM)
	n.Wait()
	n = b.node(n.dir)
	n.follows(20)
	n.Stderr.Await(t, "rules come from the cache")
	bare := servertest.Start(t, "serve", "--rules", b.url, "--rules-db-cache", filepath.Join(t.TempDir(), "none"))
	bare.Exits(1)
	bare.Stderr.Await(t, "the database of rules cannot be reached: .*there is no cache of them yet")
	server.Restart()
	n.Stderr.Await(t, "rules are followed again")
	b.pushes(2, 30)
	n.follows(30)

	// A version that this node cannot load does not keep it from starting either.
	server.Exec(
		`alter table weir_rules.version disable trigger all; update weir_rules.version set files = '{"shop.yaml": "limits: 3"}' where number = 3`)
	n.Signal(syscall.SIGTERM)
	n.Wait()
	n = b.node(n.dir)
	n.follows(30)
}

// The database fails over to its replica: nodes and editors find it by a URL with both hosts, also
// where the last version was lost with the old one.
func TestRuleDatabaseFailsOver(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts PostgreSQL and servers again and again")
	server := pgtest.Start(t)
	replica := server.Replica()
	both := fmt.Sprintf("postgres://weir@%s,%s/weir?sslmode=disable", server.Addr(), replica.Addr())
	b := newRuleBed(t, both)
	b.does(0, "import", b.folder(10))
	nodes := []*ruleNode{b.node(""), b.node("")}
	for _, n := range nodes {
		n.follows(10)
	}
	b.pushes(1, 20)
	for _, n := range nodes {
		n.follows(20)
	}
	server.Await(replica)
	// What comes now the replica never gets.
	replica.Exec("alter system set primary_conninfo = ''")
	replica.Exec("select pg_reload_conf()")
	servertest.Eventually(t, "the replica is cut off",
		func() bool { return server.Number("select count(*) from pg_stat_replication") == 0 })
	b.pushes(2, 30)
	for _, n := range nodes {
		n.follows(30)
	}
	server.Kill()
	replica.Promote()
	for _, n := range nodes {
		n.follows(20) // what is at the head there
	}
	b.pushes(2, 40) // version 3 once more, with other files
	for _, n := range nodes {
		n.follows(40)
	}
	b.does(0, "history", "--check").With("3 records and 3 versions")
	b.says("status", "version 3, by ada", "in force")
}

// A pgbouncer in transaction mode swallows messages. A node says so, and sees changes by looking;
// in session mode all is as without one.
func TestRulesBehindPooler(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts PostgreSQL and servers again and again")
	server := pgtest.Start(t)
	for i, mode := range []string{"transaction", "session"} {
		url := fmt.Sprintf("%s&space=%s", server.Bouncer(mode).URL(), mode)
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := newRuleBed(t, url)
			b.does(0, "import", b.folder(10))
			n := b.node("", "--rules-db-every", []string{"500ms", "1h"}[i])
			n.follows(10)
			if mode == "transaction" {
				n.Stderr.Await(t,
					"no messages arrive from the database of rules, as behind a pooler in transaction mode")
				b.says("status", "in force, by looking alone")
			} else {
				b.says("status", "in force")
			}
			b.does(0, "push", b.folder(20), "--base", "1", "--wait", "10m").With("in force on 1 node")
			if got := n.limit(); got != 20 {
				t.Error(got)
			}
		})
	}
}
