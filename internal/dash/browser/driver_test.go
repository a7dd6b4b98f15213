// Package browser has the tests of the operator's page in a real browser, against the real program
// with real requests. What they drive, npm ci puts into .cache/tools/browser of the repository
// (scripts/test does so).
package browser

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/weir-rl/weir/internal/effort"
	"github.com/weir-rl/weir/internal/patience"
)

// driver is a Node process that holds Chromium.
type driver struct {
	in  io.WriteCloser
	out *bufio.Reader
	mu  sync.Mutex
	id  int
}

// toolsDir is where npm ci has put what the tests drive.
func toolsDir() (string, error) {
	root, err := filepath.Abs(filepath.Join("..", "..", ".."))
	if err != nil {
		return "", err
	}
	dir := os.Getenv("WEIR_BROWSER_TOOLS")
	if dir == "" {
		dir = filepath.Join(root, ".cache", "tools", "browser")
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "playwright-core")); err != nil {
		return "", fmt.Errorf("playwright-core is not in %s; scripts/test installs it", dir)
	}
	return dir, nil
}

// shared is the driver of all tests of the package, started by the first that needs it. TestMain
// ends it.
var shared struct {
	once   sync.Once
	driver *driver
	cmd    *exec.Cmd
	dir    string
	err    error
	skip   bool
}

func startDriver() {
	tools, err := toolsDir()
	if err != nil {
		shared.err, shared.skip = err, true
		return
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		shared.err, shared.skip = err, true
		return
	}
	if shared.dir, shared.err = os.MkdirTemp("", "weir-browser-"); shared.err != nil {
		return
	}
	cmd := exec.Command("node", "driver.mjs")
	cmd.Env = append(os.Environ(), "WEIR_BROWSER_TOOLS="+tools)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		shared.err = err
		return
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		shared.err = err
		return
	}
	if shared.err = cmd.Start(); shared.err != nil {
		return
	}
	shared.cmd = cmd
	shared.driver = &driver{in: in, out: bufio.NewReaderSize(out, 1<<20)}
	_, shared.err = shared.driver.ask("launch", map[string]any{"executable": chromium, "dir": filepath.Join(shared.dir, "profile")})
}

// chromium returns the driver. Without what it needs the test is skipped, which is a failure where
// CI=true.
func chromium(t *testing.T) *driver {
	t.Helper()
	effort.Long(t, "drives a browser")
	shared.once.Do(startDriver)
	if shared.skip && os.Getenv("CI") != "true" {
		t.Skip(shared.err)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.driver
}

func TestMain(m *testing.M) {
	status := m.Run()
	if shared.cmd != nil {
		_ = shared.driver.in.Close() // the driver then closes Chromium and ends
		_ = shared.cmd.Wait()
	}
	_ = os.RemoveAll(shared.dir)
	_ = os.RemoveAll(builtIn)
	os.Exit(status)
}

func (d *driver) ask(do string, args map[string]any) (json.RawMessage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.id++
	question := map[string]any{"id": d.id, "do": do}
	for k, v := range args {
		question[k] = v
	}
	data, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	if _, err := d.in.Write(append(data, '\n')); err != nil {
		return nil, fmt.Errorf("the driver has ended: %w", err)
	}
	line, err := d.out.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the driver has ended: %w", err)
	}
	var answer struct {
		ID    int
		Value json.RawMessage
		Error string
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return nil, fmt.Errorf("%w: %s", err, line)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", do, answer.Error)
	}
	return answer.Value, nil
}

// tab is a tab of Chromium, in a profile of its own.
type tab struct {
	t  *testing.T
	d  *driver
	id int
}

// look is how a tab looks.
type look struct {
	theme         string // light or dark
	width, height int
}

var desktop = look{"light", 1280, 900}

// open opens a tab on a server; the test's end closes it.
func (d *driver) open(t *testing.T, base string, l look) *tab {
	t.Helper()
	value, err := d.ask("open", map[string]any{"theme": l.theme, "width": l.width, "height": l.height, "base": base})
	if err != nil {
		t.Fatal(err)
	}
	b := &tab{t: t, d: d}
	if err := json.Unmarshal(value, &b.id); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.ask("close", map[string]any{"tab": b.id}) })
	return b
}

// do asks the driver for a step, and puts its answer into out where that is not nil.
func (b *tab) do(out any, step string, args ...any) {
	b.t.Helper()
	question := map[string]any{"tab": b.id}
	for i := 0; i < len(args); i += 2 {
		question[args[i].(string)] = args[i+1]
	}
	value, err := b.d.ask(step, question)
	if err != nil {
		b.t.Fatal(err)
	}
	if out != nil {
		if err := json.Unmarshal(value, out); err != nil {
			b.t.Fatalf("%s: %v: %s", step, err, value)
		}
	}
}

// visit opens a path and waits for its view.
func (b *tab) visit(path string) {
	b.t.Helper()
	b.do(nil, "goto", "url", path)
	b.shown()
}

// shown waits until a view is drawn.
func (b *tab) shown() {
	b.t.Helper()
	b.until("a view is drawn", `() => document.querySelector('main h1') && document.title.includes(' · weir') || document.querySelector('main .state h1')`, nil)
}

// until waits until an expression of JavaScript is true in the page. As patience, it has no bound
// of its own.
func (b *tab) until(what, js string, arg any) {
	b.t.Helper()
	patience.Until(b.t, what, func() bool {
		var ok bool
		b.do(&ok, "evaluate", "js", "(arg) => { const f = "+js+"; return !!f(arg); }", "arg", arg)
		return ok
	})
}

// sees waits until the page shows a text.
func (b *tab) sees(text string) {
	b.t.Helper()
	b.until(fmt.Sprintf("the page shows %q", text), `(text) => document.body.innerText.includes(text)`, text)
}

// text is what an element shows.
func (b *tab) text(selector string) (s string) {
	b.t.Helper()
	b.do(&s, "evaluate", "js", `(s) => document.querySelector(s)?.innerText ?? ''`, "arg", selector)
	return s
}

// has tells whether an expression of JavaScript is true now.
func (b *tab) has(js string, arg any) (ok bool) {
	b.t.Helper()
	b.do(&ok, "evaluate", "js", "(arg) => { const f = "+js+"; return !!f(arg); }", "arg", arg)
	return ok
}

func (b *tab) press(keys ...string) { b.t.Helper(); b.do(nil, "press", "keys", keys) }
func (b *tab) write(text string)    { b.t.Helper(); b.do(nil, "type", "text", text) }

// log is what went wrong in a tab, and what it asked for.
type log struct {
	Errors   []string
	Hosts    []string
	Requests []struct {
		URL   string
		Bytes int
	}
}

func (b *tab) log() (l log) {
	b.t.Helper()
	b.do(&l, "log")
	return l
}

// clean fails the test if the page wrote errors, or asked other hosts.
func (b *tab) clean(where string) {
	b.t.Helper()
	l := b.log()
	for _, e := range l.Errors {
		b.t.Errorf("%s: the console says: %s", where, e)
	}
	for _, h := range l.Hosts {
		b.t.Errorf("%s: asks another host: %s", where, h)
	}
	b.do(nil, "clear")
}

// accessible fails the test for what axe finds.
func (b *tab) accessible(where string) {
	b.t.Helper()
	var found []string
	b.do(&found, "axe")
	for _, v := range found {
		b.t.Errorf("%s: %s", where, v)
	}
}
