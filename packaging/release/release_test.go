package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"aead.dev/minisign"
)

const key = "weir.key"

// arch is this machine's architecture, as Go and Debian call it, and rpmArch as RPM does.
const arch = runtime.GOARCH

var rpmArch = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]

// folder holds what the tests share; TestMain removes it.
var folder string

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "weir-release-test"); err != nil {
		panic(err)
	}
	status := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(status)
}

// made is a release of this machine's architecture, made once and signed, by a key without a
// password: each use of one takes a GiB of memory.
var made = sync.OnceValues(func() (*release, error) {
	r := &release{version: "0.1.0", in: filepath.Join(folder, "in"), out: filepath.Join(folder, "out"),
		targets: []target{{"linux", arch}}}
	public, secret, err := minisign.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	text, err := secret.MarshalText()
	if err != nil {
		return nil, err
	}
	publicText, err := public.MarshalText()
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{key: text, "weir.pub": publicText} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{r.in, r.out} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
	}
	if err := r.build(); err != nil {
		return nil, err
	}
	return r, r.make(filepath.Join(folder, key))
})

func makeRelease(t *testing.T) *release {
	t.Helper()
	r, err := made()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// output runs a tool; a test whose tool is not there is skipped.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is not installed; scripts/install packages brings it", name)
	}
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestSame: the same programs give the same files again, whatever the time of day and the names of
// folders.
func TestSame(t *testing.T) {
	r := makeRelease(t)
	again := *r
	again.out = t.TempDir()
	again.in = filepath.Join(t.TempDir(), "elsewhere")
	if err := os.CopyFS(again.in, os.DirFS(r.in)); err != nil {
		t.Fatal(err)
	}
	if err := again.make(filepath.Join(folder, key)); err != nil {
		t.Fatal(err)
	}
	one, err := r.sums()
	if err != nil {
		t.Fatal(err)
	}
	two, err := again.sums()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(one, two) || len(one) < 8 {
		t.Errorf("one:\n%s\ntwo:\n%s", one, two)
	}
}

// TestSums: SHA256SUMS has each file, sha256sum checks it, and minisign its signature, but neither
// a changed one nor one of another key.
func TestSums(t *testing.T) {
	r := makeRelease(t)
	check := exec.Command("sha256sum", "-c", "--quiet", "SHA256SUMS")
	check.Dir = r.out
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	sums, err := os.ReadFile(filepath.Join(r.out, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(r.out)
	if lines := bytes.Count(sums, []byte("\n")); err != nil || lines != len(files)-2 {
		t.Errorf("SHA256SUMS has %d of %d files beside itself and its signature (%v)", lines, len(files), err)
	}
	signature, err := os.ReadFile(filepath.Join(r.out, "SHA256SUMS.minisig"))
	if err != nil {
		t.Fatal(err)
	}
	public, err := minisign.PublicKeyFromFile(filepath.Join(folder, "weir.pub"))
	if err != nil {
		t.Fatal(err)
	}
	if !minisign.Verify(public, sums, signature) {
		t.Error("the signature does not hold")
	}
	if minisign.Verify(public, append(sums, ' '), signature) {
		t.Error("the signature holds for another text")
	}
	out := output(t, "minisign", "-V", "-p", filepath.Join(folder, "weir.pub"), "-m", filepath.Join(r.out, "SHA256SUMS"))
	if want := "weir 0.1.0, commit " + r.commit; !strings.Contains(out, want) {
		t.Errorf("minisign says %s, without %q", out, want)
	}
}

// TestNoPassword: a key with a password signs with it alone.
func TestNoPassword(t *testing.T) {
	const password = "swordfish"
	public, secret, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := minisign.EncryptKey(password, secret)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), key)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, given := range []string{"", "wrong", password} {
		t.Setenv("MINISIGN_PASSWORD", given)
		r := &release{version: "0.1.0", out: t.TempDir()}
		if err := r.writeSums(file); (err == nil) != (given == password) {
			t.Errorf("with %q: %v", given, err)
		}
		sums, err := os.ReadFile(filepath.Join(r.out, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		signature, _ := os.ReadFile(filepath.Join(r.out, "SHA256SUMS.minisig")) // empty if it is not there
		if signed := minisign.Verify(public, sums, signature); signed != (given == password) {
			t.Errorf("with %q it is signed: %t", given, signed)
		}
	}
}

// TestProvenance: the statement names each file with its hash, the commit, and the Go that built
// the programs.
func TestProvenance(t *testing.T) {
	r := makeRelease(t)
	data, err := os.ReadFile(r.file("provenance.intoto.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s statement
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	sums, err := r.sums()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range sums {
		named := slices.ContainsFunc(s.Subject, func(s subject) bool {
			return s.Name == f.name && s.Digest["sha256"] == f.sha256
		})
		// It cannot name itself and what is made of it.
		if own := strings.HasPrefix(f.name, "SHA256SUMS") || strings.HasSuffix(f.name, "intoto.json"); named == own {
			t.Errorf("the statement has %s: %t", f.name, named)
		}
	}
	build := s.Predicate.BuildDefinition
	if got := build.ResolvedDepends[0].Digest["gitCommit"]; got != r.commit || len(got) != 40 {
		t.Errorf("the commit is %q", got)
	}
	if !strings.HasPrefix(build.InternalParameters["go"], "go1.") {
		t.Errorf("the Go is %q", build.InternalParameters["go"])
	}
}

// TestArchive: the archive has the program, which runs and says what it is, and all that describes
// it.
func TestArchive(t *testing.T) {
	r := makeRelease(t)
	dir := t.TempDir()
	output(t, "tar", "-xzf", r.file("linux_"+arch+".tar.gz"), "-C", dir)
	top := filepath.Join(dir, "weir_0.1.0_linux_"+arch)
	for _, name := range []string{"LICENSE", "THIRD-PARTY", "man/weir.1", "man/weir-serve.1", "completions/weir.bash",
		"completions/_weir", "completions/weir.fish"} {
		if info, err := os.Stat(filepath.Join(top, name)); err != nil || info.Size() < 200 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if out := output(t, filepath.Join(top, "weir"), "version"); !strings.HasPrefix(out, "weir v0.1.0 (go1.") ||
		!strings.Contains(out, "commit "+r.commit[:12]) {
		t.Errorf("it says %q", out)
	}
	checkThirdParty(t, readFile(t, filepath.Join(top, "THIRD-PARTY")))
}

// TestCompletions: a shell completes a command by the file of the archive.
func TestCompletions(t *testing.T) {
	r := makeRelease(t)
	script := fmt.Sprintf(`set -e
source %s
weir() { %s "$@"; }
words=() COMP_WORDS=(weir ver) COMP_CWORD=1 COMP_LINE='weir ver' COMP_POINT=8
_get_comp_words_by_ref() { cur=ver prev=weir words=(weir ver) cword=1; }
__ltrim_colon_completions() { :; }
compopt() { :; }
__start_weir
printf '%%s\n' "${COMPREPLY[@]}"`, filepath.Join(r.in, "completions", "weir.bash"), r.program(r.targets[0]))
	out := output(t, "bash", "-c", script)
	if got := strings.Fields(out); len(got) < 2 || got[0] != "verdicts" || !slices.Contains(got, "version") {
		t.Errorf("weir ver completes to %q", out)
	}
}

// entriesOf are the files of a tar, by name.
func entriesOf(t *testing.T, r io.Reader) map[string]*tar.Header {
	t.Helper()
	all := map[string]*tar.Header{}
	for files := tar.NewReader(r); ; {
		h, err := files.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all[h.Name] = h
	}
}

// unzipped opens a file that gzip has packed.
func unzipped(t *testing.T, name string) io.Reader {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOneTime: nothing in the archive has another time than the commit, or an owner of this
// machine.
func TestOneTime(t *testing.T) {
	r := makeRelease(t)
	for name, h := range entriesOf(t, unzipped(t, r.file("linux_"+arch+".tar.gz"))) {
		if !h.ModTime.Equal(r.time) || h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s: %v of %d:%d %s", name, h.ModTime, h.Uid, h.Gid, h.Uname)
		}
	}
}

// TestDocsVersion: the pages make the version that the changelog has.
func TestDocsVersion(t *testing.T) {
	read := func(name string) string { return readFile(t, filepath.Join(root, name)) }
	_, section, _ := strings.Cut(read("CHANGELOG.md"), "\n## ")
	version, _, _ := strings.Cut(section, " ")
	for _, page := range []string{"README.md", "docs/start/installing.md"} {
		text := read(page)
		for _, want := range []string{"scripts/release " + version + " dist", "dist/weir_" + version + "_linux_amd64.tar.gz",
			"dist/weir_" + version + "_image_amd64.tar"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s has no %q", page, want)
			}
		}
	}
}
