package main

// countIs is a number of things with the verb: 1 key is, 2 keys are.
func countIs(n int, noun string) string {
	if n == 1 {
		return count(n, noun) + " is"
	}
	return count(n, noun) + " are"
}
