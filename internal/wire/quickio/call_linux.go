//go:build linux && !race

package quickio

import (
	"syscall"
	"unsafe"
)

const supported = true

// read reads into p, which is not empty, from a descriptor that does not block.
func read(fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)))
	return int(n), errno
}

// write writes p, which is not empty, to a descriptor that does not block.
func write(fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITE, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)))
	return int(n), errno
}
