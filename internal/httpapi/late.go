package httpapi

import (
	"io"
	"net/http"
	"strconv"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/answer"
	"github.com/weir-rl/weir/internal/shed"
)

// turnAway answers a request that has stood in line for too long. Its body is not read. Only a
// single decision can be an admission that way: an answer to the others holds more than that.
func (h *handler) turnAway(w http.ResponseWriter, r *http.Request, path string) {
	h.o.Line.Turned(1)
	status, plain := http.StatusServiceUnavailable, path == limitPath && plainText(r)
	switch h.o.Line.Answer() {
	case shed.Deny:
		status = http.StatusTooManyRequests
	case shed.Allow:
		if path == limitPath {
			status = http.StatusOK
		}
	}
	header := w.Header()
	switch {
	case plain:
		header["Cache-Control"], header["Content-Type"] = answer.NoStore, answer.PlainType
		if status != http.StatusOK {
			header.Set("Retry-After", "1")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strconv.FormatBool(status == http.StatusOK))
	case status == http.StatusOK:
		header["Cache-Control"], header["Content-Type"] = answer.NoStore, answer.JSONType
		_, _ = w.Write(append(appendDecision(nil, &weir.Decision{Allowed: true}, nil, nil), '\n'))
	default:
		answer.Late(w, status)
	}
}
