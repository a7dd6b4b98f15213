//go:build !unix

package preview

import "time"

// lower does nothing: this system's priorities do not fit a preview.
func lower(int) error { return nil }

func giveUpFirst() {}

// keepFiles does nothing: here files are inherited only by name.
func keepFiles() {}

// processorTime is not known.
func processorTime() (time.Duration, bool) { return 0, false }
