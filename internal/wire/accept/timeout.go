package accept

import (
	"strconv"
	"time"
)

// GRPCTimeout reads the value of grpc-timeout, for how long a client waits for its answer: up to
// eight digits and a unit, as gRPC's protocol over HTTP/2 has it. More than a year is one.
func GRPCTimeout(value string) (timeout time.Duration, ok bool) {
	if len(value) < 2 || len(value) > 9 {
		return 0, false
	}
	last := len(value) - 1
	var unit time.Duration
	switch value[last] {
	case 'H':
		unit = time.Hour
	case 'M':
		unit = time.Minute
	case 'S':
		unit = time.Second
	case 'm':
		unit = time.Millisecond
	case 'u':
		unit = time.Microsecond
	case 'n':
		unit = time.Nanosecond
	default:
		return 0, false
	}
	n, err := strconv.ParseUint(value[:last], 10, 32)
	if err != nil {
		return 0, false
	}
	const longest = 366 * 24 * time.Hour // no wait lasts longer, and no product overflows
	return min(time.Duration(n), longest/unit) * unit, true
}
