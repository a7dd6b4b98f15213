package store

// LastingError is an error that does not pass by itself: the server is too old, the user lacks a
// right, a name or an encoding is wrong. Any method of a store may return it, so that an operator
// learns what to do. Ask for it with errors.As.
type LastingError struct {
	// Advice is one sentence without a full stop: the fault, its place, and the remedy. It holds no
	// credentials.
	Advice string
	Err    error // the server's answer
}

// Error returns the advice, and the server's answer.
func (e *LastingError) Error() string { return e.Advice + " (" + e.Err.Error() + ")" }

// Unwrap returns Err.
func (e *LastingError) Unwrap() error { return e.Err }
