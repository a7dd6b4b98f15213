// Package browser has the tests of the operator's page in a real browser, against the real program
// with real requests. What they drive, npm ci puts into .cache/tools/browser of the repository
// (scripts/test does so).
package browser

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// driver is a Node process that holds Chromium. Tests that run beside each other share it.
type driver struct {
	in    io.WriteCloser
	ended chan struct{} // closed when it says no more
	mu    sync.Mutex
	id    int
	asked map[int]chan answer
}

// answer is what the driver says to a question.
type answer struct {
	ID    int
	Value json.RawMessage
	Error string
}

// read takes what the driver says.
func (d *driver) read(out io.Reader) {
	defer close(d.ended)
	lines := bufio.NewReaderSize(out, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var a answer
		if err := json.Unmarshal(line, &a); err != nil {
			continue
		}
		d.mu.Lock()
		c := d.asked[a.ID]
		delete(d.asked, a.ID)
		d.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
}

// toolsDir is where npm ci has put what the tests drive.
func toolsDir() (string, error) {
	root, err := filepath.Abs(filepath.Join("..", "..", "..", ".."))
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
}

func startDriver() {
	tools, err := toolsDir()
	if err != nil {
		shared.err = err
		return
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		shared.err = fmt.Errorf("%w; on Debian: apt-get install chromium", err)
		return
	}
	if _, err := exec.LookPath("node"); err != nil {
		shared.err = fmt.Errorf("%w; on Debian: apt-get install nodejs", err)
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
	shared.driver = &driver{in: in, ended: make(chan struct{}), asked: map[int]chan answer{}}
	go shared.driver.read(out)
	if _, err := shared.driver.ask("launch", map[string]any{"executable": chromium, "dir": filepath.Join(shared.dir, "profile")}); err != nil {
		shared.err = fmt.Errorf("%s does not start: %w", chromium, err)
	}
}

// chromium returns the driver. Where what it needs is missing, or does not start, the test is
// skipped.
func chromium(t *testing.T) *driver {
	t.Helper()
	effort.Long(t, "drives a browser")
	shared.once.Do(startDriver)
	if shared.err != nil {
		t.Skip(shared.err)
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
	answered := make(chan answer, 1)
	if err := d.say(do, args, answered); err != nil {
		return nil, err
	}
	var a answer
	select {
	case a = <-answered:
	case <-d.ended:
		select {
		case a = <-answered: // the last one
		default:
			return nil, errors.New("the driver has ended")
		}
	}
	if a.Error != "" {
		return nil, fmt.Errorf("%s: %s", do, a.Error)
	}
	return a.Value, nil
}

// say sends a question.
func (d *driver) say(do string, args map[string]any, answered chan answer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.id++
	question := map[string]any{"id": d.id, "do": do}
	for k, v := range args {
		question[k] = v
	}
	data, err := json.Marshal(question)
	if err != nil {
		return err
	}
	d.asked[d.id] = answered
	if _, err := d.in.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("the driver has ended: %w", err)
	}
	return nil
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

// odd is how a browser differs from most others.
type odd struct {
	zone     string        // of its times; "" for UTC
	language string        // "" for en-GB
	behind   time.Duration // how far its clock is behind
}

// open opens a tab on a server; the test's end closes it.
func (d *driver) open(t *testing.T, base string, l look) *tab {
	t.Helper()
	return d.openOdd(t, base, l, odd{})
}

// openOdd opens a tab of an odd browser.
func (d *driver) openOdd(t *testing.T, base string, l look, o odd) *tab {
	t.Helper()
	value, err := d.ask("open", map[string]any{"theme": l.theme, "width": l.width, "height": l.height, "base": base,
		"zone": o.zone, "language": o.language, "behind": o.behind.Milliseconds()})
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
	b.until("a view is drawn",
		`() => document.querySelector('main h1') && document.title.includes(' · weir') || document.querySelector('main .state h1')`, nil)
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

// goTo presses g and a key until the view of a title is shown. To a busy browser the second key may
// come too late to belong to the first.
func (b *tab) goTo(key, title string) {
	b.t.Helper()
	pressed, again := time.Time{}, 2*time.Second
	patience.Until(b.t, "g "+key+" opens "+title, func() bool {
		if b.has(`(title) => document.querySelector('h1')?.textContent === title`, title) {
			return true
		}
		if time.Since(pressed) > again {
			b.press("g", key)
			pressed, again = time.Now(), 2*again
		}
		return false
	})
}

func (b *tab) write(text string) { b.t.Helper(); b.do(nil, "type", "text", text) }

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
func (b *tab) clean(where string) { b.t.Helper(); b.cleanBut(where, "") }

// cleanBut is clean where errors that contain a text may be; without a text none may.
func (b *tab) cleanBut(where, but string) {
	b.t.Helper()
	l := b.log()
	for _, e := range l.Errors {
		if but == "" || !strings.Contains(e, but) {
			b.t.Errorf("%s: the console says: %s", where, e)
		}
	}
	for _, h := range l.Hosts {
		b.t.Errorf("%s: asks another host: %s", where, h)
	}
	b.do(nil, "clear")
}

// accessible fails the test if axe finds anything.
func (b *tab) accessible(where string) {
	b.t.Helper()
	var found []string
	b.do(&found, "axe")
	for _, v := range found {
		b.t.Errorf("%s: %s", where, v)
	}
}
