package admin

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"mime"
	"net/http"

	"github.com/weir-rl/weir/internal/door/answer"
)

// packer writes to a client that accepts gzip. Only writeJSON uses it: a list of 1,000 rules is a
// megabyte, and the page asks for it again and again.
type packer struct{ http.ResponseWriter }

// Unwrap is for http.ResponseController.
func (p packer) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// leastPacked is the size from which on an answer is compressed. A smaller one fits into a few
// packets anyway.
const leastPacked = 4 << 10

func isJSON(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return err == nil && kind == "application/json"
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header()["Content-Type"] = answer.PlainType
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

// writeJSON answers with v. A value that JSON cannot hold is a defect: it becomes an error, and not
// an empty answer.
func writeJSON(w http.ResponseWriter, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		answer.Problem(w, http.StatusInternalServerError,
			"the answer cannot be written, which is a defect of weir: "+answer.Printable(err.Error()), "")
		return
	}
	w.Header()["Content-Type"] = answer.JSONType
	if _, packs := w.(packer); !packs || b.Len() < leastPacked {
		_, _ = w.Write(b.Bytes()) // the client hung up
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Vary", "Accept-Encoding")
	z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is one of gzip's own
	_, _ = z.Write(b.Bytes())
	_ = z.Close()
}
