package doors

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// The programs of testdata/described call the API through clients that generators make of its
// descriptions, as the server serves them.

const described driven = "described"

// describedPython returns the environment in which python3 finds the tools of requirements.txt.
func describedPython(t *testing.T) []string {
	t.Helper()
	packages := described.python(t)
	return append(servertest.PlainEnvironment(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1",
		"PATH="+filepath.Join(packages, "bin")+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// describedRules are the rules of the server that the clients call.
const describedRules = `
domain: shop
limits:
  - { name: api, per: [user], allow: 2/hour, algorithm: sliding_log }
  - { name: two, when: { kind: two }, per: [user], allow: [10/min, 100/hour] }
  - { name: seen, when: { kind: seen }, per: [user], allow: 1/min, on_limit: shadow }
`

// describedServer starts a server, with a token if it is not "", and writes its descriptions into a
// folder: decision.yaml and admin.yaml. It returns their base URLs.
func describedServer(t *testing.T, dir, token string) (decisions, admin string) {
	t.Helper()
	args := []string{"serve", "--rules=" + servertest.RulesFile(t, describedRules)}
	var headers []string
	if token != "" {
		file := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--auth-tokens-file="+file, "--auth-doors=http")
		headers = []string{"Authorization", "Bearer " + token}
	}
	p := servertest.Start(t, args...)
	decisions, admin = "http://"+p.Addr("http"), "http://"+p.Addr("admin")
	for name, base := range map[string]string{"decision.yaml": decisions, "admin.yaml": admin} {
		status, text := servertest.Ask(t, servertest.ClientOf(t, false, nil, nil), "GET", base+"/api/v1/openapi.yaml",
			"", headers...)
		if status != 200 {
			t.Fatalf("%s: %d %s", name, status, text)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return decisions, admin
}

// ran runs a program in a folder, and returns what it has printed.
func ran(t *testing.T, dir string, env []string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(command, " "), err, last(out.String()), last(errs.String()))
	}
	return out.String()
}

// last is the end of a long text.
func last(text string) string { return text[max(0, len(text)-8000):] }

// TestDescriptionsAreOpenAPI: both descriptions are valid by the schema of OpenAPI 3.1, and their
// schemas by the one of JSON Schema 2020-12.
func TestDescriptionsAreOpenAPI(t *testing.T) {
	effort.Long(t, "runs a validator in Python")
	env, dir := describedPython(t), t.TempDir()
	describedServer(t, dir, "")
	for _, name := range []string{"decision.yaml", "admin.yaml"} {
		if out := ran(t, dir, env, "python3", "-m", "openapi_spec_validator", "--schema", "3.1.0", "--errors", "all", name); !strings.Contains(out, "OK") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// describedClients make a client of the descriptions in a folder, and return the program that calls
// the APIs with it.
var describedClients = []struct {
	name string
	make func(t *testing.T, dir string) (env, program []string)
}{
	{"openapi-python-client", pythonClient},
	{"openapi-typescript", typescriptClient},
	{"oapi-codegen", goClient},
	{"openapi-generator", javaClient},
}

// calls is what each of the programs prints, without punctuation.
const calls = `ada true 2
ada true 2
ada false api 2
eve holds true 60
eve commits 204
used user=ada 2 user=eve 1
banned user=eve true
eve false api 2
bans user=eve
unbanned user=eve
eve true 2
reset 204
ada true 2
read null api two seen true
`

// TestGeneratedClients: programs with clients that generators make of the descriptions as they are
// served decide, reserve, commit, list, ban, unban, reset and read what may be null, at a server
// that is open and at one with tokens.
func TestGeneratedClients(t *testing.T) {
	effort.Long(t, "generates and compiles clients in four languages")
	for _, c := range describedClients {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			describedServer(t, dir, "")
			env, program := c.make(t, dir)
			for _, token := range []string{"", "sesame-open-4711"} {
				decisions, admin := describedServer(t, dir, token)
				got := ran(t, dir, env, append(program, decisions, admin, token)...)
				if plain := plainCalls(got); plain != calls {
					t.Errorf("with the token %q:\n%s\nwhich is\n%swant\n%s", token, got, plain, calls)
				}
			}
		})
	}
}

// plainCalls is what a program has printed without what each language writes in its own way.
func plainCalls(printed string) string {
	text := regexp.MustCompile(`[\[\](){}',"]+`).ReplaceAllString(strings.ToLower(printed), " ")
	for from, to := range map[string]string{"<nil>": "null", "none": "null", "60.0": "60"} {
		text = strings.ReplaceAll(text, from, to)
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return out.String()
}

func pythonClient(t *testing.T, dir string) (env, program []string) {
	env = describedPython(t)
	for _, name := range []string{"decision", "admin"} {
		ran(t, dir, env, "python3", "-m", "openapi_python_client", "generate", "--path", name+".yaml", "--output-path",
			name, "--meta", "none")
	}
	for i, v := range env {
		if path, ok := strings.CutPrefix(v, "PYTHONPATH="); ok {
			env[i] = "PYTHONPATH=" + dir + string(filepath.ListSeparator) + path
		}
	}
	return env, []string{"python3", described.file("client.py")}
}

func typescriptClient(t *testing.T, dir string) (env, program []string) {
	modules := filepath.Join(described.node(t), "node_modules")
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	env = servertest.PlainEnvironment()
	described.copy(t, dir, "package.json", "client.ts")
	for _, name := range []string{"decision", "admin"} {
		ran(t, dir, env, "node", filepath.Join(modules, "openapi-typescript", "bin", "cli.js"), name+".yaml", "-o",
			name+".d.ts")
	}
	ran(t, dir, env, "node", filepath.Join(modules, "typescript", "bin", "tsc"), "--strict", "--target", "es2022",
		"--module", "nodenext", "client.ts")
	return env, []string{"node", "client.js"}
}

func goClient(t *testing.T, dir string) (env, program []string) {
	env = append(servertest.PlainEnvironment(), "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
	parts := described.parts(t, "go/go.sum", func(to string) *exec.Cmd {
		described.copy(t, to, "go/go.mod", "go/go.sum")
		cmd := exec.Command("go", "build", "-o", "oapi-codegen",
			"github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen")
		cmd.Dir, cmd.Env = to, env
		return cmd
	})
	described.copy(t, dir, "go/go.mod", "go/go.sum", "go/main.go")
	for _, name := range []string{"decision", "admin"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		ran(t, dir, env, filepath.Join(parts, "oapi-codegen"), "-generate", "types,client", "-package", name, "-o",
			filepath.Join(name, "client.go"), name+".yaml")
	}
	ran(t, dir, env, "go", "build", "-o", "client", ".")
	return env, []string{filepath.Join(dir, "client")}
}

func javaClient(t *testing.T, dir string) (env, program []string) {
	env = testproc.JavaEnviron()
	path, generator := []string{filepath.Join(dir, "classes")}, ""
	for _, jar := range described.java(t) {
		if strings.HasPrefix(filepath.Base(jar), "openapi-generator") {
			generator = jar // which brings libraries of its own
		} else {
			path = append(path, jar)
		}
	}
	classes := strings.Join(path, string(filepath.ListSeparator))
	for _, name := range []string{"decision", "admin"} {
		pkg := "weir." + name
		ran(t, dir, env, "java", "-XX:TieredStopAtLevel=1", "-jar", generator, "generate", "-g", "java", "--library",
			"native", "-i", name+".yaml", "-o", "java-"+name,
			"--api-package", pkg+".api", "--model-package", pkg+".model", "--invoker-package", pkg,
			"--global-property", "apis,models,supportingFiles,apiDocs=false,modelDocs=false,apiTests=false,modelTests=false")
	}
	ran(t, dir, env, "java", "-XX:TieredStopAtLevel=1", "-cp", classes, "org.eclipse.jdt.internal.compiler.batch.Main",
		"-17", "-nowarn", "-cp", classes, "-d", "classes",
		filepath.Join("java-decision", "src", "main", "java"), filepath.Join("java-admin", "src", "main", "java"),
		described.file("Client.java"))
	return env, []string{"java", "-XX:TieredStopAtLevel=1", "-cp", classes, "Client"}
}

// TestDescriptionsAgainstServer: schemathesis sends what the descriptions say, and what they
// forbid, and holds the answers against them: statuses, media types, headers and schemas. Its
// requests are the same in each run.
func TestDescriptionsAgainstServer(t *testing.T) {
	effort.Long(t, "sends two thousand requests")
	env, dir := describedPython(t), t.TempDir()
	decisions, admin := describedServer(t, dir, "")
	for name, args := range map[string][]string{
		"decision": {"decision.yaml", "--url", decisions, "--exclude-path", "/json", "--exclude-path", "/healthcheck"},
		// They take any method, and proto3 JSON takes null for a member that is absent.
		"decision, as envoyproxy/ratelimit": {"decision.yaml", "--url", decisions, "--include-path", "/json", "--include-path", "/healthcheck",
			"--exclude-checks", "unsupported_method,negative_data_rejection"},
		// Its parameters are words of their own, such as 6h, and encoding/json takes null for a
		// member that is absent. Where a part is not configured, no method is known. A stream does
		// not end.
		"admin": {"admin.yaml", "--url", admin, "--exclude-path", "/api/v1/stream", "--exclude-path", "/login",
			"--exclude-checks", "positive_data_acceptance,negative_data_rejection,unsupported_method"},
	} {
		t.Run(name, func(t *testing.T) {
			out := ran(t, dir, env,
				append([]string{"python3", "-c", "from schemathesis.cli import schemathesis; schemathesis()",
					"--config-file", described.file("schemathesis.toml"), "run",
					"--phases", "examples,coverage,fuzzing", "--max-examples", "10", "--generation-deterministic", "--checks", "all", "--continue-on-failure",
					"--suppress-health-check", "all", "--no-color"}, args...)...)
			if !regexp.MustCompile(`\d{2,} generated, \d{2,} passed`).MatchString(out) {
				t.Errorf("nothing was tested:\n%s", last(out))
			}
		})
	}
}
