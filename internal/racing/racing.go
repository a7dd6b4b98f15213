// Package racing tells tests whether the race detector is compiled in. It makes everything several
// times as slow, so that a test with many steps makes fewer with it: enough to find races.
// scripts/test runs such a test once more without the detector, with all of its steps.
package racing
