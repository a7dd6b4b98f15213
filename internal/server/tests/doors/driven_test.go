package doors

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// driven is a folder of testdata with programs that the tests drive, and with lists of the packages
// that these need, each at one version.
type driven string

// file is the path of one of its files.
func (p driven) file(name string) string {
	return filepath.Join(servertest.OriginalRoot, "internal", "server", "tests", "doors", "testdata", string(p), name)
}

func (p driven) read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(p.file(name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// copy copies files into a folder.
func (p driven) copy(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), p.read(t, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// name names what a list of packages brings: another list brings something else.
func (p driven) name(list string, data []byte) string {
	sum := sha256.Sum256(data)
	base, _, _ := strings.Cut(strings.ReplaceAll(list, "/", "-"), ".")
	return string(p) + "-" + base + "-" + hex.EncodeToString(sum[:6])
}

// parts returns a folder with the packages of a list (testproc.Parts).
func (p driven) parts(t *testing.T, list string, bring func(dir string) *exec.Cmd) string {
	t.Helper()
	return testproc.Parts(t, p.name(list, p.read(t, list)), bring)
}

// python returns a folder with the packages of requirements.txt.
func (p driven) python(t *testing.T) string {
	t.Helper()
	servertest.Needs(t, "python3")
	const list = "requirements.txt"
	return p.parts(t, list, func(dir string) *exec.Cmd {
		return testproc.PipInstall(t, dir, strings.Fields(string(p.read(t, list)))...)
	})
}

// node returns a folder with the packages of package-lock.json, in node_modules. No script of a
// package runs.
func (p driven) node(t *testing.T) string {
	t.Helper()
	servertest.Needs(t, "node")
	const list = "package-lock.json"
	return p.parts(t, list, func(dir string) *exec.Cmd {
		p.copy(t, dir, "package.json", list)
		cmd := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
		cmd.Dir = dir
		return cmd
	})
}

// java returns the paths of the jars of pom.xml.
func (p driven) java(t *testing.T) []string {
	t.Helper()
	servertest.Needs(t, "java")
	const list = "pom.xml"
	data := p.read(t, list)
	jars, err := filepath.Glob(filepath.Join(testproc.Jars(t, p.name(list, data), string(data)), "*.jar"))
	if err != nil {
		t.Fatal(err)
	}
	return jars
}
