//go:build !unix

package top

import "time"

// processTime is not known here: rounds then come at their least distance.
func processTime() time.Duration { return 0 }
