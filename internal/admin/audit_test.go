package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/admin/audit"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
)

// auditTo is an audit log without a file, whose records become lines of w.
func auditTo(t *testing.T, w io.Writer) *audit.Log {
	t.Helper()
	l, err := audit.Open(audit.Options{Logger: slog.New(slog.NewTextHandler(w, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestAuditRefuses: where no record can be kept, no change by hand is made, decisions go on, and
// signals, which programs push, are taken.
func TestAuditRefuses(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full")
	}
	full, err := audit.Open(audit.Options{Path: "/dev/full"})
	if err != nil {
		t.Fatal(err)
	}
	w := newWhole(t, func(o *Options) { o.Audit = full })
	w.refuse(t)
	bans, grants := len(w.limiter.Bans().List()), len(w.limiter.Grants().List())
	for _, c := range []struct{ method, target, body string }{
		{"POST", bansPath, `{"domain": "shop", "limit": "api", "key": "x", "for": "1h"}`},
		{"DELETE", bansPath, `{"domain": "shop", "limit": "pair", "key": ["carol.c", "198.51.100.9"]}`},
		{"POST", grantsPath, `{"domain": "shop", "limit": "api", "key": "x", "for": "1h", "allow": "9/hour"}`},
		{"DELETE", grantsPath, `{"domain": "shop", "limit": "api", "key": "dave.d"}`},
		{"DELETE", "/api/v1/keys", `{"domain": "shop", "limit": "api", "key": "ada.lovelace"}`},
		{"DELETE", "/api/v1/keys/shop/api/user=ada.lovelace", ``},
	} {
		if a := w.as("admin", c.method, c.target, c.body); a.Status != 503 ||
			!strings.Contains(a.Body, "nothing was changed") {
			t.Errorf("%s %s: %d %s", c.method, c.target, a.Status, a.Body)
		}
	}
	if len(w.limiter.Bans().List()) != bans || len(w.limiter.Grants().List()) != grants {
		t.Error("bans or grants were changed")
	}
	if a := w.as("admin", "GET", "/api/v1/keys/shop/api/user=ada.lovelace", ""); a.Status != 200 {
		t.Errorf("a key was reset: %d", a.Status)
	}
	if a := w.as("admin", "PUT", "/api/v1/signals/queue", `{"value": 80}`); a.Status != 204 {
		t.Errorf("a signal: %d %s", a.Status, a.Body)
	}
	w.decide(t, rule.Map{"user": "new", "path": "/api/x"})
	_ = full.Close()
}

// TestAuditRecords: a record says who changed what, from where, what was before and after, and why.
func TestAuditRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	log, err := audit.Open(audit.Options{Path: path, Node: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	w := newWhole(t, func(o *Options) { o.Audit = log })
	w.refuse(t)
	for _, c := range []struct{ method, target, body string }{
		{"POST", bansPath, `{"domain": "shop", "limit": "api", "key": "x", "for": "1h", "reason": "abuse"}`},
		{"POST", bansPath, `{"domain": "shop", "limit": "api", "key": "x", "for": "2h"}`},
		{"POST", bansPath, `{"domain": "shop", "limit": "none", "key": "x", "for": "2h"}`},
		{"DELETE", "/api/v1/keys", `{"limit": "api", "key": "ada.lovelace", "reason": "sorry"}`},
		{"DELETE", "/api/v1/keys/shop/pair/user=bob.brown,ip=198.51.100.8?reason=load+test", ``},
	} {
		w.as("operator", c.method, c.target, c.body)
	}
	var got struct {
		Records []audit.Entry
		Lost    int
	}
	a := w.as("admin", "GET", "/api/v1/audit", "")
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil || len(got.Records) != 4 {
		t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	byPath, reset, again, first := got.Records[0], got.Records[1], got.Records[2], got.Records[3]
	if first.Who != "operator-name" || first.Role != "operator" || first.Address != "127.0.0.1" ||
		first.What != "ban set" || first.Domain != "shop" || first.Limit != "api" ||
		first.Key != "user=x" || first.Before != nil || first.After == nil || first.Note != "abuse" ||
		first.Node != "n1" || first.Seq != 1 {
		t.Errorf("%+v", first)
	}
	if before, _ := again.Before.(map[string]any); before["reason"] != "abuse" || before["set"] != true {
		t.Errorf("%+v", again)
	}
	if reset.What != "key reset" || reset.Note != "sorry" || fmt.Sprint(reset.Before) != "[map[limit:api used:2]]" {
		t.Errorf("%+v", reset)
	}
	if byPath.What != "key reset" || byPath.Limit != "pair" || byPath.Key != "user=bob.brown,ip=198.51.100.8" ||
		byPath.Note != "load test" {
		t.Errorf("%+v", byPath)
	}
	for query, want := range map[string]int{"?n=1": 1, "?after=1": 3, "?before=3": 2, "?after=1&before=3": 1,
		"?after=4": 0} {
		if a := w.as("admin", "GET", "/api/v1/audit"+query, ""); strings.Count(a.Body, `"seq"`) != want {
			t.Errorf("%s: %s", query, a.Body)
		}
	}
	_ = log.Close()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if s, err := audit.Verify(f, audit.Start, ""); err != nil || s.Records != 4 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestAuditAddress: records tell the client's address, which only a trusted proxy may report,
// without the port: else each connection that pushes a signal would have a record of its own.
func TestAuditAddress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	log, err := audit.Open(audit.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	w := newWhole(t, func(o *Options) { o.Audit, o.ClientIP.Trusted = log, doortest.Loopback })
	ask := func(peer, method, target, body string) {
		t.Helper()
		a := doortest.Ask(w, peer, method, "http://127.0.0.1:6070"+target, body, "Content-Type", jsonText,
			"Authorization", "Bearer admin-token", "X-Forwarded-For", "198.51.100.7")
		if a.Status >= 300 {
			t.Fatalf("%s %s: %d %s", method, target, a.Status, a.Body)
		}
	}
	for port := range 3 {
		ask(fmt.Sprint("127.0.0.1:", 5000+port), "PUT", "/api/v1/signals/queue", `{"value": 80}`)
	}
	ask(doortest.Friend, "POST", "/login", `{"token": "admin-token"}`)
	ask(doortest.Friend, "POST", bansPath, `{"domain": "shop", "limit": "api", "key": "x", "for": "1h"}`)
	ask(doortest.Stranger, "POST", bansPath, `{"domain": "shop", "limit": "api", "key": "y", "for": "1h"}`)
	ask("@", "POST", bansPath, `{"domain": "shop", "limit": "api", "key": "z", "for": "1h"}`)
	_ = log.Close() // which writes what was counted
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(data)) {
		var e audit.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		got = append(got, e.What+" from "+e.Address)
	}
	want := []string{"login from 198.51.100.7", "ban set from 198.51.100.7", "ban set from 192.0.2.9", "ban set from @",
		"signal pushed from 198.51.100.7"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
