//go:build unix

package rulesource

import (
	"io/fs"
	"syscall"
)

// inode identifies the file itself, so that one that was renamed over another shows even if size
// and time agree.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}
