package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// terminal is a terminal that a test drives: a tmux of its own.
type terminal struct {
	t      *testing.T
	socket string
}

// newTerminal opens one of a size, in which a shell runs a script.
func newTerminal(t *testing.T, width, height int, env []string, script string) *terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed; on Debian: apt-get install tmux")
	}
	x := &terminal{t, filepath.Join(testproc.SocketDir(t), "s")}
	// An error says that it has ended.
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", x.socket, "kill-server").Run() })
	args := []string{"-u", "-S", x.socket, "-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(width), "-y",
		fmt.Sprint(height)}
	cmd := exec.Command("tmux", append(args, "sh", "-c", script)...)
	cmd.Env = append(slices.DeleteFunc(servertest.PlainEnvironment(), func(v string) bool {
		return strings.HasPrefix(v, "TMUX") || strings.HasPrefix(v, "NO_COLOR=") || strings.HasPrefix(v, "COLORTERM=")
	}), append(env, "LC_ALL=C.UTF-8", "TERM=screen-256color")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v\n%s", err, out)
	}
	return x
}

func (x *terminal) tmux(args ...string) string {
	x.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", x.socket}, args...)...).CombinedOutput()
	if err != nil {
		x.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// press sends keys, by tmux's names of them.
func (x *terminal) press(keys ...string) {
	x.t.Helper()
	x.tmux(append([]string{"send-keys"}, keys...)...)
}

// screen is what people see.
func (x *terminal) screen() string {
	x.t.Helper()
	return x.tmux("capture-pane", "-p")
}

// awaits waits until the screen shows all patterns.
func (x *terminal) awaits(patterns ...string) string {
	x.t.Helper()
	var last string
	for _, p := range patterns {
		expression := regexp.MustCompile(p)
		found := false
		defer func() {
			if !found {
				x.t.Logf("it does not show %q:\n%s", p, last)
			}
		}()
		servertest.Eventually(x.t, "the terminal shows "+p, func() bool {
			last = x.screen()
			found = expression.MatchString(last)
			return found
		})
	}
	return last
}

// busyServer is a server with a few refusals: by login of a client with an address, by notes of one
// whose name would steer a terminal.
func busyServer(t *testing.T, admin string) *servertest.Running {
	t.Helper()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"), `
domain: shop
limits:
  - { name: login, when: { path: /login, method: POST }, per: [ip], allow: 3/hour, algorithm: sliding_log }
  - { name: notes, when: { path: /notes }, per: [user], allow: 2/hour, algorithm: sliding_log }
  - { name: everybody, allow: 100000/hour }
`)
	p := start(t, "serve", "--rules", dir, "--listen-admin="+admin)
	for query, times := range map[string]int{
		url.Values{"path": {"/login"}, "ip": {"192.0.2.1"}, "method": {"POST"}}.Encode():    13,
		url.Values{"path": {"/notes"}, "user": {hostileName}, "method": {"GET"}}.Encode():   5,
		url.Values{"path": {"/other"}, "user": {"somebody"}, "method": {"DELETE"}}.Encode(): 4,
	} {
		for range times {
			servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?"+query)
		}
	}
	return p
}

// hostileName sets the title, clears the screen, and writes backwards.
const hostileName = "\x1b]0;owned\x07\x1b[2J\u202eeve\r\n"

// reports waits until a server has counted what busyServer sent and judged its rules by all of it,
// and returns its reports. A server judges new rules after 1, 2, 4 … seconds: a slow one for the
// first time amid these requests.
func reports(t *testing.T, admin string) (list []insight.RuleReport) {
	t.Helper()
	servertest.Eventually(t, "all requests are counted and judged", func() bool {
		_, _, body := servertest.Get(t, "http://"+admin+"/api/v1/insight/rules?over=1h")
		var answer struct{ Rules []insight.RuleReport }
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		list = answer.Rules
		i := slices.IndexFunc(list, func(r insight.RuleReport) bool { return r.Name == "everybody" })
		return i >= 0 && list[i].Met == 22 && !slices.ContainsFunc(list, func(r insight.RuleReport) bool {
			return len(r.Verdicts) == 0 || r.Verdicts[0].Evidence["met"] != float64(r.Met)
		})
	})
	return list
}

// weir top in a real terminal: it shows what goes on, takes keys, asks before it bans, follows the
// size of the window, outlives a restart of the server, and leaves the terminal as it was. What a
// client sent does nothing to it.
func TestTop(t *testing.T) {
	t.Parallel()
	program := servertest.BuiltProgram(t)
	admin := "127.0.0.1:" + servertest.FreePort(t)
	p := busyServer(t, admin)
	reports(t, admin)
	dir := t.TempDir()
	x := newTerminal(t, 80, 24, nil,
		fmt.Sprintf(
			"cd %s; stty -g >before; echo FIRST LINE; %s top --every 200ms --server http://%s; echo STATUS $?; stty -g >after; echo ENDED; cat",
			dir, program, admin))
	x.awaits(`weir top  shop  3 rules  1/1 nodes`, `RULE +LIMIT +VERDICT`, `login +3/h ip`, ` 76.9 %`, `KEYS refused`,
		`ip=192\.0\.2\.1 +login`, `refused POST /login`)
	for line := range strings.Lines(x.screen()) {
		if len([]rune(strings.TrimRight(line, "\n"))) > 80 {
			t.Errorf("wider than 80: %q", line)
		}
	}
	// The hostile name stands there, and does nothing.
	x.awaits(`\\x1b\]0;owned`)
	if title := x.tmux("display-message", "-p", "#{pane_title}"); strings.Contains(title, "owned") {
		t.Errorf("a client has set the title: %s", title)
	}
	if colours := x.tmux("capture-pane", "-p", "-e"); !regexp.MustCompile(`\x1b\[3[0-9]m`).MatchString(colours) {
		t.Errorf("no colours:\n%q", colours)
	}

	x.press("r", "/")
	x.press("-l", "not")
	x.press("Enter")
	servertest.Eventually(t, "the terminal shows only the rules with the filter not", func() bool {
		s := x.screen()
		return strings.Contains(s, "notes") && !strings.Contains(s, "everybody") && !strings.Contains(s, "KEYS") &&
			strings.Contains(s, "filter: not")
	})
	x.press("Enter")
	x.awaits(`shop/notes +2 per hour`, `requests 5, refused 3 \(60\.0 %`, `one client asked for 250 % of the limit`)
	x.press("Escape")
	x.awaits("RULE +LIMIT", "filter: not")
	x.press("Escape")
	x.awaits("everybody")

	x.press("k")
	servertest.Eventually(t, "the terminal shows the keys alone", func() bool {
		s := x.screen()
		return strings.Contains(s, "ip=192.0.2.1") && !strings.Contains(s, "everybody")
	})
	x.press("b")
	x.awaits(`Ban ip=192\.0\.2\.1 at shop/login for how long\? 15m`)
	x.press("Enter")
	x.awaits(`Ban ip=192\.0\.2\.1 at shop/login for 15m\? y/n`)
	if _, _, body := servertest.Get(t, "http://"+admin+"/api/v1/bans"); !strings.Contains(body, `"total": 0`) {
		t.Errorf("banned before the answer: %s", body)
	}
	x.press("y")
	x.awaits(`banned: shop/login ip=192\.0\.2\.1 until 20`)
	if _, _, body := servertest.Get(t, "http://"+admin+"/api/v1/bans"); !strings.Contains(body, `"ip=192.0.2.1"`) ||
		!strings.Contains(body, "weir top") {
		t.Errorf("after yes: %s", body)
	}

	x.tmux("resize-window", "-x", "200", "-y", "60")
	x.press("Escape")
	x.awaits(`TREND`, `AGAIN IN`, `p pause  \? help  q quit\n*$`)
	servertest.Eventually(t, "all of 60 lines are used", func() bool { // a screen may be seen half drawn
		return strings.Count(strings.TrimRight(x.screen(), "\n"), "\n")+1 == 60
	})
	x.press("?")
	x.awaits("any key goes back")
	x.press("x")
	x.awaits("KEYS refused")

	// The server goes, and comes back.
	p.End()
	x.awaits(`no answer for .*, trying on:`)
	p = busyServer(t, admin)
	defer p.End()
	servertest.Eventually(t, "it shows the server that came back", func() bool {
		s := x.screen()
		return !strings.Contains(s, "no answer") && strings.Contains(s, "login")
	})

	x.press("q")
	if s := x.awaits("ENDED"); !strings.Contains(s, "FIRST LINE") || !strings.Contains(s, "STATUS 0") ||
		strings.Contains(s, "weir top") {
		t.Errorf("the screen from before is not back:\n%s", s)
	}
	if modes := x.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag} #{keypad_flag} #{mouse_any_flag} #{bracketed_paste_flag}"); strings.TrimSpace(modes) != "0 1 0 0 0" && strings.TrimSpace(modes) != "0 1 0 0" {
		t.Errorf("modes: %s", modes)
	}
	before, err1 := os.ReadFile(filepath.Join(dir, "before"))
	after, err2 := os.ReadFile(filepath.Join(dir, "after"))
	if err1 != nil || err2 != nil || string(before) != string(after) {
		t.Errorf("the terminal was %s and is %s (%v, %v)", before, after, err1, err2)
	}
}

// Without colours nothing is lost but the colours; a role that may only read has no b and g; Ctrl+C
// ends it as q does.
func TestTopPlain(t *testing.T) {
	t.Parallel()
	program := servertest.BuildProgram(t)
	dir := t.TempDir()
	tokens, token := filepath.Join(dir, "tokens"), filepath.Join(dir, "token")
	servertest.WriteRules(t, tokens, "s3same-s3same-s3same name=ada role=viewer\nother-other-other-other\n")
	servertest.WriteRules(t, token, "s3same-s3same-s3same\n")
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"),
		"domain: shop\nlimits: [{ name: login, per: [ip], allow: 3/hour }]\n")
	p := start(t, "serve", "--rules", filepath.Join(dir, "shop.yaml"), "--auth-tokens-file", tokens)
	defer p.End()
	x := newTerminal(t, 80, 24, []string{"NO_COLOR=1"},
		fmt.Sprintf("%s top --server http://%s --token-file %s; echo STATUS $?; cat", program, p.Addr("admin"), token))
	x.awaits(`login +3/h ip`, `r k d tables`)
	if coloured := x.tmux("capture-pane", "-p", "-e"); regexp.MustCompile(
		`\x1b\[[0-9;]*(3[0-8]|9[0-7])[;m]`).MatchString(coloured) {
		t.Errorf("colours in spite of NO_COLOR:\n%q", coloured)
	}
	if s := x.screen(); strings.Contains(s, "b ban") {
		t.Errorf("a viewer is offered to ban:\n%s", s)
	}
	x.press("k", "b", "?")
	if s := x.awaits("any key goes back"); strings.Contains(s, "ban the chosen key") ||
		strings.Contains(s, "for how long") {
		t.Errorf("a viewer is asked whether to ban:\n%s", s)
	}
	x.press("C-c")
	x.awaits("STATUS 0")
}

// What --batch prints are the numbers of the admin API.
func TestTopBatch(t *testing.T) {
	t.Parallel()
	p := busyServer(t, "127.0.0.1:0")
	defer p.End()
	server := "http://" + p.Addr("admin")
	list := reports(t, p.Addr("admin"))
	status, out, errs := runWeir("top", "--batch", "-n", "2", "--every", "100ms", "--sort", "name", "--server", server)
	if status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	if n := strings.Count(out, "\nRULE "); n != 2 {
		t.Errorf("%d rounds, want 2", n)
	}
	for _, r := range list {
		found := regexp.MustCompile(`(?m)^shop/` + r.Name + ` .*`).FindString(out)
		fields := regexp.MustCompile(` {2,}`).Split(found, -1)
		if len(fields) != 11 || fields[3] != fmt.Sprint(r.Met) || fields[4] != fmt.Sprint(r.Refused) ||
			fields[8] != fmt.Sprint(r.Keys) {
			t.Errorf("%s: %q, want %d requests, %d refused, %d clients", r.Name, fields, r.Met, r.Refused, r.Keys)
		}
	}
	if i := regexp.MustCompile(`(?m)^shop/(\w+)`).FindAllStringSubmatch(out, 3); len(i) != 3 ||
		i[0][1] != "everybody" || i[1][1] != "login" || i[2][1] != "notes" {
		t.Errorf("not sorted by name: %q", i)
	}
	for _, want := range []string{"requests 22, refused 13, banned 0, in the last 1 h\n",
		`user=\x1b]0;owned\x07\x1b[2J\u202eeve\x0d\x0a`, "POST /login"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.ContainsAny(out, "\x1b\x07\r") {
		t.Errorf("control characters in\n%q", out)
	}
	status, out, errs = runWeir("top", "--batch", "--json", "--server", server)
	var round struct {
		Overview insight.Overview
		Rules    []insight.RuleReport
	}
	if err := json.Unmarshal([]byte(out), &round); err != nil || status != 0 || round.Overview.Requests != 22 ||
		len(round.Rules) != 3 {
		t.Errorf("status %d: %v: %s%s", status, err, out, errs)
	}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--sort", "colour"}, 2, "expected one of verdict, name"}, {[]string{"--batch", "-n", "0"}, 2, "expected 1 or more"},
		{[]string{}, 2, "the output is no terminal; --batch prints"}, {[]string{"--over", "x"}, 2, "--over"}, {[]string{"--json"}, 2, "--json is for --batch"},
		{[]string{"--batch", "--server", "http://127.0.0.1:1"}, 1, "cannot be reached"},
	} {
		status, out, errs := runWeir(append([]string{"top", "--server", server}, c.args...)...)
		if status != c.status || !strings.Contains(errs, c.says) {
			t.Errorf("%q: status %d, want %d: %s%s", c.args, status, c.status, out, errs)
		}
	}
}

// weir tail prints decisions as they come, says what share that is, goes on after a restart of the
// server, and ends well when nobody reads any more.
func TestTail(t *testing.T) {
	t.Parallel()
	program := servertest.BuildProgram(t)
	admin := "127.0.0.1:" + servertest.FreePort(t)
	p := busyServer(t, admin)
	cmd := exec.Command(program, "tail", "--server", "http://"+admin, "--limit", "login", "--outcome", "denied")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	errs := servertest.NewOutput()
	cmd.Stdout, cmd.Stderr, cmd.Env = writer, errs, servertest.PlainEnvironment()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	out := servertest.NewOutput()
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := reader.Read(b)
			if err != nil {
				return
			}
			_, _ = out.Write(b[:n])
		}
	}()
	refuse := func() {
		servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?path=/notes&user=x&ip=192.0.2.1")
		servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?path=/login&method=POST&ip=192.0.2.1")
	}
	line := regexp.MustCompile(
		`(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  denied  POST /login  ip=192\.0\.2\.1  shop/login  again in \d+ (s|min|h).*  [0-9a-z]{13}.*\n`)
	lines := func() int { return len(line.FindAllString(out.String(), -1)) }
	// It shows what comes after it began, so requests are sent until one shows.
	servertest.Eventually(t, "a refusal is shown", func() bool { refuse(); return lines() > 0 })
	errs.Await(t, "remembered decisions are shown")
	p.End()
	errs.Await(t, "is away, trying on")
	p = busyServer(t, admin)
	defer func() { p.End() }()
	seen := lines()
	servertest.Eventually(t, "a refusal after the restart is shown", func() bool { refuse(); return lines() > seen })
	if all := line.ReplaceAllString(out.Lines(), ""); strings.TrimSpace(all) != "" {
		t.Errorf("it printed more than refusals by login:\n%s", all)
	}
	reader.Close() // nobody reads
	servertest.Eventually(t, "it ends", func() bool {
		refuse()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("it ended with %v: %s", err, errs)
			}
			return true
		default:
			return false
		}
	})

	// What the server refuses is told at once.
	status, _, text := runWeir("tail", "--server", "http://"+admin, "--limit", "nonsense")
	if status != 1 || !strings.Contains(text, "no rule in force has a limit nonsense") {
		t.Errorf("status %d: %s", status, text)
	}
	// So is that there is none to try on with, and a wrong command line.
	if status, _, text := runWeir("tail", "--server", "http://127.0.0.1:1"); status != 1 ||
		!strings.Contains(text, "cannot be reached") {
		t.Errorf("status %d: %s", status, text)
	}
	if status, _, text := runWeir("tail", "--outcome", "nonsense"); status != 2 ||
		!strings.Contains(text, "expected one of") {
		t.Errorf("status %d: %s", status, text)
	}
}

// weir verdicts judges the rules of a running server, and its exit status is a check.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	p := busyServer(t, "127.0.0.1:0")
	defer p.End()
	reports(t, p.Addr("admin"))
	server := "http://" + p.Addr("admin")
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--all"}, 0, "shop/login"}, {nil, 0, "too early: 2 rules; --all"}, {[]string{"--all", "--fail-on", "strict,loose_crowd,broken"}, 0, "shop/login"}, {[]string{"--json"}, 0, `"refused": 10`},
		{[]string{"--fail-on", "too_early"}, 1, "shop/login too_early"}, {[]string{"--fail-on", "nonsense"}, 2, "expected some of broken,"},
		{[]string{"--over", "soon"}, 2, "expected a time"}, {[]string{"--domain", "none"}, 2, "no rule file declares"}, {[]string{"--server", "http://127.0.0.1:1"}, 2, "cannot be reached"},
	} {
		status, out, errs := runWeir(append([]string{"verdicts", "--server", server}, c.args...)...)
		if status != c.status || !strings.Contains(out+errs, c.says) {
			t.Errorf("%q: status %d, want %d: %s%s", c.args, status, c.status, out, errs)
		}
	}
}

// weir preview tries other rules on what a server has recorded, and tells what is wrong with them.
func TestPreview(t *testing.T) {
	t.Parallel()
	p := busyServer(t, "127.0.0.1:0")
	defer p.End()
	reports(t, p.Addr("admin"))
	server := "http://" + p.Addr("admin")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"same/shop.yaml":       "domain: shop\nlimits:\n  - { name: login, when: { path: /login, method: POST }, per: [ip], allow: 3/hour, algorithm: sliding_log }\n  - { name: notes, when: { path: /notes }, per: [user], allow: 2/hour, algorithm: sliding_log }\n  - { name: everybody, allow: 100000/hour }\n",
		"looser/shop.yaml":     "domain: shop\nlimits:\n  - { name: login, when: { path: /login }, per: [ip], allow: 30/hour }\n",
		"tested/shop.yaml":     "domain: shop\nlimits:\n  - { name: login, when: { path: /login }, per: [ip], allow: 30/hour }\n",
		"tested/a_test.yaml":   "tests:\n  - name: the second is refused\n    steps:\n      - send: { ip: 192.0.2.1, path: /login, times: 2 }\n        allowed: 1\n",
		"broken/shop.yaml":     "domain: shop\nlimits:\n  - { name: login, alow: 3/hour }\n",
		"nothing/shop.yaml.md": "",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		servertest.WriteRules(t, filepath.Join(dir, name), text)
	}
	for _, c := range []struct {
		folder string
		status int
		says   []string
	}{
		{"same", 0, []string{"nothing changes for any request: refused are 13 of 22, 59.1 %", "of all clients at 1 of 1 nodes", "as before: 3 rules"}},
		{"looser", 0, []string{"refused: 13 → 0 of 22 requests, 59.1 % → 0 %: 0 more, 13 fewer", "shop/notes", "removed"}},
		{"broken", 1, []string{"error: shop.yaml:3:", "alow"}},
		{"nothing", 2, []string{"holds no rule files"}},
		{"none", 2, []string{"no such file"}},
	} {
		status, out, errs := runWeir("preview", filepath.Join(dir, c.folder), "--server", server)
		servertest.SkipIfStarved(t, errs)
		for _, want := range c.says {
			if status != c.status || !strings.Contains(out+errs, want) {
				t.Errorf("%s: status %d, want %d and %q: %s%s", c.folder, status, c.status, want, out, errs)
			}
		}
	}
	if status, out, errs := runWeir("preview", filepath.Join(dir, "same"), "--server", "http://127.0.0.1:1"); status != 2 {
		t.Errorf("no server: %d %s%s", status, out, errs)
	}
}

// weir audit lists who changed what on a running server, and its log holds.
func TestAudit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "audit.jsonl")
	servertest.WriteRules(t, filepath.Join(dir, "shop.yaml"),
		"domain: shop\nlimits: [{ name: login, per: [ip], allow: 3/hour }]\n")
	p := start(t, "serve", "--rules", filepath.Join(dir, "shop.yaml"), "--audit-path", log)
	server := "http://" + p.Addr("admin")
	if status, out, errs := runWeir("ban", "set", "login", "192.0.2.1", "--for=1h", "--reason=guesses\x1b[31m", "--server", server); status != 0 {
		t.Fatalf("%d: %s%s", status, out, errs)
	}
	status, out, errs := runWeir("audit", "--server", server)
	if status != 0 ||
		!regexp.MustCompile(`(?m)^\d+ .*ban set.*shop/login.*ip=192\.0\.2\.1.*guesses\\x1b\[31m`).MatchString(out) {
		t.Errorf("%d: %s%s", status, out, errs)
	}
	status, out, errs = runWeir("audit", "--json", "-n", "1", "--server", server)
	var answer struct{ Records []map[string]any }
	if err := json.Unmarshal([]byte(out), &answer); status != 0 || err != nil || len(answer.Records) != 1 {
		t.Errorf("%d %v: %s%s", status, err, out, errs)
	}
	p.End()
	if status, out, errs := runWeir("audit", "--verify", log); status != 0 ||
		!strings.Contains(out, "each follows the one before it") {
		t.Errorf("%d: %s%s", status, out, errs)
	}
}
