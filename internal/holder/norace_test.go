//go:build !race

package holder

const raceEnabled = false
