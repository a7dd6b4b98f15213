package server

import "time"

// SetBoardPatience changes boardPatience for the tests of whole servers, and returns what it was.
func SetBoardPatience(d time.Duration) (before time.Duration) {
	before, boardPatience = boardPatience, d
	return before
}
