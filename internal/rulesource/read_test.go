package rulesource

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tree writes files under a new temporary folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		write(t, filepath.Join(dir, filepath.FromSlash(name)), data)
	}
	return dir
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, link string) {
	t.Helper()
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
}

func readNames(t *testing.T, path string) []string {
	t.Helper()
	sources, err := ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, s := range sources {
		names = append(names, s.Name+"="+string(s.Data))
	}
	return names
}

func TestReadDir(t *testing.T) {
	dir := tree(t, map[string]string{
		"b.yaml": "b", "a.yml": "a", "sub/c.yaml": "c", "a_test.yaml": "no", "x_test.yml": "no", ".hidden.yaml": "no",
		".git/d.yaml": "no", "notes.txt": "no", "yaml": "no", "sub/deep/er/z.yaml": "z", "a-b.yaml": "ab",
	})
	want := []string{"a-b.yaml=ab", "a.yml=a", "b.yaml=b", "sub/c.yaml=c", "sub/deep/er/z.yaml=z"}
	if got := readNames(t, dir); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := readNames(t, filepath.Join(dir, "notes.txt")), []string{"notes.txt=no"}; !slices.Equal(got, want) {
		t.Errorf("single file: got %q, want %q", got, want)
	}
	if got := readNames(t, t.TempDir()); len(got) != 0 {
		t.Errorf("empty folder: got %q", got)
	}
	if _, err := ReadDir(filepath.Join(dir, "absent")); !os.IsNotExist(err) {
		t.Errorf("absent folder: got %v", err)
	}
}

// A Kubernetes ConfigMap is a folder of links into ..data, itself a link to a folder with a date in
// its name.
func TestReadDirConfigMap(t *testing.T) {
	dir := tree(t, map[string]string{"..2026_01_01/shop.yaml": "one"})
	symlink(t, "..2026_01_01", filepath.Join(dir, "..data"))
	symlink(t, filepath.Join("..data", "shop.yaml"), filepath.Join(dir, "shop.yaml"))
	if got, want := readNames(t, dir), []string{"shop.yaml=one"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestReadDirLinks(t *testing.T) {
	other := tree(t, map[string]string{"o.yaml": "o"})
	dir := tree(t, map[string]string{"sub/a.yaml": "a"})
	symlink(t, other, filepath.Join(dir, "other"))
	symlink(t, "..", filepath.Join(dir, "sub", "loop"))
	symlink(t, "nowhere", filepath.Join(dir, "dangling"))
	if got, want := readNames(t, dir), []string{"other/o.yaml=o", "sub/a.yaml=a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	symlink(t, "nowhere", filepath.Join(dir, "gone.yaml"))
	if _, err := ReadDir(dir); !os.IsNotExist(err) {
		t.Errorf("dangling rule file: got %v, want an error that says so", err)
	}
}

func TestReadDirBounds(t *testing.T) {
	deep := t.TempDir()
	write(t, filepath.Join(deep, strings.Repeat("d/", maxDepth+1), "a.yaml"), "a")
	if _, err := ReadDir(deep); err == nil || !strings.Contains(err.Error(), "deep") {
		t.Errorf("deep folders: got %v", err)
	}
	large := t.TempDir()
	write(t, filepath.Join(large, "a.yaml"), "")
	if err := os.Truncate(filepath.Join(large, "a.yaml"), maxFileSize+1); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadDir(large); err == nil || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("large file: got %v", err)
	}
}
