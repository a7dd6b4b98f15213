package httplimit

import (
	"net/http"
	"time"

	"github.com/weir-rl/weir/internal/wire/accept"
)

const hdrGRPCTimeout = "Grpc-Timeout"

// clientDeadline returns when the client of a gRPC call, or of one of gRPC-Web, wants no answer any
// more, by its grpc-timeout; zero if it does not say.
func clientDeadline(r *http.Request) time.Time {
	lines := r.Header[hdrGRPCTimeout]
	if len(lines) != 1 {
		return time.Time{}
	}
	if timeout, ok := accept.GRPCTimeout(lines[0]); ok {
		return time.Now().Add(timeout)
	}
	return time.Time{}
}
