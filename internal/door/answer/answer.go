// Package answer holds the answers of weir's doors: problem details, errors that name the field of
// a request, the values of rate-limit fields, and the text that these are made of. Begin with
// Problem and BadRequest.
package answer

import (
	"errors"
	"net/http"
	"strings"
)

// Values of headers that are the same on every answer.
var (
	JSONType  = []string{"application/json"}
	PlainType = []string{"text/plain; charset=utf-8"}
	NoStore   = []string{"no-store"}
)

// Problem answers with problem details of no special type (about:blank); field is the member of the
// request that is wrong, "" for none.
func Problem(w http.ResponseWriter, status int, detail, field string) {
	var extra map[string]any
	if field != "" {
		extra = map[string]any{"field": field}
	}
	ProblemDetails(w, status, "about:blank", http.StatusText(status), detail, extra)
}

// MethodNotAllowed answers 405; allow lists the methods that are allowed, as the header Allow has
// them.
func MethodNotAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	Problem(w, http.StatusMethodNotAllowed, Printable(r.Method)+" is not allowed here; allowed: "+allow, "")
}

// BadRequest answers a request that could not be read or decoded.
func BadRequest(w http.ResponseWriter, err error) {
	if f, ok := errors.AsType[*FieldError](err); ok {
		status := http.StatusBadRequest
		if f.TooMany {
			status = http.StatusRequestEntityTooLarge
		}
		Problem(w, status, f.Error(), f.Field)
		return
	}
	Problem(w, http.StatusBadRequest, err.Error(), "")
}

// BadBody is BadRequest for a request whose body could not be read or decoded. If that is for its
// content coding, which is not undone here, it answers 415 and says so (RFC 9110, 15.5.16).
func BadBody(w http.ResponseWriter, r *http.Request, err error) {
	if f, ok := errors.AsType[*FieldError](err); ok && f.Field == "body" && !f.TooMany && RefuseCoding(w, r) {
		return
	}
	BadRequest(w, err)
}

// RefuseCoding answers 415 if the body of r has a content coding, such as gzip, and reports whether
// it did.
func RefuseCoding(w http.ResponseWriter, r *http.Request) bool {
	coding := Coding(r)
	if coding == "" {
		return false
	}
	w.Header().Set("Accept-Encoding", "identity")
	Problem(w, http.StatusUnsupportedMediaType,
		"the body has the content coding "+Printable(coding)+", which is not read here: send it as it is, without Content-Encoding", "body")
	return true
}

// Coding returns the content coding of the body of r; "" if it has none.
func Coding(r *http.Request) string {
	coding := strings.Join(r.Header["Content-Encoding"], ", ")
	if strings.EqualFold(coding, "identity") {
		return ""
	}
	return coding
}

// FieldError describes a fault of one field of a request.
type FieldError struct {
	// "hits", "attributes.user", "requests[3].domain"; "body" or "query" for a fault outside fields
	Field   string
	Message string
	TooMany bool // the answer is 413
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Message }
