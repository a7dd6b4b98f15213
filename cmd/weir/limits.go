package main

import (
	"runtime/debug"

	"github.com/weir-rl/weir/internal/host/load"
)

// mostMemory is limits.memory in bytes.
func (l *limits) mostMemory() int64 {
	if l.memory > 0 {
		return l.memory
	}
	return autoMemory(load.MemorySize(nil), debug.SetMemoryLimit(-1))
}

// autoMemory is the value of limits.memory for auto: an eighth of the memory that the process may
// have. size is that memory as the system reports it, 0 if unknown, and limit the collector's
// memory limit.
func autoMemory(size uint64, limit int64) int64 {
	const unknown, least, most = 2 << 30, 64 << 20, 1 << 30
	if size == 0 {
		size = unknown
	}
	return int64(min(max(min(size, uint64(limit))/8, least), most))
}
