//go:build !race

package resp

// raceEnabled says that the race detector is on.
const raceEnabled = false
