package ruledb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/rule/file"
)

// files is a folder with one limit of n per minute, and what else is named.
func files(n int, more ...string) []file.Source {
	all := []file.Source{{Name: "shop.yaml",
		Data: fmt.Appendf(nil, "domain: shop\nlimits:\n  - name: api\n    per: [user]\n    allow: %d/min\n", n)}}
	for _, name := range more {
		all = append(all, file.Source{Name: name, Data: []byte("domain: shop\n")})
	}
	return all
}

// prepared returns the address of a database that is ready, and its server.
func prepared(t *testing.T) (*pgtest.Server, *Address) {
	t.Helper()
	s := pgtest.Start(t)
	a := address(t, s.URL())
	if _, err := Init(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	return s, a
}

// TestSpaces is the tests that need no more of a database than a space of their own: one server is
// enough for all of them.
func TestSpaces(t *testing.T) {
	t.Parallel()
	s, _ := prepared(t)
	for name, test := range map[string]func(t *testing.T, s *pgtest.Server, a *Address){
		"FollowChecksFiles": testFollowChecksFiles, "PasswordReplaced": testPasswordReplaced, "CheckWhilePushing": testCheckWhilePushing,
		"PushCompares": testPushCompares, "Prune": testPrune,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s, address(t, s.URL()+"&space="+name))
		})
	}
}

func address(t *testing.T, url string) *Address {
	t.Helper()
	a, err := Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func open(t *testing.T, a *Address) *DB {
	t.Helper()
	d, err := Open(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func push(t *testing.T, d *DB, base int64, n int) int64 {
	t.Helper()
	v, err := d.Push(t.Context(), Change{Base: base, Files: files(n), Author: "ada", Note: fmt.Sprint("limit ", n),
		Origin: Push})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestParse(t *testing.T) {
	for url, want := range map[string]string{
		"postgres://ada:s3cret@db/weir?sslmode=disable":          "postgres://ada@db:5432/weir",
		"postgresql://ada@a:1,b:2/weir?space=eu&sslmode=prefer":  "postgres://ada@a:1,b:2/weir?space=eu",
		"postgres://ada@db/weir?space=a.b-c_9&connect_timeout=1": "postgres://ada@db:5432/weir?space=a.b-c_9",
		"postgres://db":                                                   "@db:5432/",
		"mysql://db":                                                      "error: the scheme is not postgres",
		"postgres://ada:s3cret@db/weir?space=":                            "error: space= must be 1 to 63",
		"postgres://ada:s3cret@db/weir?space=a%20b":                       "error: must be 1 to 63",
		"postgres://ada:s3cret@db/weir?sslmode=never":                     "error: sslmode is invalid",
		"postgres://ada:s3cret@db/weir?sslmode=verify-full&sslrootcert=x": "error: unable to read CA file",
		"postgres://ada:s3cret@db:port/weir":                              "error: URL of the database of rules: ",
		"postgres://ada:12/s3cret@db/weir":                                "error: an @ behind the hosts",
	} {
		a, err := Parse(url)
		got := fmt.Sprintf("error: %v", err)
		if err == nil {
			got = a.String()
		}
		if wanted, bad := strings.CutPrefix(want, "error: "); bad != (err != nil) || !strings.Contains(got, wanted) ||
			strings.Contains(got, "s3cret") {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

// testPasswordReplaced: new connections have the password that is in the file then.
func testPasswordReplaced(t *testing.T, server *pgtest.Server, _ *Address) {
	server.Exec(
		"grant usage on schema weir_rules to guarded; grant select on all tables in schema weir_rules to guarded")
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	passwords := filepath.Join(t.TempDir(), "pgpass")
	write := func(password string) {
		t.Helper()
		line := host + ":" + port + ":weir:guarded:" + strings.ReplaceAll(password, ":", `\:`) + "\n"
		if err := os.WriteFile(passwords, []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(pgtest.Password)
	a := address(t, server.URLOf("guarded")+"&passfile="+url.QueryEscape(passwords))
	open(t, a)
	server.Exec("alter role guarded password 'another'")
	if d, err := Open(t.Context(), a); err == nil {
		_ = d.Close()
		t.Fatal("the old password opens it")
	}
	write("another")
	open(t, a)
}

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"shop.yaml": true, "a/b/shop.yml": true, "shop_test.yaml": true,
		"../shop.yaml": false, "/etc/shop.yaml": false, "a/../shop.yaml": false, "a//shop.yaml": false, "./shop.yaml": false,
		".shop.yaml": false, ".git/shop.yaml": false, "a/.b/shop.yaml": false, "shop.sh": false, "": false, `a\b.yaml`: false, "c:shop.yaml": false,
		"a\nb.yaml": false,
	} {
		if err := checkName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := decode([]byte(`{"../../x.yaml": "a"}`)); err == nil {
		t.Error("a version that leads out of the folder was read")
	}
	for name, f := range map[string][]file.Source{
		"no rule files":   nil,
		"is no text":      {{Name: "a.yaml", Data: []byte("a\x00b")}},
		"is there twice":  {{Name: "a.yaml"}, {Name: "a.yaml"}},
		"takes at most":   {{Name: "a.yaml", Data: make([]byte, 0)}, {Name: "b.yaml", Data: []byte(strings.Repeat("a", maxBytes+1))}},
		"is no name of a": {{Name: "a.txt"}},
		"a?.yaml":         {{Name: "a?.yaml"}}, // which Windows cannot have
		"cannot lie":      {{Name: "a.yaml"}, {Name: "a.yaml/b/c.yaml"}},
	} {
		if _, err := encode(f); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The cache gives back what was written, and nothing that was altered or belongs elsewhere.
func TestCache(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	v := &Version{Number: 7, Files: files(3, "a_test.yaml", "sub/b.yaml")}
	raw, err := encode(v.Files)
	if err != nil {
		t.Fatal(err)
	}
	if v.Files, err = decode(raw); err != nil {
		t.Fatal(err)
	}
	v.Digest = rulesource.Digest(v.Files)
	if err := writeCache(path, "eu", v); err != nil {
		t.Fatal(err)
	}
	got, err := readCache(path, "eu")
	if err != nil || !sameFiles(got, v) || len(got.Rules()) != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := readCache(path, "us"); err == nil || !strings.Contains(err.Error(), `the space "eu"`) {
		t.Errorf("another space: %v", err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for want, data := range map[string]string{
		"is damaged":         strings.Replace(string(text), "3/min", "4/min", 1),
		"is no cache":        string(text[:len(text)/2]),
		"that this version":  strings.Replace(string(text), `"format":1`, `"format":2`, 1),
		"is no name of a ru": strings.Replace(string(text), "sub/b.yaml", "../b.yaml", 1),
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readCache(path, "eu"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A check while others push finds nothing broken: it sees one instant.
func testCheckWhilePushing(t *testing.T, _ *pgtest.Server, a *Address) {
	d, editor := open(t, a), open(t, a)
	push(t, editor, 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var pushing sync.WaitGroup
	defer pushing.Wait()
	defer cancel()
	pushing.Go(func() {
		for base := int64(1); ctx.Err() == nil; base++ {
			if _, err := editor.Push(ctx, Change{Base: base, Files: files(int(base)), Author: "ada", Origin: Push}); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	for n := int64(0); n < effort.Of[int64](50, 200); {
		c, err := d.Check(ctx, "")
		if err != nil || c.Records != c.Versions {
			t.Fatalf("%+v, %v", c, err)
		}
		n = c.Records
	}
}

// Of all who push on the same version one wins, the others are told who was quicker, and nothing is
// lost; versions and records are numbered without a gap.
func testPushCompares(t *testing.T, s *pgtest.Server, a *Address) {
	d := open(t, a)
	if _, err := d.Head(t.Context()); !errors.Is(err, ErrNoRules) {
		t.Fatalf("an empty space: %v", err)
	}
	const editors, rounds = 8, 5
	head := int64(0)
	for range rounds { // the first one on an empty space
		var won, lost sync.Map
		var all sync.WaitGroup
		for i := range editors {
			all.Go(func() {
				e, err := Open(t.Context(), a)
				if err != nil {
					t.Error(err)
					return
				}
				defer e.Close()
				v, err := e.Push(t.Context(), Change{Base: head, Files: files(i + 1), Author: fmt.Sprint("editor ", i),
					Origin: Push})
				conflict, isConflict := errors.AsType[*ConflictError](err)
				switch {
				case err == nil:
					won.Store(v, i)
				case isConflict && conflict.Base == head && conflict.Head == head+1:
					lost.Store(i, true)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		winner, ok := won.Load(head + 1)
		v, err := d.Version(t.Context(), head+1)
		if !ok || err != nil || v.Author != fmt.Sprint("editor ", winner) || !v.Head || v.Parent != head {
			t.Fatalf("after %d: winner %v; %+v, %v", head, winner, v, err)
		}
		n := 0
		lost.Range(func(any, any) bool { n++; return true })
		if n != editors-1 {
			t.Errorf("%d lost", n)
		}
		head++
	}
	c, err := d.Check(t.Context(), "")
	if err != nil || c.Records != rounds || c.Versions != rounds {
		t.Errorf("got %+v, %v", c, err)
	}
	other := address(t, s.URL()+"&space=another")
	if v := push(t, open(t, other), 0, 1); v != 1 {
		t.Errorf("another space begins with version %d", v)
	}
}

// Nobody changes history: an editor may not write the tables at all, the owner is stopped by a
// trigger, and what a superuser alters all the same shows. A node can say anything of other nodes,
// as docs/operating/rules-database.md says, and change nothing that a node follows.
func TestHistoryStays(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a PostgreSQL of its own")
	s, a := prepared(t)
	s.Exec(
		"create role weir_node; create role weir_editor; create role eve login in role weir_editor; create role node login in role weir_node")
	if without, err := Init(t.Context(), a); err != nil || without { // once more, now with the roles
		t.Fatal(without, err)
	}
	owner := open(t, a)
	push(t, owner, 0, 1)
	push(t, open(t, address(t, s.URLOf("eve"))), 1, 2)
	push(t, owner, 2, 3)
	as := func(role, sql string) error {
		c, err := pgx.Connect(t.Context(), s.URLOf(role))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(t.Context())
		_, err = c.Exec(t.Context(), sql)
		return err
	}
	changes := []string{
		"update weir_rules.version set note = 'other' where number = 2",
		"update weir_rules.version set files = '{}' where number = 2",
		"delete from weir_rules.version where number = 2",
		"truncate weir_rules.version cascade",
		"update weir_rules.audit set who = 'bob' where number = 2",
		"delete from weir_rules.audit where number = 3",
		"truncate weir_rules.audit",
	}
	forEditors := []string{
		"update weir_rules.head set version = 1",
		"insert into weir_rules.audit select * from weir_rules.audit",
		"insert into weir_rules.version select * from weir_rules.version",
		"select weir_rules.record('default', 'bob', 'x', 1, 2, '', null)",
		"alter table weir_rules.version disable trigger all",
		"drop schema weir_rules cascade",
	}
	for _, sql := range changes {
		for _, role := range []string{"weir", "eve", "node"} {
			if err := as(role, sql); err == nil || !strings.Contains(err.Error(), "42501") {
				t.Errorf("%s as %s: %v", sql, role, err)
			}
		}
	}
	for _, sql := range append(forEditors, "select weir_rules.push('default', 3, '{}', '', '', '', 'push', '')",
		"select weir_rules.prune('default', 1, 'bob', '')") {
		if err := as("node", sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s as node: %v", sql, err)
		}
	}
	for _, sql := range forEditors {
		if err := as("eve", sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s as eve: %v", sql, err)
		}
	}
	for _, sql := range []string{
		"insert into weir_rules.node values ('default', 'another', 3, null, '', false, now(), now() + interval '1 hour')",
		"update weir_rules.node set version = 2, refused = 3, error = 'made up' where node = 'another'",
	} {
		if err := as("node", sql); err != nil {
			t.Errorf("%s as node: %v", sql, err)
		}
		if err := as("eve", sql); err == nil || !strings.Contains(err.Error(), "42501") {
			t.Errorf("%s as eve: %v", sql, err)
		}
	}
	if nodes, err := owner.Nodes(t.Context()); err != nil || len(nodes) != 1 || nodes[0].Name != "another" ||
		nodes[0].Version != 2 || nodes[0].Error != "made up" {
		t.Errorf("what a node says of another one: %+v, %v", nodes, err)
	}
	if err := as("node", "delete from weir_rules.node"); err != nil {
		t.Error(err)
	}
	if c, err := owner.Check(t.Context(), ""); err != nil || c.Records != 3 {
		t.Fatalf("before anything was altered: %+v, %v", c, err)
	}
	history, err := owner.History(t.Context(), 10, 0)
	if err != nil || len(history) != 3 || history[1].Login != "eve" || history[1].Before != 1 || history[1].After != 2 {
		t.Fatalf("got %+v, %v", history, err)
	}
	for want, sql := range map[string]string{
		"record 2 was altered":                   "update weir_rules.audit set who = 'bob' where number = 2",
		"record 2 is missing":                    "delete from weir_rules.audit where number = 2",
		"version 2 is not the one":               "update weir_rules.version set note = 'other' where number = 2",
		"the files of version 2 were altered":    `update weir_rules.version set files = '{"a.yaml": ""}' where number = 2`,
		"by the records it should be 3":          "update weir_rules.head set version = 1",
		"version 4 is there, and no record":      "insert into weir_rules.version select space, 4, 3, files, digest, author, note, origin, made from weir_rules.version where number = 3",
		"version 3, which record 3 tells of, is": "delete from weir_rules.head; delete from weir_rules.version where number = 3",
	} {
		s.Exec(
			"create table saved as table weir_rules.audit; create table versions as table weir_rules.version; create table heads as table weir_rules.head")
		s.Exec(
			"alter table weir_rules.audit disable trigger all; alter table weir_rules.version disable trigger all; alter table weir_rules.head disable trigger all")
		s.Exec(sql)
		_, err := owner.Check(t.Context(), "")
		if _, broken := errors.AsType[*BrokenError](err); !broken || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", sql, err)
		}
		s.Exec("delete from weir_rules.head; delete from weir_rules.audit; delete from weir_rules.version")
		s.Exec(
			"insert into weir_rules.version table versions; insert into weir_rules.audit table saved; insert into weir_rules.head table heads; drop table saved, versions, heads")
		s.Exec(
			"alter table weir_rules.audit enable trigger all; alter table weir_rules.version enable trigger all; alter table weir_rules.head enable trigger all")
	}
	if _, err := owner.Check(t.Context(), ""); err != nil {
		t.Fatalf("as it was: %v", err)
	}
}

// Old versions lose their files, and nothing else.
func testPrune(t *testing.T, _ *pgtest.Server, a *Address) {
	d := open(t, a)
	for n := range 5 {
		push(t, d, int64(n), n+1)
	}
	if dropped, err := d.Prune(t.Context(), 2, "ada", "room"); err != nil || dropped != 3 {
		t.Fatal(dropped, err)
	}
	if dropped, err := d.Prune(t.Context(), 2, "ada", "room"); err != nil || dropped != 0 {
		t.Fatal(dropped, err)
	}
	if _, err := d.Version(t.Context(), 3); err == nil || !strings.Contains(err.Error(), "version 3 were pruned") {
		t.Error(err)
	}
	if v, err := d.Version(t.Context(), 4); err != nil || len(v.Files) != 1 {
		t.Error(v, err)
	}
	c, err := d.Check(t.Context(), "")
	if err != nil || c.Records != 6 || c.Versions != 5 || c.Pruned != 3 {
		t.Errorf("got %+v, %v", c, err)
	}
	if v := push(t, d, 5, 6); v != 6 {
		t.Errorf("version %d follows", v)
	}
}

// Preparing a database is harmless at any time, by several at once, and without the right to make
// roles.
func TestInit(t *testing.T) {
	t.Parallel()
	effort.Long(t, "starts a PostgreSQL of its own")
	s := pgtest.Start(t)
	a := address(t, s.URL())
	if _, err := Open(t.Context(), a); !errors.Is(err, ErrNotReady) {
		t.Errorf("a database that is not prepared: %v", err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if without, err := Init(t.Context(), a); err != nil || !without {
				t.Errorf("without the right to make roles: %v, %v", without, err)
			}
		})
	}
	all.Wait()
	push(t, open(t, a), 0, 1)
	if without, err := Init(t.Context(), address(t, s.URLOf("postgres"))); err != nil || without {
		t.Errorf("as a superuser: %v, %v", without, err)
	}
	if got := s.Text("select count(*) from pg_roles where rolname in ('weir_node', 'weir_editor')"); got != "2" {
		t.Errorf("%s roles", got)
	}
	if v := push(t, open(t, a), 1, 2); v != 2 {
		t.Errorf("version %d follows", v)
	}
	s.Exec("create role stranger login")
	if _, err := Init(t.Context(), address(t, s.URLOf("stranger"))); err == nil ||
		!strings.Contains(err.Error(), "must own it") {
		t.Errorf("by a stranger: %v", err)
	}
	if _, err := Open(t.Context(), address(t, s.URLOf("stranger"))); err == nil ||
		!strings.Contains(err.Error(), "grant the role weir_node") {
		t.Errorf("a stranger: %v", err)
	}
	s.Exec("update weir_rules.meta set schema = 2")
	if _, err := Open(t.Context(), a); err == nil || !strings.Contains(err.Error(), "have the form 2") {
		t.Errorf("tables of a later version: %v", err)
	}
	ctx := patience.Context(t)
	if _, err := Init(ctx, a); err == nil || !strings.Contains(err.Error(), "have the form 2") {
		t.Errorf("tables of a later version: %v", err)
	}
}
