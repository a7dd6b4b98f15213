package main

import "time"

// setBoardPatience changes boardPatience for the tests of whole servers, and returns what it was.
func setBoardPatience(d time.Duration) (before time.Duration) {
	before, boardPatience = boardPatience, d
	return before
}
