package servertest

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// Block is a fenced block of a Markdown page.
type Block struct {
	Language string
	Text     string
	Line     int
	// the comments directly above it: "expect: …", "background: …", "skip: …", "stop", "needs: …"
	// (a command that succeeds where the block can run), "write: …" (a block of another language is
	// this file, which later blocks run)
	directives []string
}

// Blocks reads the fenced blocks of a page. A "stop" directive without a block is a block of its
// own.
func Blocks(t *testing.T, path string) []Block {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []Block
	var current *Block
	var directives []string
	for i, line := range strings.Split(string(data), "\n") {
		switch {
		case current != nil && strings.TrimSpace(line) == "```":
			out = append(out, *current)
			current = nil
		case current != nil:
			current.Text += line + "\n"
		case strings.HasPrefix(line, "```"):
			current = &Block{Language: strings.TrimPrefix(line, "```"), Line: i + 1, directives: directives}
			directives = nil
		case line == "<!-- stop -->":
			out = append(out, Block{directives: []string{"stop"}, Line: i + 1})
		case strings.HasPrefix(line, "<!-- ") && strings.HasSuffix(line, " -->"):
			directives = append(directives, strings.TrimSuffix(strings.TrimPrefix(line, "<!-- "), " -->"))
		}
	}
	if current != nil {
		t.Fatalf("%s:%d: block without an end", path, current.Line)
	}
	return out
}

func (b Block) Directive(name string) (values []string) {
	for _, d := range b.directives {
		if v, ok := strings.CutPrefix(d, name+": "); ok {
			values = append(values, v)
		} else if d == name {
			values = append(values, "")
		}
	}
	return values
}

func RepositoryRoot(t *testing.T) string {
	t.Helper()
	return OriginalRoot
}

// OriginalRoot is the folder above with go.mod, found before any test changes the working folder.
// It is empty where a test runs this binary as weir, in a folder of its own.
var OriginalRoot = func() string {
	root, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return root
		}
		above := filepath.Dir(root)
		if above == root {
			return ""
		}
		root = above
	}
}()

// FreePort returns a free port that no other test gets until this one has ended, nor one of another
// package, and that the kernel gives to no outgoing connection.
func FreePort(t *testing.T) string {
	t.Helper()
	port, held, err := testproc.Reserve(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testproc.Release(held) })
	return strconv.Itoa(port)
}

// Starved is why a test is skipped whose preview found no processor idle for a minute.
const Starved = "busy: other processes left nothing of the processor to a preview for a minute"

// SkipIfStarved skips a test whose preview found no processor idle for a minute.
func SkipIfStarved(t *testing.T, output string) {
	t.Helper()
	if strings.Contains(output, "it only gets what nothing else wants of the processor") {
		t.Skip(Starved)
	}
}

// DocsPage is a folder in which the commands of a page are run, with free ports in place of those
// that it names.
type DocsPage struct {
	Dir   string
	Env   []string
	Ports *strings.Replacer
	// what to wait for after a command in the background, by the name that the page gives it
	Ready map[string]string
	More  map[string][]string // environment of that command
	Lacks bool                // what some blocks need is not installed, so that they did not run

	ctx     context.Context
	running []background
}

// background is a command that runs beside the others.
type background struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// NewPage makes one whose commands find the built program as weir.
func NewPage(t *testing.T, dir string, ports ...string) *DocsPage {
	t.Helper()
	Needs(t, "bash")
	program := BuiltProgram(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience.Left(t))
	t.Cleanup(cancel)
	replace := []string{"go run ./cmd/weir", "weir"}
	for _, port := range ports {
		free := FreePort(t)
		for _, before := range []string{"127.0.0.1:", "http.server ", "--port ", "-p "} {
			replace = append(replace, before+port, before+free)
		}
	}
	p := &DocsPage{Dir: dir, ctx: ctx, Ports: strings.NewReplacer(replace...),
		Env: append(PlainEnvironment(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))}
	t.Cleanup(func() { p.stop(t) })
	return p
}

// Address is the address of a port of the page.
func (p *DocsPage) Address(port string) string { return p.Ports.Replace("127.0.0.1:" + port) }

func (p *DocsPage) stop(t *testing.T) {
	for _, b := range p.running {
		if err := terminateGroup(b.cmd); err != nil {
			t.Error(err)
		}
		<-b.ended
	}
	p.running = nil
}

func (p *DocsPage) command(text string, more ...string) *exec.Cmd {
	cmd := exec.CommandContext(p.ctx, "bash", "-c", "set -e\n"+p.Ports.Replace(text))
	cmd.Dir, cmd.Env = p.Dir, append(p.Env, more...)
	ownGroup(cmd)
	return cmd
}

// packageOf has the tools that pages and tests need beside the program, and their Debian packages.
var packageOf = map[string]string{"bash": "bash", "caddy": "caddy", "curl": "curl", "haproxy": "haproxy",
	"nginx": "nginx-light", "python3": "python3", "redis-cli": "redis-tools", "redis-server": "redis-server"}

// Needs skips a test where a tool is not installed.
func Needs(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed; on Debian: apt-get install %s", name,
				cmp.Or(packageOf[name], packageOfUpstream[name]))
		}
	}
}

// write writes the file that a block is, and returns whether it is one.
func (p *DocsPage) write(t *testing.T, b Block) bool {
	t.Helper()
	file := b.Directive("write")
	if file == nil {
		return false
	}
	if err := os.WriteFile(filepath.Join(p.Dir, file[0]), []byte(p.Ports.Replace(b.Text)), 0o600); err != nil {
		t.Fatal(err)
	}
	return true
}

// without returns why a block cannot run here, and what it lacks for that; "" if it can.
func (p *DocsPage) without(b Block) (what, why string) {
	if needs := b.Directive("needs"); needs != nil && p.command(needs[0]).Run() != nil {
		return needs[0], "this fails: " + needs[0]
	}
	for _, tool := range strings.Fields(b.Text) {
		if packageOf[tool] == "" {
			continue
		}
		if _, err := exec.LookPath(tool); err != nil {
			return tool, tool + " is not installed; on Debian: apt-get install " + packageOf[tool]
		}
	}
	if strings.Contains(b.Text, "go run github.com/") && !effort.All() {
		return "go run", "long: it compiles another program; scripts/test --all runs it, and so does WEIR_TEST=all go test"
	}
	return "", ""
}

// Run runs the blocks of shell commands of a page, and returns how many there were. It leaves out
// those that need what is not installed, and says so.
func (p *DocsPage) Run(t *testing.T, path string) (ran int) {
	t.Helper()
	name := filepath.Base(path)
	alone := false // something that was to run in the background does not
	for _, b := range Blocks(t, path) {
		if b.Directive("stop") != nil {
			p.stop(t)
			alone = false
			continue
		}
		if p.write(t, b) {
			continue
		}
		if b.Language != "sh" || b.Directive("skip") != nil {
			continue
		}
		if what, why := p.without(b); why != "" || alone {
			p.Lacks, alone = true, alone || b.Directive("background") != nil
			if why != "" {
				t.Run("without "+what, func(t *testing.T) { t.Skipf("%s:%d does not run: %s", name, b.Line, why) })
			}
			continue
		}
		ran++
		if what := b.Directive("background"); what != nil {
			cmd := p.command(b.Text, p.More[what[0]]...)
			var output bytes.Buffer
			cmd.Stdout, cmd.Stderr = &output, &output
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			ctx, cancel := context.WithCancel(p.ctx)
			go func() {
				_ = cmd.Wait() // the error comes from the signal
				cancel()
				close(ended)
			}()
			ready := what[0]
			if url, ok := p.Ready[ready]; ok {
				ready = url
			}
			if !answers(ctx, p.Ports.Replace(ready)) {
				<-ended
				if first := strings.Fields(b.Text)[0]; packageOf[first] != "" {
					p.Lacks, alone = true, true
					t.Run("without "+first,
						func(t *testing.T) {
							t.Skipf("%s:%d: this %s does not start: %s", name, b.Line, first,
								&output)
						})
					continue
				}
				t.Fatalf("%s:%d: nobody answers at %s\n%s", name, b.Line, ready, &output)
			}
			p.running = append(p.running, background{cmd, ended})
			continue
		}
		out, err := p.command(b.Text).CombinedOutput()
		SkipIfStarved(t, string(out))
		if err != nil {
			t.Fatalf("%s:%d: %v\n%s%s", name, b.Line, err, b.Text, out)
		}
		squeezed := strings.Join(strings.Fields(string(out)), " ")
		for _, want := range b.Directive("expect") {
			if !strings.Contains(squeezed, p.Ports.Replace(want)) {
				t.Errorf("%s:%d: no %q in\n%s", name, b.Line, want, out)
			}
		}
	}
	return ran
}

// answers asks url until somebody answers, whatever the answer, or ctx ends; with tcp:// until
// somebody takes a connection.
func answers(ctx context.Context, url string) bool {
	for {
		if address, ok := strings.CutPrefix(url, "tcp://"); ok {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				conn.Close()
				return true
			}
		} else if req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil); err != nil {
			return false
		} else if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}
