package auth

import (
	"net/http"

	"github.com/weir-rl/weir/internal/answer"
)

// Refuse answers a request that no door opens to.
func Refuse(w http.ResponseWriter, v Verdict, realm string) {
	challenge := `Bearer realm="` + realm + `"`
	switch v {
	case TooMany:
		w.Header().Set("Retry-After", "6") // one guess is forgiven in that time
		answer.Problem(w, http.StatusTooManyRequests, "too many wrong tokens came from this address; its tokens are not looked at for a while", "")
		return
	case Forbidden:
		answer.Problem(w, http.StatusForbidden, "the role of this token does not open this door; it needs operator, editor or admin", "")
		return
	case Wrong:
		challenge += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	answer.Problem(w, http.StatusUnauthorized, "needs a bearer token of auth.tokens_file", "")
}
