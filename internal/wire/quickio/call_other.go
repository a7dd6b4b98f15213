//go:build !linux

package quickio

import "syscall"

const supported = false

func read(uintptr, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }

func write(uintptr, []byte) (int, syscall.Errno) { return 0, syscall.ENOTSUP }
