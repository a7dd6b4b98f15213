//go:build race

package weir_test

// raceDetector makes everything several times as slow.
const raceDetector = true
