package cassandratest

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMounts(t *testing.T) {
	const mounts = "/dev/vda / ext4 rw,relatime 0 0\nnone /with\\040blank tmpfs rw 0 0\n"
	for dir, want := range map[string]bool{"/": true, "/with blank": true, "/with": false, "/tmp": false} {
		if got := isMount(mounts, dir); got != want {
			t.Errorf("%s: %v, want %v", dir, got, want)
		}
	}
	// As in a chroot.
	if isMount("proc /proc proc rw 0 0\n", "/") {
		t.Error("a root that is no mount is found")
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	above, err := mountPoint(filepath.Dir(dir))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := mountPoint(dir); err != nil || got != above {
		t.Errorf("%s is on %s (%v), and the folder above it on %s", dir, got, err, above)
	}
	if got, err := mountPoint("/"); err != nil || got != "/" {
		t.Errorf("%s, %v", got, err)
	}
}
