//go:build !race

package effort

// Detector says whether the race detector is compiled in.
const Detector = false
