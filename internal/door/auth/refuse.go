package auth

import (
	"net/http"

	"github.com/weir-rl/weir/internal/door/answer"
)

// Refuse answers a request that no door opens to.
func Refuse(w http.ResponseWriter, v Verdict, realm string) {
	refuse(w, v, realm, http.StatusTooManyRequests)
}

// RefuseCaller is Refuse for a door at which 429 is a decision: a caller would take it for one, and
// refuse its own clients. There an address whose tokens are not looked at gets 401, as without one.
func RefuseCaller(w http.ResponseWriter, v Verdict, realm string) {
	refuse(w, v, realm, http.StatusUnauthorized)
}

func refuse(w http.ResponseWriter, v Verdict, realm string, tooMany int) {
	challenge := `Bearer realm="` + realm + `"`
	switch v {
	case TooMany:
		if tooMany == http.StatusUnauthorized { // which needs one (RFC 9110, 15.5.2)
			w.Header().Set("WWW-Authenticate", challenge)
		}
		w.Header().Set("Retry-After", "6") // one guess is forgiven in that time
		answer.Problem(w, tooMany,
			"too many wrong tokens came from this address; its tokens are not looked at for a while", "")
		return
	case Forbidden:
		answer.Problem(w, http.StatusForbidden,
			"the role of this token does not open this door; it needs operator, editor or admin", "")
		return
	case Wrong:
		challenge += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	answer.Problem(w, http.StatusUnauthorized, "needs a bearer token of auth.tokens_file", "")
}
