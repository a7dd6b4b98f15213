//go:build linux && race

package quickio

import "syscall"

const supported = true

// The race detector has to know which memory a system call reads and writes, as with package
// syscall. All else is the same.

func read(fd uintptr, p []byte) (int, syscall.Errno) { return told(syscall.Read(int(fd), p)) }

func write(fd uintptr, p []byte) (int, syscall.Errno) { return told(syscall.Write(int(fd), p)) }

func told(n int, err error) (int, syscall.Errno) {
	errno, _ := err.(syscall.Errno) // package syscall returns no other errors
	return n, errno
}
