package admin

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestPacked: what is long is packed for clients that take that, and is the same.
func TestPacked(t *testing.T) {
	w := newWhole(t, nil)
	for range 20 {
		w.refuse(t)
	}
	const list = decisionsPath + "?n=50"
	plain := w.as("operator", "GET", list, "")
	if plain.Header.Get("Content-Encoding") != "" || len(plain.Body) < leastPacked {
		t.Fatalf("%v, %d bytes", plain.Header, len(plain.Body))
	}
	packed := w.as("operator", "GET", list, "", "Accept-Encoding", "br, gzip")
	z, err := gzip.NewReader(strings.NewReader(packed.Body))
	if err != nil {
		t.Fatalf("%v: %v", packed.Header, err)
	}
	body, err := io.ReadAll(z)
	if err != nil || string(body) != plain.Body || len(packed.Body) > len(body)/4 ||
		packed.Header.Get("Content-Encoding") != "gzip" || packed.Header.Get("Vary") != "Accept-Encoding" {
		t.Errorf("%d bytes as %d, %v, %v", len(body), len(packed.Body), packed.Header, err)
	}
	for target, accepts := range map[string]string{list: "gzip;q=0", "/api/v1/rules": "gzip"} {
		if a := w.as("operator", "GET", target, "", "Accept-Encoding", accepts); a.Status != http.StatusOK ||
			!json.Valid([]byte(a.Body)) || a.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s for %s: %d %v", target, accepts, a.Status, a.Header)
		}
	}
}
