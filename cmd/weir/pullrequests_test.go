//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// preCommit are pre-commit and what it needs, each at one version.
var preCommit = []string{"pre_commit==4.7.0", "cfgv==3.5.0", "distlib==0.4.4", "filelock==4.3.1", "identify==2.6.20",
	"nodeenv==1.12.0", "packaging==26.4", "platformdirs==4.14.9", "python-discovery==1.9.6", "PyYAML==6.0.4",
	"virtualenv==21.15.11"}

// git runs git in a folder, as somebody without a configuration.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	servertest.Needs(t, "git")
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org",
		"-c", "init.defaultBranch=main"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestPreCommit: pre-commit runs the hooks of .pre-commit-hooks.yaml as
// docs/operating/pull-requests.md says, read from beginning to end. The hooks find the built
// program, in place of compiling it.
func TestPreCommit(t *testing.T) {
	t.Parallel()
	servertest.Needs(t, "python3", "git")
	packages := testproc.Parts(t, "pre-commit-4.7.0", func(dir string) *exec.Cmd {
		return testproc.PipInstall(t, dir, preCommit...)
	})
	root := servertest.RepositoryRoot(t)
	hooks, err := os.ReadFile(filepath.Join(root, ".pre-commit-hooks.yaml"))
	if err != nil || strings.Count(string(hooks), "language: golang\n") != 2 {
		t.Fatalf("%v\n%s", err, hooks)
	}
	repository := t.TempDir()
	file := filepath.Join(repository, ".pre-commit-hooks.yaml")
	system := strings.ReplaceAll(string(hooks), "language: golang\n", "language: system\n")
	if err := os.WriteFile(file, []byte(system), 0o600); err != nil {
		t.Fatal(err)
	}
	git(t, repository, "init", "-q")
	git(t, repository, "add", "-A")
	git(t, repository, "commit", "-qm", "hooks")

	text, err := os.ReadFile(filepath.Join(root, "docs", "operating", "pull-requests.md"))
	if err != nil {
		t.Fatal(err)
	}
	const hooksAt, skip = "https://github.com/weir-rl/weir\n", "<!-- skip: TestPreCommit runs it -->\n"
	if !strings.Contains(string(text), hooksAt) || strings.Count(string(text), skip) != 2 {
		t.Fatal("the page has no section on hooks")
	}
	rev := regexp.MustCompile(`(?m)^    rev: (\S+)$`).FindStringSubmatch(string(text))
	if rev == nil {
		t.Fatal("the page names no version of the hooks")
	}
	git(t, repository, "tag", rev[1])
	page := filepath.Join(t.TempDir(), "hooks.md")
	here := strings.NewReplacer(hooksAt, repository+"\n", skip, "").Replace(string(text))
	if err := os.WriteFile(page, []byte(here), 0o600); err != nil {
		t.Fatal(err)
	}
	p := servertest.NewPage(t, t.TempDir())
	p.Env = append(p.Env, "PRE_COMMIT_HOME="+t.TempDir(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1",
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org", "LC_ALL=C.UTF-8")
	for i, entry := range p.Env {
		if strings.HasPrefix(entry, "PATH=") {
			p.Env[i] = "PATH=" + filepath.Join(packages, "bin") + ":" + strings.TrimPrefix(entry, "PATH=")
		}
	}
	if ran := p.Run(t, page); ran < 5 {
		t.Errorf("only %d blocks ran: does the search still fit the page?", ran)
	}
}

// action is action.yml.
type action struct {
	Inputs  map[string]struct{ Description, Default string }
	Outputs map[string]struct{ Description, Value string }
	Runs    struct {
		Using string
		Steps []struct {
			ID, Uses, If, Shell, Run string
			Env                      map[string]string
			With                     map[string]string
		}
	}
}

// actionRun is a job that runs the steps of the Action.
type actionRun struct {
	*testing.T
	action  action
	dir     string            // the clone
	inputs  map[string]string // beside the defaults
	outputs map[string]string // "lint.sarif"
	summary string
	failed  []string // the steps that failed
	output  string
}

// value puts the values of expressions into a text.
func (r *actionRun) value(text string, known map[string]string) string {
	return regexp.MustCompile(`\$\{\{ ([^}]*) \}\}`).ReplaceAllStringFunc(text, func(e string) string {
		e = e[4 : len(e)-3]
		if name, ok := strings.CutPrefix(e, "inputs."); ok {
			input, there := r.action.Inputs[name]
			if !there {
				r.Fatalf("there is no input %s", name)
			}
			if given, ok := r.inputs[name]; ok {
				return given
			}
			return r.value(input.Default, known)
		}
		v, ok := known[e]
		if !ok {
			r.Fatalf("an expression that nobody knows: %s", e)
		}
		return v
	})
}

// run runs the steps as a runner does.
func (r *actionRun) run() {
	temp := r.TempDir()
	known := map[string]string{"github.action_path": servertest.RepositoryRoot(r.T), "github.base_ref": "main"}
	path := filepath.Dir(servertest.BuiltProgram(r.T)) + ":" + os.Getenv("PATH")
	file := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(temp, name))
		return string(data)
	}
	for _, step := range r.action.Runs.Steps {
		switch {
		case step.Uses != "":
			continue
		case step.ID == "build" && !effort.All(): // the program is built
			continue
		case strings.Contains(step.If, "inputs.log != ''") && r.inputs["log"] == "":
			continue
		}
		if step.Shell != "bash" || step.ID == "" || strings.Contains(step.Run, "${{") {
			r.Fatalf("a step that this test does not run as a runner does: %+v", step)
		}
		cmd := exec.Command("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step.Run)
		cmd.Dir = r.dir
		cmd.Env = append(os.Environ(), "PATH="+path, "RUNNER_TEMP="+temp, "GIT_CONFIG_GLOBAL=/dev/null",
			"GITHUB_OUTPUT="+filepath.Join(temp, "output"), "GITHUB_PATH="+filepath.Join(temp, "path"),
			"GITHUB_STEP_SUMMARY="+filepath.Join(temp, "summary"))
		for name, value := range step.Env {
			cmd.Env = append(cmd.Env, name+"="+r.value(value, known))
		}
		out, err := cmd.CombinedOutput()
		r.output += string(out)
		if err != nil {
			r.failed = append(r.failed, step.ID)
		}
		for line := range strings.Lines(file("output")) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			known["steps."+step.ID+".outputs."+name] = value
		}
		_ = os.Remove(filepath.Join(temp, "output"))
		if more := strings.TrimSpace(file("path")); more != "" {
			path = more + ":" + path
		}
	}
	r.summary, r.outputs = file("summary"), map[string]string{}
	for name, output := range r.action.Outputs {
		e := strings.TrimSuffix(strings.TrimPrefix(output.Value, "${{ "), " }}")
		r.outputs[name] = known[e]
	}
}

// actionIn prepares a clone of a repository whose branch changes the rules of main.
func actionIn(t *testing.T, rules string) *actionRun {
	t.Helper()
	servertest.Needs(t, "bash", "git", "tar")
	r := &actionRun{T: t, dir: t.TempDir()}
	data, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(t), "action.yml"))
	if err != nil {
		t.Fatal(err)
	}
	strict := []yaml.DecodeOption{yaml.Strict(), yaml.AllowFieldPrefixes("name", "description")}
	if err := yaml.UnmarshalWithOptions(data, &r.action, strict...); err != nil {
		t.Fatal(err)
	}
	origin := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git(t, origin, "init", "-q", "--bare")
	git(t, r.dir, "clone", "-q", origin, ".")
	git(t, r.dir, "commit", "--allow-empty", "-qm", "before")
	write("rules/shop.yaml", "domain: shop\nlimits: [{ name: search, per: [ip], allow: 30/min }]\n")
	const line = `192.0.2.1 - - [12/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 9 "-" "-"` + "\n"
	write("access.log", strings.Repeat(line, 20))
	git(t, r.dir, "add", "-A")
	git(t, r.dir, "commit", "-qm", "main")
	git(t, r.dir, "push", "-q", "origin", "HEAD:main")
	write("rules/shop.yaml", rules)
	git(t, r.dir, "commit", "-qam", "a change")
	return r
}

// TestAction: the steps of action.yml, run as a runner runs them, check and test the rules and say
// what a change would have refused.
func TestAction(t *testing.T) {
	t.Parallel()
	const changed = "domain: shop\nlimits: [{ name: search, per: [ip], allow: 15/min }]\n"
	r := actionIn(t, changed)
	r.inputs = map[string]string{"log": "access.log", "replay": "--domain shop --reorder 1m"}
	r.run()
	if len(r.failed) > 0 || !strings.Contains(r.output, "1 rule in 1 file: 0 errors, 0 warnings") ||
		!strings.Contains(r.output, "no tests in rules") || r.outputs["junit"] != "" {
		t.Errorf("%v failed, %v\n%s", r.failed, r.outputs, r.output)
	}
	comment, err := os.ReadFile(r.outputs["comment"])
	if err != nil || string(comment) != r.summary ||
		!strings.Contains(r.summary, "| `search` | 30 / minute | 0 | 0 of 1 | 15 / minute | 5 | 1 of 1 |") ||
		!strings.Contains(r.summary, "`before`") || !strings.Contains(r.summary, "`after`") {
		t.Errorf("%v\n%s\n%s", err, r.summary, r.output)
	}
	if git(t, r.dir, "rev-parse", "--is-shallow-repository") != "false" {
		t.Error("a full clone has become shallow")
	}
	var sarif struct{ Version string }
	data, err := os.ReadFile(r.outputs["sarif"])
	if err != nil || json.Unmarshal(data, &sarif) != nil || sarif.Version != "2.1.0" {
		t.Errorf("%v\n%s", err, data)
	}

	t.Run("tests", func(t *testing.T) {
		r := actionIn(t, changed)
		servertest.WriteRules(t, filepath.Join(r.dir, "rules", "shop_test.yaml"), "domain: shop\ntests:\n  - steps:\n"+
			"      - send: { ip: 192.0.2.1, times: 30 }\n        expect: allowed\n")
		r.run()
		junit, err := os.ReadFile(r.outputs["junit"])
		if len(r.failed) != 1 || r.failed[0] != "test" || err != nil || !strings.Contains(string(junit), "<failure") {
			t.Errorf("%v failed, %v\n%s\n%s", r.failed, err, junit, r.output)
		}
		if r.outputs["comment"] != "" || r.summary != "" {
			t.Errorf("a comment without a log: %s", r.summary)
		}
	})
	t.Run("a shallow clone", func(t *testing.T) {
		r := actionIn(t, changed)
		git(t, r.dir, "push", "-q", "origin", "HEAD:change")
		origin := git(t, r.dir, "remote", "get-url", "origin")
		r.dir = t.TempDir()
		git(t, r.dir, "clone", "-q", "--depth=1", "--branch=change", "file://"+origin, ".")
		r.inputs = map[string]string{"log": "access.log"}
		r.run()
		if commits := git(t, r.dir, "rev-list", "--count", "FETCH_HEAD"); len(r.failed) > 0 || commits != "1" ||
			!strings.Contains(r.summary, "| `search` | 30 / minute | 0 | 0 of 1 | 15 / minute | 5 | 1 of 1 |") {
			t.Errorf("%v failed, %s commits\n%s\n%s", r.failed, commits, r.summary, r.output)
		}
	})
	t.Run("an error", func(t *testing.T) {
		r := actionIn(t, "domain: shop\nlimits: [{ name: search, per: [ip], alow: 15/min }]\n")
		r.inputs = map[string]string{"log": "access.log"}
		r.run()
		data, err := os.ReadFile(r.outputs["sarif"])
		if len(r.failed) != 2 || r.failed[0] != "lint" || r.failed[1] != "replay" || err != nil ||
			!strings.Contains(string(data), "alow") || !strings.Contains(r.output, `did you mean "allow"?`) {
			t.Errorf("%v failed, %v\n%s\n%s", r.failed, err, data, r.output)
		}
	})
	t.Run("new rules, in an odd folder", func(t *testing.T) {
		r := actionIn(t, changed)
		odd := "my $(touch pwned); rules"
		if err := os.Rename(filepath.Join(r.dir, "rules"), filepath.Join(r.dir, odd)); err != nil {
			t.Fatal(err)
		}
		r.inputs = map[string]string{"log": "access.log", "rules": odd, "strict": "false"}
		r.run()
		if _, err := os.Stat(filepath.Join(r.dir, "pwned")); err == nil {
			t.Error("the name of a folder was run")
		}
		if len(r.failed) > 0 || !strings.Contains(r.summary, "| `search` | 15 / minute | 5 | 1 of 1 |") {
			t.Errorf("%v failed\n%s\n%s", r.failed, r.summary, r.output)
		}
	})
}
