package answer

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
)

// TypeReducedCapacity is the problem type of an answer 503
// (draft-ietf-httpapi-ratelimit-headers-11).
const TypeReducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"

const titleReducedCapacity = "Request cannot be satisfied due to temporary server capacity constraints"

// ProblemJSON is the media type of problem details.
const ProblemJSON = "application/problem+json"

// ProblemDetails writes problem details (RFC 9457) with application/problem+json; extra members are
// merged in, sorted by name. An empty typ is left out (about:blank), an empty title is the status's
// text, an empty detail is left out. A member of extra that cannot be put into JSON, or that has
// the name of a standard one written here, is left out. The answer carries Cache-Control: no-store.
// To a call of gRPC, whose writer is ForGRPC's, it is a status with the detail.
func ProblemDetails(w http.ResponseWriter, status int, typ, title, detail string, extra map[string]any) {
	if title == "" {
		title = http.StatusText(status)
	}
	if g, ok := w.(*grpcWriter); ok {
		w.Header().Set("Cache-Control", "no-store")
		g.problem(status, cmp.Or(detail, title))
		return
	}
	body := AppendProblem(make([]byte, 0, 512), status, typ, title, detail)
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		if name == "type" || name == "title" || name == "status" || name == "detail" {
			continue
		}
		value, err := json.Marshal(extra[name])
		if err != nil {
			continue
		}
		body = append(body, ',')
		body = AppendJSON(body, name)
		body = append(append(body, ':'), value...)
	}
	body = append(body, "}\n"...)
	w.Header().Set("Cache-Control", "no-store")
	Send(w, status, ProblemJSON, body, false)
}

// AppendProblem appends the standard members of problem details, without the closing brace. An
// empty typ or detail is left out.
func AppendProblem(b []byte, status int, typ, title, detail string) []byte {
	b = append(b, '{')
	if typ != "" {
		b = append(b, `"type":`...)
		b = append(AppendJSON(b, typ), ',')
	}
	b = append(b, `"title":`...)
	b = AppendJSON(b, title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	if detail != "" {
		b = append(b, `,"detail":`...)
		b = AppendJSON(b, detail)
	}
	return b
}

// StoreError answers 503 for a request that could not be decided because the store failed,
// with the problem type temporary-reduced-capacity. It says nothing of the error, which is not the
// client's business.
func StoreError(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	ProblemDetails(w, http.StatusServiceUnavailable, TypeReducedCapacity, titleReducedCapacity,
		"The request could not be checked against its limits just now. Try again in a moment.", nil)
}

// Overload answers 503 for a request that was turned away because the server behind is overloaded,
// with the problem type temporary-reduced-capacity.
func Overload(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	ProblemDetails(w, http.StatusServiceUnavailable, TypeReducedCapacity, titleReducedCapacity,
		"This service is busier than it can be just now, and has to turn some requests away. Yours has not been counted against any limit. Try again in a moment.", nil)
}

// Late answers a request that waited too long in line, with the problem type
// temporary-reduced-capacity. status is 503, or 429 where it is to count as refused.
func Late(w http.ResponseWriter, status int) {
	w.Header().Set("Retry-After", "1")
	ProblemDetails(w, status, TypeReducedCapacity, titleReducedCapacity,
		"This server has more to do than it can, and the request has stood in line for too long. Nothing was decided, and nothing counted. Try again in a moment.", nil)
}

// Send writes an answer with its headers; head leaves the body out.
func Send(w http.ResponseWriter, status int, contentType string, body []byte, head bool) {
	h, lines := w.Header(), [...]string{contentType, "nosniff", strconv.Itoa(len(body))}
	h["Content-Type"] = lines[0:1:1]
	h["X-Content-Type-Options"] = lines[1:2:2]
	h["Content-Length"] = lines[2:3:3]
	w.WriteHeader(status)
	if !head {
		_, _ = w.Write(body) // the client may be gone, and then nobody needs the error
	}
}
