//go:build race

package regions

import "runtime"

// Two goroutines of a synctest bubble that find due timers at the same moment break the race
// detector, and the process ends with SIGSEGV (go.dev/issue/78156). On one processor no two do. The
// detector needs no second one to find a race.
func init() { runtime.GOMAXPROCS(1) }
