package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// installed are the files of both packages; the manual pages come to these.
var installed = []string{
	"/etc/weir/weir.yaml",
	"/usr/bin/weir",
	"/usr/lib/systemd/system/weir.service",
	"/usr/share/bash-completion/completions/weir",
	"/usr/share/doc/weir/THIRD-PARTY",
	"/usr/share/doc/weir/drop-ins/nftables.conf",
	"/usr/share/doc/weir/drop-ins/ports.conf",
	"/usr/share/fish/vendor_completions.d/weir.fish",
}

// checkFiles: a package holds these files, manual pages, and nothing else.
func checkFiles(t *testing.T, listed, own []string) {
	t.Helper()
	pages := 0
	var others []string
	for _, name := range listed {
		if strings.HasPrefix(name, "/usr/share/man/man1/weir") && strings.HasSuffix(name, ".1.gz") {
			pages++
		} else {
			others = append(others, name)
		}
	}
	want := slices.Sorted(slices.Values(slices.Concat(installed, own)))
	if slices.Sort(others); !slices.Equal(others, want) || pages < 30 {
		t.Errorf("it holds %q and %d manual pages, want %q", others, pages, want)
	}
}

// TestDeb: what the package says of itself and holds.
func TestDeb(t *testing.T) {
	deb := filepath.Join(makeRelease(t).out, "weir_0.1.0-1_"+arch+".deb")
	control := output(t, "dpkg-deb", "--field", deb)
	for _, line := range []string{"Package: weir", "Version: 0.1.0-1", "Architecture: " + arch,
		"Recommends: ca-certificates"} {
		if !strings.Contains(control, line+"\n") {
			t.Errorf("no %q in\n%s", line, control)
		}
	}
	if strings.Contains(control, "Depends:") {
		t.Errorf("a static program depends on something:\n%s", control)
	}
	var files []string
	for line := range strings.Lines(output(t, "dpkg-deb", "--contents", deb)) {
		words := strings.Fields(line)
		if name := strings.TrimPrefix(words[5], "."); !strings.HasSuffix(name, "/") {
			files = append(files, name)
			if words[1] != "root/root" || !strings.HasPrefix(line, "-rw") || len(words) != 6 {
				t.Errorf("%s", line)
			}
		}
	}
	checkFiles(t, files, []string{"/usr/share/doc/weir/copyright", "/usr/share/zsh/vendor-completions/_weir"})
	dir := t.TempDir()
	output(t, "dpkg-deb", "-x", deb, dir)
	checkThirdParty(t, readFile(t, filepath.Join(dir, "usr/share/doc/weir/THIRD-PARTY")))
	copyright := readFile(t, filepath.Join(dir, "usr/share/doc/weir/copyright"))
	if !strings.Contains(copyright, "/usr/share/doc/weir/THIRD-PARTY") {
		t.Errorf("the copyright does not point to the licences of others:\n%s", copyright)
	}
}

// TestRPM: what the package says of itself and holds.
func TestRPM(t *testing.T) {
	rpm := filepath.Join(makeRelease(t).out, "weir-0.1.0-1."+rpmArch+".rpm")
	said := output(t, "rpm", "-qp", "--queryformat", "%{NAME} %{VERSION} %{ARCH} %{LICENSE} %{BUILDHOST}\n", rpm)
	if want := "weir 0.1.0 " + rpmArch + " Apache-2.0 localhost\n"; said != want {
		t.Errorf("it says %q, want %q", said, want)
	}
	checkFiles(t, strings.Fields(output(t, "rpm", "-qpl", rpm)),
		[]string{"/usr/share/licenses/weir/LICENSE", "/usr/share/zsh/site-functions/_weir"})
	if got := output(t, "rpm", "-qp", "--configfiles", rpm); got != "/etc/weir/weir.yaml\n" {
		t.Errorf("its configuration is %q", got)
	}
	output(t, "rpm", "-K", "--nosignature", rpm)
}

// debs are the package, and one of the next version whose weir.yaml differs.
func debs(t *testing.T) (first, next string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("dpkg needs root")
	}
	first = filepath.Join(makeRelease(t).out, "weir_0.1.0-1_"+arch+".deb")
	dir := t.TempDir()
	output(t, "dpkg-deb", "-R", first, dir)
	edit(t, filepath.Join(dir, "DEBIAN", "control"), "Version: 0.1.0-1", "Version: 0.1.1-1")
	edit(t, filepath.Join(dir, "etc", "weir", "weir.yaml"), "# Settings of Weir", "# The settings of Weir")
	next = filepath.Join(t.TempDir(), "next.deb")
	output(t, "dpkg-deb", "-Znone", "-b", dir, next)
	return first, next
}

func edit(t *testing.T, file, old, with string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil || bytes.Count(data, []byte(old)) != 1 {
		t.Fatalf("%s has no %q (%v)", file, old, err)
	}
	if err := os.WriteFile(file, bytes.Replace(data, []byte(old), []byte(with), 1), 0o644); err != nil {
		t.Fatal(err)
	}
}

// emptySystem is a root in which dpkg has installed nothing.
type emptySystem struct {
	t    *testing.T
	root string
}

func (s emptySystem) dpkg(args ...string) {
	s.t.Helper()
	// The scripts run in this system and are told of the root, as where no shell is in it.
	cmd := exec.Command("dpkg", append([]string{"--root=" + s.root, "--force-script-chrootless", "--force-not-root",
		"--force-confold"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/sbin:"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("dpkg %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (s emptySystem) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(s.root, name)) // empty if it is not there
	return string(data)
}

// TestDebInstalled: the package is installed, upgraded, removed and purged by dpkg in an empty
// root. What the administrator wrote survives an upgrade and a removal, and a purge leaves nothing
// but rules made by hand. scripts/fresh does the same in a whole Debian, and runs the program.
func TestDebInstalled(t *testing.T) {
	first, next := debs(t)
	s := emptySystem{t, t.TempDir()}
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers"} {
		if err := os.MkdirAll(filepath.Join(s.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"status", "available"} {
		if err := os.WriteFile(filepath.Join(s.root, "var/lib/dpkg", name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.dpkg("-i", first)
	if out := output(t, filepath.Join(s.root, "usr/bin/weir"), "version"); !strings.HasPrefix(out, "weir v0.1.0 ") {
		t.Errorf("the program says %q", out)
	}
	unit := s.read("usr/lib/systemd/system/weir.service")
	if !regexp.MustCompile(`(?m)^ExecStart=/usr/bin/weir serve$`).MatchString(unit) ||
		!strings.HasPrefix(unit, "[Unit]\n") {
		t.Errorf("the unit starts another program:\n%s", unit)
	}
	const enabled = "etc/systemd/system/multi-user.target.wants/weir.service"
	if _, err := os.Lstat(filepath.Join(s.root, enabled)); err != nil {
		t.Errorf("the service is not enabled: %v", err)
	}

	const ours = "# settings of the administrator\n"
	files := map[string]string{
		"etc/weir/weir.yaml":            ours,
		"etc/weir/rules/a.yaml":         "limits: []\n",
		"var/lib/private/weir/snapshot": "counters",
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(s.root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		args []string
		left []string // of files
	}{
		{[]string{"-i", next}, []string{"etc/weir/weir.yaml", "etc/weir/rules/a.yaml", "var/lib/private/weir/snapshot"}},
		{[]string{"-r", "weir"}, []string{"etc/weir/weir.yaml", "etc/weir/rules/a.yaml", "var/lib/private/weir/snapshot"}},
		{[]string{"-P", "weir"}, []string{"etc/weir/rules/a.yaml"}},
	} {
		s.dpkg(step.args...)
		for name, text := range files {
			want := ""
			if slices.Contains(step.left, name) {
				want = text
			}
			if got := s.read(name); got != want {
				t.Errorf("after dpkg %s, %s has %q, want %q", step.args[0], name, got, want)
			}
		}
		_, err := os.Stat(filepath.Join(s.root, "usr/bin/weir"))
		if there := err == nil; there != (step.args[0] == "-i") {
			t.Errorf("after dpkg %s, the program is there: %t", step.args[0], there)
		}
	}
	if _, err := os.Lstat(filepath.Join(s.root, enabled)); err == nil {
		t.Error("the service is enabled after a purge")
	}
}
