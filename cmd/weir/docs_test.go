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

// The commands of the README do what it says, pasted one after the other into one folder. Ports are
// replaced by free ones.
func TestReadmeRuns(t *testing.T) {
	t.Parallel()
	p := servertest.NewPage(t, t.TempDir(), "8080", "8081", "6070", "8000", "3000", "6390", "6380", "8082", "8083",
		"8084")
	p.Env = append(p.Env,
		// redis-server ends if the locale of this machine is one that it does not find
		"LC_ALL=C",
		"WEIR_STORE_DEADLINE=30s", // a slow machine is not to be taken for a Redis that is away
		"WEIR_LISTEN_HTTP="+p.Address("8080"), "WEIR_LISTEN_GRPC="+p.Address("8081"),
		"WEIR_LISTEN_ADMIN="+p.Address("6070"), "WEIR_LISTEN_RESP="+p.Address("6380"))
	p.Ready = map[string]string{
		"http":     "http://127.0.0.1:8080/healthcheck",
		"upstream": "http://127.0.0.1:3000/",
		"proxy":    "http://127.0.0.1:8000/ready",
		"redis":    "tcp://127.0.0.1:6390",
		"second":   "http://127.0.0.1:8082/healthcheck",
	}
	p.More = map[string][]string{"proxy": {"WEIR_LISTEN_PROXY=" + p.Address("8000"), "WEIR_LISTEN_HTTP=off",
		"WEIR_LISTEN_GRPC=off", "WEIR_LISTEN_RESP=off"}}
	if ran := p.Run(t, filepath.Join(servertest.RepositoryRoot(t), "README.md")); ran < 8 && !p.Lacks {
		t.Fatalf("only %d blocks ran: does the search still fit the README?", ran)
	}
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

// The examples that need no more than the program are complete folders, and their pages do what
// they say.
func TestExamplesRun(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"http", "proxy", "resp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), name)
			p := servertest.NewPage(t, dir, "8080", "8081", "6070", "8000", "3000", "6380")
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

// The Go program of the README compiles against this module.
func TestReadmeProgramCompiles(t *testing.T) {
	t.Parallel()
	root := servertest.RepositoryRoot(t)
	for _, b := range servertest.Blocks(t, filepath.Join(root, "README.md")) {
		if b.Language != "go" {
			continue
		}
		// The program is compiled as a part of the module without standing in its tree, where
		// tests that walk it at this moment would meet it.
		dir := t.TempDir()
		program, overlay := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json")
		if err := os.WriteFile(program, []byte(b.Text), 0o644); err != nil {
			t.Fatal(err)
		}
		replace, err := json.Marshal(map[string]map[string]string{
			"Replace": {filepath.Join(root, "cmd", "readme", "main.go"): program},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(overlay, replace, 0o644); err != nil {
			t.Fatal(err)
		}
		// A quick run compiles it, and does not link it.
		build := exec.Command("go", "list", "-export", "-buildvcs=false", "-overlay", overlay, "./cmd/readme")
		if effort.All() {
			build = exec.Command("go", "build", "-o", filepath.Join(dir, "readme"), "-overlay", overlay, "./cmd/readme")
		}
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("README.md:%d: %v\n%s", b.Line, err, out)
		}
		return
	}
	t.Fatal("the README has no Go program")
}
