//go:build race

package holder

const raceEnabled = true
