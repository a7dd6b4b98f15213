package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// SmallDisk returns a folder on a disk of its own of so many bytes, for a tablespace. The error
// says why there is none: it takes CAP_SYS_ADMIN.
func (s *Server) SmallDisk(bytes int) (string, error) {
	s.T.Helper()
	dir := filepath.Join(s.Dir, "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		s.T.Fatal(err)
	}
	size := fmt.Sprintf("size=%d,mode=0700", bytes)
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", size, "none", dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	s.disks = append(s.disks, dir)
	if err := s.owner.own(dir); err != nil {
		s.T.Fatal(err)
	}
	return dir, nil
}

// BoundFiles bounds the bytes of each file that the server writes, until it is called with 0. The
// last write before the bound is a short one, as on a disk that becomes full, unless the bound is a
// multiple of 8 KiB. A bound must be above 16 MiB, the size of a file of the write-ahead log. It
// needs only the rights of the server's user.
func (s *Server) BoundFiles(bytes int) {
	s.T.Helper()
	bound := "unlimited"
	if bytes > 0 {
		bound = strconv.Itoa(bytes)
	}
	// Processes that the server starts from now on have the bound of the server. A program of its
	// user sets it: to do so for another user, root needs CAP_SYS_RESOURCE.
	for _, pid := range append([]int{s.PID()}, s.Children()...) {
		cmd := exec.Command("prlimit", "--pid", strconv.Itoa(pid), "--fsize="+bound+":")
		s.owner.run(cmd)
		if out, err := cmd.CombinedOutput(); err != nil && testproc.Runs(pid) {
			s.T.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
}
