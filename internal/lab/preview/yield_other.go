//go:build !linux

package preview

import "runtime"

// yield lets goroutines that wait go first.
func yield() { runtime.Gosched() }
