package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule/file"
)

// The rules on every page, and in the folders of the examples, are without an error and a warning,
// as they stand: what is meant to draw a warning says so by a comment of its own. A block of YAML
// is taken for rules if it has a list of limits, or descriptors, at its root; so is a file that a
// block of shell writes.
func TestRulesInDocs(t *testing.T) {
	root := servertest.RepositoryRoot(t)
	pages := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	// limits: {…} is of the configuration
	isRules := regexp.MustCompile(`(?m)^(limits:[ \t]*([[#].*)?$|descriptors:)`)
	written := regexp.MustCompile(`(?ms)^cat > \S+\.ya?ml <<'EOF'\n(.*?)^EOF$`)
	file := filepath.Join(t.TempDir(), "docs.yaml")
	seen := 0
	for _, page := range pages {
		for _, b := range servertest.Blocks(t, page) {
			texts := []string{b.Text}
			if b.Language == "sh" {
				texts = nil
				for _, found := range written.FindAllStringSubmatch(b.Text, -1) {
					texts = append(texts, found[1])
				}
			} else if b.Language != "yaml" {
				continue
			}
			for _, text := range texts {
				if !isRules.MatchString(text) {
					continue
				}
				seen++
				servertest.WriteRules(t, file, text)
				if status, out := weirOutput(t, "lint", "--strict", file); status != 0 {
					t.Errorf("%s:%d: %s", filepath.Base(page), b.Line, out)
				}
			}
		}
	}
	if seen < 20 {
		t.Fatalf("only %d blocks of rules found: does the search still fit the docs?", seen)
	}
	folders, err := filepath.Glob(filepath.Join(root, "examples", "*", "rules"))
	if err != nil || len(folders) < 5 {
		t.Fatalf("folders of rules: %v, %v", folders, err)
	}
	golden, _ := filepath.Glob(filepath.Join(root, "examples", "golden", "*"))
	for _, folder := range append(folders, golden...) {
		if status, out := weirOutput(t, "lint", "--strict", folder); status != 0 {
			t.Errorf("%s: %s", folder, out)
		}
	}
}

// The docs name each warning of lint.
func TestWarningsInDocs(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "docs", "reference", "rules.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range file.Warnings() {
		if !strings.Contains(string(data), "| `"+w.Name+"` | "+w.About+" |") {
			t.Errorf("docs/reference/rules.md lacks the warning %s, or says something else of it", w.Name)
		}
	}
}

// The configuration in the docs is one that serve takes.
func TestConfigurationInDocsLoads(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string]string{
		"rules/shop.yaml": "domain: shop\nlimits: [{name: a, allow: 1/s}]\n",
		"tokens":          "0123456789abcdef0123456789abcdef\n",
		// The public key of RFC 7517, appendix A.1.
		"jwks.json": `{"keys": [{"kty": "EC", "crv": "P-256", "alg": "ES256", "kid": "1",
			"x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	ca := certtest.New(t, "ca")
	cert, key := ca.Issue("weir", 0, "localhost")
	certtest.Write(t, []string{"cert.pem", "key.pem", "ca.pem"}, cert, key, ca.PEM)
	seen := 0
	docs := filepath.Join(servertest.RepositoryRoot(t), "docs")
	pages := []string{"reference/configuration.md", "reference/metrics.md", "operating/security.md",
		"guides/haproxy.md"}
	for _, page := range pages {
		for _, b := range servertest.Blocks(t, filepath.Join(docs, filepath.FromSlash(page))) {
			if b.Language != "yaml" {
				continue
			}
			seen++
			if err := os.WriteFile("weir.yaml", []byte(b.Text), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			if code := Run(t.Context(), []string{"serve", "--check"}, nil, strings.NewReader(""), &out, &errs); code != 0 {
				t.Errorf("line %d: exit status %d\n%s%s%s", b.Line, code, b.Text, out.String(), errs.String())
			}
		}
	}
	if seen == 0 {
		t.Fatal("no configuration found in the docs")
	}
}

// The commands of the README do what it says, pasted one after the other into one folder, and all
// of it is one screen. Ports are replaced by free ones.
func TestReadmeRuns(t *testing.T) {
	t.Parallel()
	readme := filepath.Join(servertest.RepositoryRoot(t), "README.md")
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(text, []byte("\n")); lines > 110 {
		t.Errorf("the README has %d lines, of at most 110: what a reader does next belongs to docs/start", lines)
	}
	p := newDoorsPage(t, "8080", "8081", "6070", "6380")
	if ran := p.Run(t, readme); ran < 6 && !p.Lacks {
		t.Fatalf("only %d blocks ran: does the search still fit the README?", ran)
	}
}

// The commands of docs/start/first-steps.md do so, too.
func TestFirstStepsRun(t *testing.T) {
	t.Parallel()
	p := newDoorsPage(t, "8080", "8081", "6070", "8000", "3000", "6390", "6380", "8082", "8083", "8084")
	p.Ready["upstream"] = "http://127.0.0.1:3000/"
	p.Ready["proxy"] = "http://127.0.0.1:8000/ready"
	p.Ready["redis"] = "tcp://127.0.0.1:6390"
	p.Ready["second"] = "http://127.0.0.1:8082/healthcheck"
	p.More = map[string][]string{"proxy": {"WEIR_LISTEN_PROXY=" + p.Address("8000"), "WEIR_LISTEN_HTTP=off",
		"WEIR_LISTEN_GRPC=off", "WEIR_LISTEN_RESP=off"}}
	page := filepath.Join(servertest.RepositoryRoot(t), "docs", "start", "first-steps.md")
	if ran := p.Run(t, page); ran < 8 && !p.Lacks {
		t.Fatalf("only %d blocks ran: does the search still fit the page?", ran)
	}
}

// The programs of docs/guides/clients.md are refused when the page says so, each whose language and
// library are there.
func TestClientsPageRuns(t *testing.T) {
	t.Parallel()
	p := newDoorsPage(t, "8080", "8081", "6070", "6380")
	text, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "docs", "guides", "clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	// A slow machine is not to be taken for a Weir that is away.
	for hurried, patient := range map[string]string{"timeout=2": "timeout=60", "timeout(2000)": "timeout(60000)",
		"_timeout: 2": "_timeout: 60", "'timeout' => 2": "'timeout' => 60", "2 * time.Second": "60 * time.Second"} {
		if !bytes.Contains(text, []byte(hurried)) {
			t.Errorf("no program of the page has %q", hurried)
		}
		text = bytes.ReplaceAll(text, []byte(hurried), []byte(patient))
	}
	page := filepath.Join(t.TempDir(), "clients.md")
	if err := os.WriteFile(page, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if ran := p.Run(t, page); ran < 12 && !p.Lacks {
		t.Fatalf("only %d blocks ran: does the search still fit the page?", ran)
	}
}

// newDoorsPage returns a page in a new folder. Its servers have all doors, on free ports.
func newDoorsPage(t *testing.T, ports ...string) *servertest.DocsPage {
	t.Helper()
	p := servertest.NewPage(t, t.TempDir(), ports...)
	p.Env = append(p.Env,
		// redis-server ends if the locale of this machine is one that it does not find
		"LC_ALL=C",
		"WEIR_STORE_DEADLINE=30s", // a slow machine is not to be taken for a Redis that is away
		"WEIR_LISTEN_HTTP="+p.Address("8080"), "WEIR_LISTEN_GRPC="+p.Address("8081"),
		"WEIR_LISTEN_ADMIN="+p.Address("6070"), "WEIR_LISTEN_RESP="+p.Address("6380"))
	p.Ready = map[string]string{"http": "http://127.0.0.1:8080/healthcheck"}
	return p
}

// The commands of docs/operating/insight.md do what it says, from beginning to end.
func TestInsightPageRuns(t *testing.T) {
	t.Parallel()
	p := servertest.NewPage(t, t.TempDir(), "8080", "6070")
	p.Env = append(p.Env, "WEIR_LISTEN_HTTP="+p.Address("8080"), "WEIR_LISTEN_ADMIN="+p.Address("6070"),
		"WEIR_LISTEN_GRPC=off", "WEIR_LISTEN_RESP=off")
	p.Ready = map[string]string{"http": "http://127.0.0.1:8080/healthcheck"}
	if ran := p.Run(t, filepath.Join(servertest.RepositoryRoot(t), "docs", "operating", "insight.md")); ran < 7 &&
		!p.Lacks {
		t.Fatalf("only %d blocks ran: does the search still fit the page?", ran)
	}
}

// The commands of docs/operating/pull-requests.md do what it says.
func TestPullRequestsPageRuns(t *testing.T) {
	t.Parallel()
	p := servertest.NewPage(t, t.TempDir())
	page := filepath.Join(servertest.RepositoryRoot(t), "docs", "operating", "pull-requests.md")
	if ran := p.Run(t, page); ran < 3 && !p.Lacks {
		t.Fatalf("only %d blocks ran: does the search still fit the page?", ran)
	}
}

// The examples that need no more than the program are complete folders, and their pages do what
// they say.
func TestExamplesRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"http", "proxy", "resp", "compose"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), name)
			p := servertest.NewPage(t, dir, "8080", "8081", "6070", "8000", "3000", "6380", "6390")
			// the reasons are at newDoorsPage
			p.Env = append(p.Env, "LC_ALL=C", "WEIR_STORE_DEADLINE=30s")
			if err := os.CopyFS(dir, os.DirFS(filepath.Join(servertest.RepositoryRoot(t), "examples", name))); err != nil {
				t.Fatal(err)
			}
			if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return os.WriteFile(path, []byte(p.Ports.Replace(string(data))), 0o600)
			}); err != nil {
				t.Fatal(err)
			}
			if ran := p.Run(t, filepath.Join(servertest.RepositoryRoot(t), "examples", name, "README.md")); ran < 3 &&
				!p.Lacks {
				t.Fatalf("only %d blocks ran", ran)
			}
		})
	}
}

// The Go programs of docs/guides/clients.md compile against this module.
func TestProgramsInDocsCompile(t *testing.T) {
	t.Parallel()
	root := servertest.RepositoryRoot(t)
	compiled := 0
	for _, b := range servertest.Blocks(t, filepath.Join(root, "docs", "guides", "clients.md")) {
		if b.Language != "go" {
			continue
		}
		compiled++
		// The program is compiled as a part of the module without standing in its tree, where
		// tests that walk it at this moment would meet it.
		dir := t.TempDir()
		program, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(program, []byte(b.Text), 0o644); err != nil {
			t.Fatal(err)
		}
		replace, err := json.Marshal(map[string]map[string]string{
			"Replace": {filepath.Join(root, "cmd", "program", "main.go"): program},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(overlay, replace, 0o644); err != nil {
			t.Fatal(err)
		}
		// A quick run compiles it, and does not link it.
		build := exec.Command("go", "list", "-export", "-buildvcs=false", "-overlay", overlay, "./cmd/program")
		if effort.All() {
			build = exec.Command("go", "build", "-o", filepath.Join(dir, "program"), "-overlay", overlay, "./cmd/program")
		}
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("docs/guides/clients.md:%d: %v\n%s", b.Line, err, out)
		}
	}
	if compiled < 3 {
		t.Fatalf("only %d Go programs found: does the search still fit the page?", compiled)
	}
}

// The figures of docs/start/compare.md are figures of docs/how-it-works/performance.md, each of the
// section that its line links to.
func TestFiguresInCompare(t *testing.T) {
	docs := filepath.Join(servertest.RepositoryRoot(t), "docs")
	text := func(page string) string {
		data, err := os.ReadFile(filepath.Join(docs, filepath.FromSlash(page)))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	sections := map[string]map[string]bool{} // the numbers below each heading, by its anchor
	number := regexp.MustCompile(`\d[\d,.]*\d|\d`)
	for _, section := range regexp.MustCompile(`(?m)^##+ `).Split(text("how-it-works/performance.md"), -1) {
		heading, body, _ := strings.Cut(section, "\n")
		m := &markdown{anchors: map[string]bool{}}
		m.anchor(heading)
		for anchor := range m.anchors {
			sections[anchor] = map[string]bool{}
			for _, n := range number.FindAllString(body, -1) {
				sections[anchor][n] = true
			}
		}
	}
	checked := 0
	for _, row := range regexp.MustCompile(`(?m)^\|.*performance\.md#([a-z0-9-]+)\) \|$`).
		FindAllStringSubmatch(text("start/compare.md"), -1) {
		cells := strings.Split(row[0], "|")
		for _, n := range number.FindAllString(strings.Join(cells[2:len(cells)-2], " "), -1) {
			checked++
			if !sections[row[1]][n] {
				t.Errorf("docs/start/compare.md says %s, and docs/how-it-works/performance.md#%s does not: %s", n, row[1], cells[1])
			}
		}
	}
	if checked < 25 {
		t.Fatalf("only %d figures found: does the search still fit the pages?", checked)
	}
}
