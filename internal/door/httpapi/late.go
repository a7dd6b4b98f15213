package httpapi

import (
	"io"
	"net/http"
	"strconv"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// turnAway answers a request that waited too long in line. It does not read the body. Only a single
// decision can be admitted that way: an answer to the other endpoints holds more than that. A
// refusal has the form of its endpoint, except for a batch, because nobody knows how many items it
// would hold.
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
	body := ""
	switch {
	case plain:
		body = strconv.FormatBool(status == http.StatusOK)
	case status == http.StatusOK:
		body = string(appendDecision(nil, &weir.Decision{Allowed: true}, nil, nil)) + "\n"
	case status == http.StatusTooManyRequests:
		body = refusals[path]
	}
	if body == "" {
		answer.Late(w, status)
		return
	}
	header := w.Header()
	header["Cache-Control"], header["Content-Type"] = answer.NoStore, answer.JSONType
	if plain {
		header["Content-Type"] = answer.PlainType
	}
	if status != http.StatusOK {
		header.Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// refusals are the refusals of requests that are not read, by path: a client that reads a 429 as a
// decision finds one.
var refusals = map[string]string{
	limitPath:   lateRefusal + "}\n",
	reservePath: lateRefusal + `,"reservation":null,"expires_in":null}` + "\n",
	jsonPath:    `{"overallCode":"OVER_LIMIT"}`,
}

const lateRefusal = `{"allowed":false,"domain":"","limited_by":[],"retry_after":1,"limits":[]`
