//go:build !unix

package benchmarks

import (
	"testing"
	"time"
)

func cpuTime() time.Duration              { return 0 }
func reportCPU(*testing.B, time.Duration) {}
