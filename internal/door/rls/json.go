package rls

import (
	"errors"
	"io"
	"net/http"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/answer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxJSONBody bounds the body of a POST to /json.
const maxJSONBody = 1 << 20

// NewJSON returns the handler of POST /json: the request and answer of RLS as JSON, as
// envoyproxy/ratelimit's endpoint has them; but a failure of the store is a 503 there, not a 400,
// and a body that is too large a 413, one with a content coding a 415.
//
// trusted tells whether the asker may refund and may ask for more than 1,000 hits; others get a
// 403. nil trusts all.
func NewJSON(r *Service, trusted func(*http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxJSONBody))
		if err != nil {
			var large *http.MaxBytesError
			if errors.As(err, &large) {
				jsonError(w, http.StatusRequestEntityTooLarge)
				return
			}
			jsonError(w, http.StatusBadRequest)
			return
		}
		var m rlspb.RateLimitRequest
		if err := protojson.Unmarshal(body, &m); err != nil {
			if answer.Coding(request) != "" {
				w.Header().Set("Accept-Encoding", "identity")
				jsonError(w, http.StatusUnsupportedMediaType)
				return
			}
			jsonError(w, http.StatusBadRequest)
			return
		}
		if needsTrust(&m) && trusted != nil && !trusted(request) {
			jsonError(w, http.StatusForbidden)
			return
		}
		answer, err := r.answer(request.Context(), &m, headerOf(request.Header))
		if err != nil {
			if status.Code(err) == codes.InvalidArgument {
				jsonError(w, http.StatusBadRequest)
			} else {
				jsonError(w, http.StatusServiceUnavailable)
			}
			return
		}
		text, err := protojson.Marshal(answer)
		code := http.StatusOK
		switch {
		case err != nil || answer.OverallCode == rlspb.RateLimitResponse_UNKNOWN:
			jsonError(w, http.StatusInternalServerError)
			return
		case answer.OverallCode == rlspb.RateLimitResponse_OVER_LIMIT:
			code = http.StatusTooManyRequests
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(code)
		_, _ = w.Write(text) // a client that hung up misses it
	})
}

// headerOf is the header of an HTTP request.
type headerOf http.Header

// Header implements header.
func (h headerOf) Header(name string) string { return http.Header(h).Get(name) }

// jsonError answers with the code's own text, as net/http's Error does: text/plain, nosniff.
func jsonError(w http.ResponseWriter, code int) { http.Error(w, http.StatusText(code), code) }

// needsTrust reports whether m refunds, or asks for more hits than anybody may.
func needsTrust(m *rlspb.RateLimitRequest) bool {
	if m.GetHitsAddend() > door.FreeHits {
		return true
	}
	for _, d := range m.GetDescriptors() {
		if d.GetIsNegativeHits() || d.GetHitsAddend().GetValue() > door.FreeHits {
			return true
		}
	}
	return false
}
