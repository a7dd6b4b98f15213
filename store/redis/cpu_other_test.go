//go:build !unix

package redis_test

import "time"

func processTime() time.Duration { return 0 }
