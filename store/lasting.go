package store

// LastingError is an error that does not pass by itself: the server is too old, the user lacks a
// right, a name or an encoding is wrong. A store returns it where it can tell, from any method, so
// that an operator hears what to do. Ask for it with errors.As.
type LastingError struct {
	// Advice is one sentence without a full stop: what is wrong, and where, and what to do about
	// it. It holds no credentials.
	Advice string
	Err    error // what the server has said
}

// Error returns the advice, and what the server has said.
func (e *LastingError) Error() string { return e.Advice + " (" + e.Err.Error() + ")" }

// Unwrap returns Err.
func (e *LastingError) Unwrap() error { return e.Err }
