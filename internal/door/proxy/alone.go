package proxy

import (
	"net/http"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// answersAlone answers a request that neither the rules nor the upstream are asked about, and
// reports whether it has.
func (p *Proxy) answersAlone(w http.ResponseWriter, r *http.Request) bool {
	w = answer.ForGRPC(w, r)
	switch {
	case r.Method == http.MethodConnect:
		p.boundRest(w, r)
		w.Header().Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		answer.ProblemDetails(w, http.StatusMethodNotAllowed, "", "",
			"This is a reverse proxy; it opens no tunnels.", nil)
	case r.URL.Opaque != "":
		p.boundRest(w, r)
		answer.ProblemDetails(w, http.StatusBadRequest, "", "", "The request target must be a path.", nil)
	case len(r.Header["Authorization"]) > 1: // the upstream might believe another one than the rules
		p.boundRest(w, r)
		answer.ProblemDetails(w, http.StatusBadRequest, "", "",
			"The request has more than one Authorization header.", nil)
	case p.defers != nil && strings.HasPrefix(r.URL.Path, ticketPath):
		p.boundRest(w, r)
		p.defers.serveTicket(w, r)
	case p.o.Line.Late(1):
		p.boundRest(w, r)
		p.o.Line.Turned(1)
		status := http.StatusServiceUnavailable
		if p.o.Line.Answer() == shed.Deny {
			status = http.StatusTooManyRequests
		}
		answer.Late(w, status)
	default:
		return false
	}
	return true
}

// boundRest bounds how long a client is waited for that has not sent its body when it is answered.
// Over HTTP/1 a server reads the rest of the body before it sends the answer, or behind it.
func (p *Proxy) boundRest(w http.ResponseWriter, r *http.Request) {
	if p.o.BodyTimeout > 0 {
		boundRest(w, r, p.o.BodyTimeout)
	}
}

func boundRest(w http.ResponseWriter, r *http.Request, most time.Duration) {
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(most)) // if it has one
	}
}
