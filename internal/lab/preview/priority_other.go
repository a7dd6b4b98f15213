//go:build !linux

package preview

import "runtime"

// yield lets waiting goroutines go first.
func yield() { runtime.Gosched() }
