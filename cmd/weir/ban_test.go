package main

import (
	"bytes"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// runCommand runs the program, and returns its exit status and what it printed.
func runCommand(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = Run(t.Context(), args, nil, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

func TestBanCommand(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const rules = `
domain: shop
exempt: {ip: [10.0.0.0/8]}
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 1/min, ban: {after: 20, within: 10m, for: 15m, scope: domain}}
  - {name: api, per: [user, ip], allow: [10/min, 500/hour]}
  - {name: search, when: {path: /search}, per: [ip], allow: 1000/min}
`
	l, err := weir.New(store, weir.WithRules(mustRules(t, rules)))
	if err != nil {
		t.Fatal(err)
	}
	rulesFile := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(rulesFile, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	tokenFile := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokenFile, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var tokens auth.Tokens
	if err := tokens.Load(tokenFile); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(admin.New(l, admin.Options{Tokens: &tokens}))
	defer s.Close()
	with := func(args ...string) []string { return append(args, "--server", s.URL, "--token-file", tokenFile) }
	ok := func(args []string, want ...string) {
		t.Helper()
		status, out, errs := runCommand(t, args...)
		if status != 0 {
			t.Fatalf("%q: exit status %d: %s", args, status, errs)
		}
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%q printed\n%s\nwhich lacks %q", args, out, w)
			}
		}
	}
	bad := func(status int, says string, args []string) {
		t.Helper()
		if got, out, errs := runCommand(t, args...); got != status || !strings.Contains(errs, says) || out != "" {
			t.Errorf("%q: exit status %d: %s%s\nwant %d, %q", args, got, out, errs, status, says)
		}
	}
	ok(with("ban", "list"), "Nobody is banned.")
	ok(with("ban", "set", "login", "192.0.2.1", "--for", "1h", "--reason", "guesses \x1b[2J"),
		"banned: shop/login ip=192.0.2.1 until 20")
	ok(with("ban", "list", "--domain", "shop", "--limit", "login"), "shop/login  ip=192.0.2.1  domain",
		`by hand: guesses \x1b[2J`)
	if n := len(l.Bans().List()); n != 1 {
		t.Fatalf("%d bans", n)
	}
	ok(with("ban", "set", "api", "user=eve,ip=192.0.2.9", "--for", "1h", "--scope", "domain"),
		"banned: shop/api user=eve ip=192.0.2.9 until 20", ", everywhere in the domain")
	ok(with("ban", "lift", "api", "user=eve,ip=192.0.2.9"), "lifted")
	ok(with("ban", "set", "search", "198.51.100.7/24", "--for", "1h"),
		"banned: shop/search ip=198.51.100.0/24 until 20")
	explain := func(path string, want ...string) {
		t.Helper()
		ok(with("explain", "--rules", rulesFile, "--domain", "shop", "ip=198.51.100.8", "path="+path), want...)
	}
	explain("/search", "now: ip=198.51.100.0/24 is banned until", "refused wherever search applies")
	ok(with("ban", "set", "search", "198.51.100.0/24", "--for", "1h", "--scope", "domain"), ", everywhere in the domain")
	var d weir.Decision
	for range 1234 {
		r := weir.Request{Hits: 1, Domain: "shop", Attributes: rule.Map{"ip": "198.51.100.8", "path": "/"}}
		if err := l.Decide(t.Context(), &r, &d); err != nil || d.Allowed {
			t.Fatal(err, d.Allowed)
		}
	}
	explain("/search", "refused everywhere in the domain")
	explain("/", "now: ip=198.51.100.0/24 is banned until", "refused everywhere in the domain")
	ok(with("ban", "list", "--limit", "search"), "REFUSED", "shop/search  ip=198.51.100.0/24  domain  1,234 ")
	ok(with("ban", "lift", "search", "198.51.100.0/24"), "lifted")
	bad(1, "too many addresses", with("ban", "set", "login", "198.51.0.0/15", "--for", "1h"))
	bad(1, "scope: must be rule", with("ban", "set", "login", "192.0.2.1", "--for", "1h", "--scope", "all"))
	ok(with("ban", "set", "login", "2001:db8::7", "--until", time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		"--domain", "shop"), "ip=2001:db8::/64")
	ok(with("ban", "list", "-n", "1"), "1 more; --number lists them")
	ok(with("ban", "lift", "login", "192.0.2.1"), "lifted: shop/login ip=192.0.2.1")
	bad(1, "there is none", with("ban", "lift", "login", "192.0.2.1"))
	bad(1, "ip=192.0.2.300 is not an address", with("ban", "set", "login", "192.0.2.300", "--for", "1h"))
	bad(1, `ip=10.1.2.3 is exempt in the domain "shop"`, with("ban", "set", "login", "10.1.2.3", "--for", "1h"))
	// What a list shows can be pasted into another command, by a shell that takes off the quotes.
	ok(with("ban", "set", "api", "a,b's", "192.0.2.9", "--for", "1h"),
		`banned: shop/api 'user=a,b'\''s' ip=192.0.2.9 until`)
	ok(with("ban", "list", "--limit", "api"), `shop/api  'user=a,b'\''s' ip=192.0.2.9  limit`)
	ok(with("ban", "lift", "shop/api", "user=a,b's", "ip=192.0.2.9"), `lifted: shop/api 'user=a,b'\''s' ip=192.0.2.9`)
	ok(with("ban", "set", "api", "user=ada,ip=192.0.2.9", "--for", "1h"),
		"banned: shop/api user=ada ip=192.0.2.9 until")
	ok(with("ban", "lift", "api", "user=ada,ip=192.0.2.9"), "lifted: shop/api user=ada ip=192.0.2.9")
	bad(1, `no limit "logins"`, with("ban", "set", "logins", "192.0.2.1", "--for", "1h"))
	bad(1, "needs a bearer token", []string{"ban", "list", "--server", s.URL})
	bad(2, "expected a limit", with("ban", "set", "login", "--for", "1h"))
	bad(2, "one of --for and --until", with("ban", "set", "login", "192.0.2.1"))
	bad(2, "expected the URL of an admin port", []string{"ban", "list", "--server", "localhost"})
}

// TestGrantCommand: the built program says what a grant takes the place of, and takes what weir
// prints.
func TestGrantCommand(t *testing.T) {
	t.Parallel()
	program, dir := servertest.BuiltProgram(t), t.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	servertest.WriteRules(t, rules, `domain: shop
limits:
  - {name: api, per: [user, ip], allow: [10/min, 500/hour]}
  - {name: search, per: [ip], allow: 30/min, ban: {after: 20, within: 10m, for: 15m}}
  - {name: trial, per: [ip], allow: {rate: 4/min, burst: 9}, algorithm: token_bucket, on_limit: shadow}
  - {name: slots, per: [user], allow: 4 concurrent, override: {vip: 90/day}}
`)
	p := servertest.Launch(t, program, dir, "serve", "--rules=rules.yaml")
	grant := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.Command(program, append([]string{"grant"}, args...)...)
		cmd.Env = append(servertest.PlainEnvironment(), "WEIR_SERVER="+p.Addr("admin"))
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Fatalf("weir grant %q: exit status %d, want %d\n%s%s", args, got, want, out.String(), errs.String())
		}
		return out.String(), errs.String()
	}
	ok := func(want string, args ...string) {
		t.Helper()
		if out, errs := grant(0, args...); !regexp.MustCompile(`^(?s:`+want+`)\n$`).MatchString(out) || errs != "" {
			t.Errorf("weir grant %q printed\n%s%s\nwant %s", args, out, errs, want)
		}
	}
	bad := func(status int, says string, args ...string) {
		t.Helper()
		if out, errs := grant(status, args...); !strings.Contains(errs, says) || out != "" {
			t.Errorf("weir grant %q printed\n%s%s\nwant %q", args, out, errs, says)
		}
	}
	const until = ` until 20\S+`
	ok("There are no grants.", "list")
	ok(`granted: shop/api user=ada ip=192\.0\.2\.9 \[100/min, 5000/hour\]`+until+`
in place of \[10/minute, 500/hour\]`, "set", "api", "ada", "192.0.2.9", "--allow", "[100/min, 5000/hour]", "--for", "2h", "--reason", "import")
	ok(`.*shop/api  user=ada ip=192\.0\.2\.9  \[100/min, 5000/hour\] .*import`, "list")
	ok(`granted: shop/api user=ada ip=192\.0\.2\.9 \[200/minute, 9000/hour\]`+until+`
in place of the grant of \[100/min, 5000/hour\]`+until+` \(import\); without a grant: \[10/minute, 500/hour\]`,
		"set", "api", "user=ada, ip=192.0.2.9", "--allow", "200 per minute, 9,000 per hour", "--for", "2h")
	ok(`revoked: shop/api user=ada ip=192\.0\.2\.9; it has \[10/minute, 500/hour\] again`, "revoke", "api", "ada", "192.0.2.9")
	for _, allow := range []string{"60 per minute", "60 a minute", "60/min"} {
		ok(`granted: shop/search ip=192\.0\.2\.1 60/min(ute)?`+until+`\nin place of .*30/minute`, "set", "search", "192.0.2.1", "--allow", allow, "--for", "1h")
	}
	ok(`granted: shop/slots user=ada 8 concurrent`+until+`\nin place of 4 concurrent`, "set", "slots", "ada", "--allow", "8 at a time", "--for", "1h")
	// An override with other windows is replaced.
	ok(`granted: shop/slots user=vip unlimited`+until+`\nin place of 90/day`, "set", "slots", "vip", "--allow", "unlimited", "--for", "1h")
	bad(1, `which has 90/day for this key by an override; did you mean 8/day?`, "set", "slots", "vip", "--allow", "8 concurrent", "--for", "1h")
	// A grant that changes nothing says so.
	if out, errs := grant(0, "set", "trial", "192.0.2.1", "--allow", "8 per minute, burst 18", "--for", "1h"); !strings.Contains(out,
		"{rate: 8/minute, burst: 18}") || !strings.Contains(out, "in place of {rate: 4/minute, burst: 9}") ||
		!strings.Contains(errs, "weir: warning: the limit is in shadow for this key") {
		t.Errorf("%s%s", out, errs)
	}
	if out, err := exec.Command(program, "ban", "set", "search", "192.0.2.1", "--for", "1h", "--server", p.Addr("admin")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, errs := grant(0, "set", "search", "192.0.2.1", "--allow", "60/min", "--for", "1h"); !strings.Contains(errs,
		"weir ban lift shop/search ip=192.0.2.1 ends that") {
		t.Error(errs)
	}
	// What is wrong, and how to mend it.
	bad(1, "nothing is given for requests per hour", "set", "api", "ada", "192.0.2.9", "--allow", "100/min", "--for", "2h")
	bad(1, `60/hour is for no window of the limit "search", which has 30/minute; did you mean 60/minute?`,
		"set", "search", "192.0.2.1", "--allow", "60 per hour", "--for", "2h")
	bad(1, `did you mean 60/minute?`, "set", "search", "192.0.2.1", "--allow", "60", "--for", "2h")
	bad(1, `unknown unit "minut" (did you mean "minute"?)`, "set", "search", "192.0.2.1", "--allow", "60 per minut", "--for", "2h")
	bad(1, `no limit "serch"; did you mean "search"?`, "set", "serch", "192.0.2.1", "--allow", "60/min", "--for", "2h")
	bad(2, "--allow is missing", "set", "search", "192.0.2.1", "--for", "2h")
	// The rules change under a grant.
	servertest.WriteRules(t, rules, "domain: shop\nlimits: [{name: other, per: [user], allow: 1/min}]\n")
	servertest.Eventually(t, "the grant is without effect", func() bool {
		out, _ := grant(0, "list")
		return strings.Contains(out, "(without effect: no rule in force has this name)")
	})
}

func mustRules(t *testing.T, yaml string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}
