//go:build !unix

package preview

import "time"

// lower does nothing: what this system knows of priorities is not what a preview needs.
func lower(int) error { return nil }

func giveUpFirst() {}

// keepFiles has nothing to do: here files are only inherited by name.
func keepFiles() {}

// processorTime is not known.
func processorTime() (time.Duration, bool) { return 0, false }
