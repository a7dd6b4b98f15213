package httpapi

import (
	"net/http"
	"strings"

	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/auth"
)

// forwardAuthToken is the header in which a proxy shows its token to forward auth. Authorization is
// the client's own there: it must be neither taken for the proxy's token, nor counted as a guess of
// the proxy.
const forwardAuthToken = "X-Weir-Token"

// TokenDoors say which parts of the HTTP door need a token.
type TokenDoors struct {
	HTTP        bool // the decision API
	ForwardAuth bool // /api/v1/forward-auth
}

// RequireToken returns a handler that asks for one of the tokens before h sees a request.
// /healthcheck is open.
func RequireToken(h http.Handler, t *auth.Tokens, doors TokenDoors) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		verdict := auth.Right
		switch {
		case path == "/healthcheck":
		case path == door.ForwardAuthPath || strings.HasPrefix(path, door.ForwardAuthPath+"/"):
			if doors.ForwardAuth {
				verdict = checkProxy(t, r)
			}
		case doors.HTTP:
			verdict = t.CheckRequest(r)
		}
		if verdict != auth.Right {
			auth.RefuseCaller(w, verdict, "weir")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// checkProxy judges the token of a proxy that asks for its client.
func checkProxy(t *auth.Tokens, r *http.Request) auth.Verdict {
	lines := r.Header[forwardAuthToken]
	switch len(lines) {
	case 0:
		return auth.NoToken
	case 1:
		return t.Check(r.RemoteAddr, lines[0])
	}
	return auth.Wrong // the client sent one, and the proxy added its own
}
