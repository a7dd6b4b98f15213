package admin

import (
	"net/http"

	"github.com/weir-rl/weir/internal/door/answer"
)

// Starting answers at the admin port while the server starts: it runs, and wants no requests yet.
func Starting() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header()["Cache-Control"] = answer.NoStore
		switch r.URL.Path {
		case "/healthz":
			writeText(w, http.StatusOK, "ok\n")
		case "/readyz":
			w.Header().Set("Retry-After", "1")
			writeText(w, http.StatusServiceUnavailable, "starting\n")
		default:
			w.Header().Set("Retry-After", "1")
			answer.Problem(w, http.StatusServiceUnavailable, "the server is starting", "")
		}
	})
}
