package httplimit

import (
	"net/http"
	"strconv"
	"time"
)

const hdrGRPCTimeout = "Grpc-Timeout"

// clientDeadline returns when the client of a gRPC call, or of one of gRPC-Web, wants no answer any
// more, by its grpc-timeout; zero if it does not say.
func clientDeadline(r *http.Request) time.Time {
	lines := r.Header[hdrGRPCTimeout]
	if len(lines) != 1 {
		return time.Time{}
	}
	if timeout, ok := grpcTimeout(lines[0]); ok {
		return time.Now().Add(timeout)
	}
	return time.Time{}
}

// grpcTimeout reads the value of grpc-timeout: up to eight digits and a unit, as gRPC's protocol
// over HTTP/2 has it.
func grpcTimeout(value string) (timeout time.Duration, ok bool) {
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
