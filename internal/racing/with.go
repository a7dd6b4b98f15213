//go:build race

package racing

// Detector says whether the race detector is compiled in.
const Detector = true
