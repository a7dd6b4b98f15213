package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestScriptPackages: scripts/test tests all packages if its arguments name none, and otherwise those
// that they name, at both levels. What it calls is replaced by a script that writes down how it was
// called.
func TestScriptPackages(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("scripts/test --all is for Debian")
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	root, bin := t.TempDir(), t.TempDir()
	script, err := os.ReadFile(filepath.Join("..", "..", "..", "scripts", "test"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(root, "scripts", "test"), string(script))
	for _, folder := range []string{"scripts/tools", "internal/testkit/collector", "benchmarks", "examples/middleware", "packaging/check"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	quiet := "#!" + bash + "\n"
	for _, command := range []string{"curl", "git", "gofmt", "shellcheck"} {
		write(filepath.Join(bin, command), quiet)
	}
	write(filepath.Join(root, "scripts", "install"), quiet)
	write(filepath.Join(bin, "go"), quiet+`[ "$1" != test ] || echo "$*" >>"$CALLS"`)
	for _, linter := range []string{"misspell", "revive", "staticcheck"} {
		write(filepath.Join(root, ".cache", "tools", linter), quiet)
	}
	write(filepath.Join(root, ".cache", "tools", "progress"), quiet+"cat >/dev/null")

	for arguments, all := range map[string]bool{
		"-run TestX":                      true,
		"-run TestX/sub":                  true,
		"-v -count 1 -run=./x":            true,
		"-run TestX -args ./rule":         true,
		"-v":                              true,
		"-run":                            true,
		".":                               false,
		"./rule":                          false,
		"rule/...":                        false,
		"-v rule/...":                     false,
		"-run TestX .":                    false,
		"--run TestX --v ./rule":          false,
		"github.com/weir-rl/weir/rule":    false,
		"-short -count=1 keys_test.go":    false,
		"-run TestX ../weir/rule -args x": false,
	} {
		calls := filepath.Join(t.TempDir(), "calls")
		for _, level := range []string{"", "--all"} {
			_ = os.Remove(calls)
			cmd := exec.Command(bash, slices.Concat([]string{filepath.Join(root, "scripts", "test")}, strings.Fields(level), strings.Fields(arguments))...)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "CALLS="+calls, "CI=")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s %s: %v\n%s", level, arguments, err, out)
			}
			got, err := os.ReadFile(calls)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(got), "./...") != all || !strings.HasSuffix(string(got), " "+arguments+"\n") ||
				strings.Contains(string(got), "-race") != (level == "--all") {
				t.Errorf("scripts/test %s %s calls: go %s", level, arguments, got)
			}
		}
	}
}
