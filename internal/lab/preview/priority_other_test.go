//go:build !linux

package preview

// noLowering is why the lowest priority cannot be had here; nil if it can.
func noLowering() error { return nil }
