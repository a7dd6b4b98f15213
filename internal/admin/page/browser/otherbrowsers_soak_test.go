//go:build soak && linux

package browser

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/websocket"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// other is a browser that shows one page. eval evaluates an expression of JavaScript whose value is
// a text.
type other interface {
	open(url string) error
	eval(js string) (string, error)
	// picture returns a PNG; nil if the browser makes none. (WebKit's takes for ever at times.)
	picture() ([]byte, error)
}

// TestOtherBrowsers opens every view in Firefox and in WebKit, in every look: it has the headings
// and columns that Chromium shows, no error is thrown or written, and nothing scrolls sideways.
// $WEIR_SHOTS is a folder for pictures of Firefox. It needs Debian's firefox-esr, webkit2gtk-driver
// and xvfb.
func TestOtherBrowsers(t *testing.T) {
	d := chromium(t)
	s, all := serveViews(t)
	const outline = `JSON.stringify([...document.querySelectorAll('main h1, main h2, main th')].map((e) => e.textContent.replace(/\d+/g, '#')))`
	for _, browser := range []struct {
		name  string
		start func(t *testing.T, l look) other
	}{{"firefox", startFirefox}, {"webkit", startWebKit}} {
		for name, l := range looks {
			t.Run(browser.name+" "+name, func(t *testing.T) {
				chrome, o := d.open(t, s.admin, l), browser.start(t, l)
				eval := func(js string) string {
					t.Helper()
					text, err := o.eval(js)
					if err != nil {
						t.Fatalf("%s: %v", js, err)
					}
					return text
				}
				const drawn = `String(!!document.querySelector('main h1') && document.title.includes(' · weir'))`
				shown := func() {
					t.Helper()
					patience.Until(t, "a view is drawn", func() bool { return eval(drawn) == "true" })
				}
				if err := o.open(s.admin + "/"); err != nil {
					t.Fatal(err)
				}
				shown()
				eval(`(() => {
					window.seen = [];
					addEventListener('error', (e) => seen.push(String(e.message)));
					addEventListener('unhandledrejection', (e) => seen.push(String(e.reason)));
					document.addEventListener('securitypolicyviolation', (e) => seen.push(e.violatedDirective + ' ' + e.blockedURI));
					for (const level of ['error', 'warn']) {
						const write = console[level];
						console[level] = (...all) => { seen.push(all.join(' ')); write.apply(console, all); };
					}
					return '';
				})()`)
				for _, v := range all {
					// By a link, so that what listens stays.
					path, _ := json.Marshal(v.path)
					eval(`(() => {
						document.querySelector('main h1')?.remove();
						const link = document.createElement('a');
						link.href = ` + string(path) + `;
						document.querySelector('main').append(link);
						link.click();
						return '';
					})()`)
					shown()
					chrome.visit(v.path)
					var want string
					patience.Until(t, v.name+" is as in Chromium", func() bool {
						chrome.do(&want, "evaluate", "js", "() => "+outline)
						return eval(outline) == want
					})
					if wide := eval(`String(Math.ceil(document.documentElement.scrollWidth - document.documentElement.clientWidth))`); wide != "0" {
						t.Errorf("%s: the page is %s px too wide", v.name, wide)
					}
					if seen := eval(`JSON.stringify(seen.splice(0))`); seen != "[]" {
						t.Errorf("%s: %s", v.name, seen)
					}
					if dir := os.Getenv("WEIR_SHOTS"); dir != "" {
						data, err := o.picture()
						if data != nil {
							err = os.WriteFile(filepath.Join(dir, browser.name+"-"+name+"-"+v.name+".png"), data, 0o644)
						}
						if err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
	}
}

// program starts a program that ends with the test, and returns what it says on the line that holds
// a text.
func program(t *testing.T, until string, env []string, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%v; on Debian: apt-get install firefox-esr webkit2gtk-driver xvfb", err)
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		out.Close()
	})
	lines := bufio.NewScanner(out)
	said := ""
	for until != "" && lines.Scan() {
		if said += lines.Text() + "\n"; strings.Contains(lines.Text(), until) {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return lines.Text()
		}
	}
	if until != "" {
		t.Fatalf("%s does not say %q:\n%s", name, until, said)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return ""
}

// firefox speaks WebDriver BiDi (https://w3c.github.io/webdriver-bidi/).
type firefox struct {
	conn    *websocket.Conn
	id      int
	context string
}

func startFirefox(t *testing.T, l look) other {
	t.Helper()
	dir := t.TempDir()
	scheme := 1
	if l.theme == "dark" {
		scheme = 0
	}
	prefs := fmt.Sprintf("user_pref(\"layout.css.prefers-color-scheme.content-override\", %d);\n"+
		"user_pref(\"remote.active-protocols\", 1);\nuser_pref(\"ui.prefersReducedMotion\", 1);\n"+
		"user_pref(\"datareporting.policy.dataSubmissionEnabled\", false);\nuser_pref(\"app.update.auto\", false);\n", scheme)
	if err := os.WriteFile(filepath.Join(dir, "user.js"), []byte(prefs), 0o644); err != nil {
		t.Fatal(err)
	}
	const origin = "http://127.0.0.1"
	said := program(t, "WebDriver BiDi listening on ", []string{"HOME=" + dir}, "firefox-esr", "--headless", "--no-remote",
		"--profile", dir, "--remote-debugging-port", "0", "--remote-allow-origins", origin)
	_, address, _ := strings.Cut(said, "listening on ")
	conn, err := websocket.Dial(strings.TrimSpace(address)+"/session", "", origin)
	if err != nil {
		t.Fatal(err)
	}
	conn.MaxPayloadBytes = 64 << 20
	t.Cleanup(func() { conn.Close() })
	f := &firefox{conn: conn}
	var tree struct{ Contexts []struct{ Context string } }
	err = errors.Join(f.do(nil, "session.new", map[string]any{"capabilities": map[string]any{}}),
		f.do(&tree, "browsingContext.getTree", map[string]any{}))
	if err != nil || len(tree.Contexts) == 0 {
		t.Fatal(err, tree)
	}
	f.context = tree.Contexts[0].Context
	if err := f.do(nil, "browsingContext.setViewport", map[string]any{"context": f.context,
		"viewport": map[string]int{"width": l.width, "height": l.height}}); err != nil {
		t.Fatal(err)
	}
	return f
}

// do sends a command, and waits for its result. Events are passed over.
func (f *firefox) do(out any, method string, params map[string]any) error {
	f.id++
	if err := websocket.JSON.Send(f.conn, map[string]any{"id": f.id, "method": method, "params": params}); err != nil {
		return err
	}
	for {
		var got struct {
			ID             int
			Result         json.RawMessage
			Error, Message string
		}
		if err := websocket.JSON.Receive(f.conn, &got); err != nil {
			return err
		}
		switch {
		case got.ID != f.id:
		case got.Error != "":
			return fmt.Errorf("%s: %s: %s", method, got.Error, got.Message)
		case out == nil:
			return nil
		default:
			return json.Unmarshal(got.Result, out)
		}
	}
}

func (f *firefox) open(url string) error {
	return f.do(nil, "browsingContext.navigate", map[string]any{"context": f.context, "url": url, "wait": "complete"})
}

func (f *firefox) eval(js string) (string, error) {
	var got struct {
		Type             string
		Result           struct{ Value string }
		ExceptionDetails struct{ Text string }
	}
	err := f.do(&got, "script.evaluate", map[string]any{"expression": js, "awaitPromise": false,
		"target": map[string]string{"context": f.context}})
	if err == nil && got.Type != "success" {
		err = errors.New(got.ExceptionDetails.Text)
	}
	return got.Result.Value, err
}

func (f *firefox) picture() ([]byte, error) {
	var got struct{ Data string }
	if err := f.do(&got, "browsingContext.captureScreenshot", map[string]any{"context": f.context}); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(got.Data)
}

// webkit speaks WebDriver (https://www.w3.org/TR/webdriver2/).
type webkit struct{ session string }

func startWebKit(t *testing.T, l look) other {
	t.Helper()
	// Xvfb says which number it has taken.
	display := displayOf(t, l)
	port, reserved, err := testproc.Reserve(false)
	if err != nil {
		t.Fatal(err)
	}
	testproc.Release(reserved)
	programs, _ := filepath.Glob("/usr/lib/*/webkit2gtk-4.*/MiniBrowser")
	if len(programs) == 0 {
		t.Fatal("there is no MiniBrowser; on Debian: apt-get install webkit2gtk-driver")
	}
	home := t.TempDir()
	theme := "Adwaita"
	if l.theme == "dark" {
		theme += ":dark"
	}
	program(t, "", []string{"DISPLAY=" + display, "HOME=" + home, "XDG_RUNTIME_DIR=" + home, "GTK_THEME=" + theme,
		"WEBKIT_DISABLE_SANDBOX_THIS_IS_DANGEROUS=1", "WEBKIT_DISABLE_COMPOSITING_MODE=1", "NO_AT_BRIDGE=1"},
		"WebKitWebDriver", fmt.Sprint("--port=", port))
	base := "http://" + testproc.Loopback(port)
	patience.Until(t, "WebKitWebDriver answers", func() bool {
		r, err := http.Get(base + "/status")
		if err != nil {
			return false
		}
		r.Body.Close()
		return true
	})
	var made struct{ SessionID string }
	if err := (&webkit{}).do(&made, "POST", base+"/session", map[string]any{"capabilities": map[string]any{
		"alwaysMatch": map[string]any{"webkitgtk:browserOptions": map[string]any{
			"binary": programs[len(programs)-1], "args": []string{"--automation"}}}}}); err != nil {
		t.Fatal(err)
	}
	w := &webkit{session: base + "/session/" + made.SessionID}
	t.Cleanup(func() { _ = w.do(nil, "DELETE", w.session, nil) })
	if err := w.do(nil, "POST", w.session+"/window/rect", map[string]int{"x": 0, "y": 0, "width": l.width,
		"height": l.height}); err != nil {
		t.Fatal(err)
	}
	return w
}

// displayOf starts an X server without a screen, and returns its name.
func displayOf(t *testing.T, l look) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("Xvfb", "-displayfd", "3", "-screen", "0", fmt.Sprintf("%dx%dx24", max(l.width, 800), l.height+200),
		"-nolisten", "tcp")
	cmd.ExtraFiles = []*os.File{w}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; on Debian: apt-get install xvfb", err)
	}
	w.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	number, err := bufio.NewReader(r).ReadString('\n')
	r.Close()
	if err != nil {
		t.Fatal(err)
	}
	return ":" + strings.TrimSpace(number)
}

// do sends a command.
func (w *webkit) do(out any, method, url string, body any) error {
	var data []byte
	if body != nil {
		data, _ = json.Marshal(body)
	}
	r, err := http.NewRequest(method, url, bytes.NewReader(data))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var got struct{ Value json.RawMessage }
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil {
		return err
	}
	if answer.StatusCode != 200 {
		return fmt.Errorf("%s %s: %s: %.500s", method, url, answer.Status, got.Value)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(got.Value, out)
}

func (w *webkit) open(url string) error {
	return w.do(nil, "POST", w.session+"/url", map[string]string{"url": url})
}

func (w *webkit) eval(js string) (text string, err error) {
	err = w.do(&text, "POST", w.session+"/execute/sync", map[string]any{"script": "return (" + js + ");", "args": []any{}})
	return text, err
}

func (w *webkit) picture() ([]byte, error) { return nil, nil }
