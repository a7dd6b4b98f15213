//go:build !linux

package server

import "time"

// monotonic is 0 where there is no systemd to ask for it.
func monotonic() time.Duration { return 0 }
