package main

// ballastSize is how much the heap may grow beyond its long-lived contents before the garbage
// collector runs.
const ballastSize = 64 << 20

// ballastPiece is the size of one piece of the ballast. Go clears a large piece that it gets from
// the system unless it knows that it is zero, and a piece of 64 MiB it does clear: then it would
// take up all that memory, and 30 ms of the start.
const ballastPiece = 1 << 20

// ballast returns memory that is never touched. It takes no room, but the garbage collector counts
// it and runs only when the heap has doubled. Without it, a server that holds a few MB would run
// the collector dozens of times a second, at a fifth of its processor time. ballast is nil if GOGC
// configures the collector, or if the ballast would be a large part of limit, the collector's
// memory limit (GOMEMLIMIT).
func ballast(lookup func(string) (string, bool), limit int64) [][]byte {
	if _, set := lookup("GOGC"); set || limit < 8*ballastSize {
		return nil
	}
	pieces := make([][]byte, ballastSize/ballastPiece)
	for i := range pieces {
		pieces[i] = make([]byte, ballastPiece)
	}
	return pieces
}
