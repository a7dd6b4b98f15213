package load

import (
	"io/fs"
	"os"
)

// MemorySize returns how many bytes of memory this program may have: the least of the limits of its
// control groups (cgroup v2) and the machine's memory; 0 if the system does not report it. A nil
// root is the machine's own.
func MemorySize(root fs.FS) (size uint64) {
	if root == nil {
		root = os.DirFS("/")
	}
	s := system{root: root}
	if data, err := s.read("proc/meminfo"); err == nil {
		size, _, _ = parseMeminfo(data)
		size <<= 10
	}
	for _, g := range s.groups() {
		if limit, limited, err := s.number(g + "/memory.max"); err == nil && limited && limit > 0 &&
			(size == 0 || limit < size) {
			size = limit
		}
	}
	return size
}
