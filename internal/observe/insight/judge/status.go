package judge

// AnsweredWell reports what the status of an answer to an admitted request says about the client:
// 2xx and 3xx speak for it, 4xx against it. Others tell nothing: a 5xx is the fault of the service,
// and a 429 is the answer of another limiter.
func AnsweredWell(status int) (well, tells bool) {
	well = status >= 200 && status < 400
	return well, well || status >= 400 && status < 500 && status != 429
}

// A minute with so many failed answers, and such a share of them, counts as saturated.
const (
	fewestFailed = 5
	failedShare  = 0.05
)

// Failing reports whether the service was saturated in a minute in which failed of all answers had
// status 500 or above.
func Failing(failed, all int) bool {
	return failed >= fewestFailed && float64(failed) >= failedShare*float64(all)
}
