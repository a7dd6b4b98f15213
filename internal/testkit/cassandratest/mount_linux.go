package cassandratest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// checkMount returns why Java would not find the file system that a folder is on; nil if it does.
// Without that Cassandra does not start ("Unable check disk space"). Java goes up from the folder
// while the device is the same, and looks up the place it reaches in /proc/mounts. In a chroot
// whose root is no mount there is no such line.
func checkMount(dir string) error {
	point, err := mountPoint(dir)
	if err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return fmt.Errorf("no file systems that Java could find: %w", err)
	}
	if !isMount(string(mounts), point) {
		return fmt.Errorf(
			"/proc/mounts has no line for %s, the file system of %s, so that Cassandra finds no disk; in a chroot, mount its root on itself (mount --bind ROOT ROOT) before you enter it", point, dir)
	}
	return nil
}

// mountPoint returns the highest folder above dir on the same device.
func mountPoint(dir string) (string, error) {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	device := func(path string) (uint64, error) {
		var st unix.Stat_t
		err := unix.Stat(path, &st)
		return uint64(st.Dev), err
	}
	own, err := device(dir)
	if err != nil {
		return "", err
	}
	for dir != "/" {
		above := filepath.Dir(dir)
		of, err := device(above)
		if err != nil {
			return "", err
		}
		if of != own {
			break
		}
		dir = above
	}
	return dir, nil
}

// isMount reports whether a folder is a mount of /proc/mounts, where blanks in names are escaped.
func isMount(mounts, dir string) bool {
	escaped := strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(dir)
	for line := range strings.Lines(mounts) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[1] == escaped {
			return true
		}
	}
	return false
}
