package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// scripts is the folder of scripts of this module.
var scripts = filepath.Join("..", "..", "..", "scripts")

// mostScripts is how many files and folders scripts/ may hold.
const mostScripts = 10

// TestScripts: a new script is a line of scripts/soak or of scripts/measure, or a program beside
// what it serves.
func TestScripts(t *testing.T) {
	all, err := os.ReadDir(scripts)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) > mostScripts {
		t.Errorf("scripts/ holds %d files and folders, of at most %d: %v", len(all), mostScripts, all)
	}
}

// bed is scripts/test in a folder where whatever it calls is replaced by a script: go writes down
// its arguments if it is called to test, and the others do nothing.
type bed struct{ bash, root, bin string }

func newBed(t *testing.T) *bed {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("scripts/test --all is for Debian")
	}
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	root, bin := t.TempDir(), t.TempDir()
	script, err := os.ReadFile(filepath.Join(scripts, "test"))
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
	for _, folder := range []string{"scripts/tools", "internal/testkit/collector", "benchmarks", "docs/figures",
		"examples/middleware", "packaging/check", "packaging/release"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	quiet := "#!" + bash + "\n"
	write(filepath.Join(bin, "df"),
		quiet+
			`printf 'Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 9 9 %s 9%% %s\n' "${FREE:-99999999}" "$2"`)
	for _, command := range []string{"curl", "git", "gofmt", "shellcheck"} {
		write(filepath.Join(bin, command), quiet)
	}
	write(filepath.Join(root, "scripts", "install"), quiet)
	write(filepath.Join(bin, "go"), quiet+`[ "$1" != test ] || echo "$*" >>"$CALLS"`)
	for _, linter := range []string{"misspell", "revive", "staticcheck"} {
		write(filepath.Join(root, ".cache", "tools", linter), quiet)
	}
	write(filepath.Join(root, ".cache", "tools", "progress"), quiet+"cat >/dev/null")
	return &bed{bash, root, bin}
}

// run runs scripts/test, and returns what it wrote and the calls of go test.
func (b *bed) run(t *testing.T, arguments []string, environ ...string) (out, calls string, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "calls")
	cmd := exec.Command(b.bash, append([]string{filepath.Join(b.root, "scripts", "test")}, arguments...)...)
	cmd.Env = append(append(os.Environ(), "PATH="+b.bin+":"+os.Getenv("PATH"), "CALLS="+file, "CI="), environ...)
	text, err := cmd.CombinedOutput()
	called, _ := os.ReadFile(file)
	return string(text), string(called), err
}

// TestScriptDisk: on a disk with little room scripts/test says so, and tests nothing.
func TestScriptDisk(t *testing.T) {
	b := newBed(t)
	for free, runs := range map[int]bool{4 << 20: true, 4<<20 - 1: false} {
		out, calls, err := b.run(t, nil, fmt.Sprint("FREE=", free), "TMPDIR="+b.bin)
		if told := strings.Contains(out, "the disk of "+b.bin+" has 4095 MB free"); (err == nil) != runs ||
			(calls != "") != runs || told == runs {
			t.Errorf("with %d KB free: %v, %q\n%s", free, err, calls, out)
		}
	}
}

// TestScriptPackages: scripts/test tests all packages if its arguments name none, and otherwise
// those that they name, at both levels.
func TestScriptPackages(t *testing.T) {
	b := newBed(t)
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
		for _, level := range []string{"", "--all"} {
			out, got, err := b.run(t, strings.Fields(level+" "+arguments))
			if err != nil {
				t.Fatalf("%s %s: %v\n%s", level, arguments, err, out)
			}
			if strings.Contains(got, "./...") != all || !strings.HasSuffix(got, " "+arguments+"\n") ||
				strings.Contains(got, "-race") != (level == "--all") {
				t.Errorf("scripts/test %s %s calls: go %s", level, arguments, got)
			}
		}
	}
}
