package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// weirOutput runs the program, and returns its exit status and all that it wrote.
func weirOutput(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	status := Run(t.Context(), args, nil, strings.NewReader(""), &out, &out)
	return status, out.String()
}

// What help shows of rules stands in it, is without an error or a warning, and passes its own test.
func TestHelpRules(t *testing.T) {
	status, out := weirOutput(t, "help", "rules")
	if status != 0 || !strings.Contains(out, indented(helpRules)) || !strings.Contains(out, indented(helpTest)) {
		t.Fatalf("exit status %d\n%s", status, out)
	}
	for line := range strings.Lines(out) {
		if len(strings.TrimSpace(line)) > 120 {
			t.Errorf("a long line: %s", line)
		}
	}
	// It names pages that there are.
	for _, page := range []string{"reference/rules.md", "start/choosing.md"} {
		if _, err := os.Stat(filepath.Join(servertest.RepositoryRoot(t), "docs", page)); err != nil ||
			!strings.Contains(out, docsURL+page) {
			t.Errorf("%s: %v", page, err)
		}
	}
	if _, out := weirOutput(t, "--help"); !strings.Contains(out, "weir help rules") {
		t.Errorf("weir --help does not tell of it:\n%s", out)
	}
	t.Chdir(t.TempDir())
	if err := os.Mkdir("rules", 0o700); err != nil {
		t.Fatal(err)
	}
	servertest.WriteRules(t, "rules/shop.yaml", helpRules)
	servertest.WriteRules(t, "rules/shop_test.yaml", helpTest)
	if status, out := weirOutput(t, "test", "rules"); status != 0 {
		t.Errorf("test: exit status %d\n%s", status, out)
	}
	if status, out := weirOutput(t, "lint", "--strict", "rules"); status != 0 {
		t.Errorf("lint: exit status %d\n%s", status, out)
	}
}

// Every command that people call shows how it is called, by lines that it takes.
func TestExamplesOfCommands(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		switch name := strings.TrimPrefix(cmd.CommandPath(), "weir "); {
		case !cmd.Runnable(), cmd.Hidden, cmd.Name() == "weir", cmd.Name() == "help",
			strings.HasPrefix(name, "completion"), name == "version":
			return
		}
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
			return
		}
		for line := range strings.Lines(cmd.Example) {
			checkExample(t, cmd, strings.TrimSpace(line))
		}
	}
	walk(newRootCommand(nil))
}

// checkExample checks that an example, which may be part of a pipe, calls cmd or a command below it
// with flags that this has.
func checkExample(t *testing.T, cmd *cobra.Command, line string) {
	t.Helper()
	_, call, ok := strings.Cut(" "+line, " weir ")
	if !ok {
		t.Errorf("%s: no call in %q", cmd.CommandPath(), line)
		return
	}
	call, _, _ = strings.Cut(call, " > ")
	call, _, _ = strings.Cut(call, "  # ")
	words := shellWords(call)
	found, rest, err := newRootCommand(nil).Find(words)
	if err != nil || !strings.HasPrefix(found.CommandPath()+" ", cmd.CommandPath()+" ") {
		t.Errorf("%s: %q calls %v, %v", cmd.CommandPath(), line, found, err)
		return
	}
	if err := found.ParseFlags(rest); err != nil {
		t.Errorf("%s: %q: %v", cmd.CommandPath(), line, err)
	}
	if check := found.Args; check != nil {
		if err := check(found, found.Flags().Args()); err != nil {
			t.Errorf("%s: %q: %v", cmd.CommandPath(), line, err)
		}
	}
}

// shellWords splits a line as a shell does, as far as examples need it.
func shellWords(line string) (words []string) {
	quoted := strings.Split(line, `"`)
	word := ""
	for i, part := range quoted {
		if i%2 == 1 {
			word += part
			continue
		}
		fields := strings.Split(part, " ")
		for j, f := range fields {
			if j > 0 && word != "" {
				words, word = append(words, word), ""
			}
			word += f
		}
	}
	if word != "" {
		words = append(words, word)
	}
	return words
}
