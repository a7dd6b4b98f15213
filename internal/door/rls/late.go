package rls

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// turnedAway returns the function that answers calls which waited too long in line. It answers all
// alike, without a status for each descriptor, which would take reading them.
func turnedAway(line *shed.Door) func(out []byte) ([]byte, h2.Status) {
	if line == nil {
		return nil
	}
	status := h2.Status{}
	answer := &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}
	switch line.Answer() {
	case shed.Error:
		status = h2.Status{Code: uint32(codes.Unavailable), Message: shed.Reason}
	case shed.Deny:
		answer.OverallCode = rlspb.RateLimitResponse_OVER_LIMIT
		// What Envoy says itself where it turns requests away, so that nobody takes it for a limit.
		answer.ResponseHeadersToAdd = []*corev3.HeaderValue{{Key: "x-envoy-overloaded", Value: "true"},
			{Key: "retry-after", Value: "1"}}
	}
	message, err := proto.Marshal(answer)
	if err != nil { // it has none but valid texts
		panic(err)
	}
	return func(out []byte) ([]byte, h2.Status) { return append(out, message...), status }
}
