package h2

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// h2specTool is where scripts/test installs h2spec (https://github.com/summerwind/h2spec).
const h2specTool = "../../../.cache/tools/h2spec"

// TestH2Spec holds the server against a conformance suite of HTTP/2.
func TestH2Spec(t *testing.T) {
	tool, err := exec.LookPath(h2specTool)
	if err != nil {
		if tool, err = exec.LookPath("h2spec"); err != nil {
			t.Skip("h2spec is not installed; scripts/test does that")
		}
	}
	if tool, err = filepath.Abs(tool); err != nil {
		t.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	})
	_, grpc := serve(t, Options{Methods: newService().methods(), Handler: handler})
	for name, args := range map[string][]string{
		"gRPC": {"http://" + grpc},
		// without section 3.5, the preface, which net/http reads: as HTTP/1 if it is none
		"HTTP": {httpServer(t, handler, nil, configure), "generic", "hpack", "http2/4", "http2/5", "http2/6", "http2/7", "http2/8"},
		"TLS":  {httpServer(t, handler, serverTLS(t), configure), "-t", "-k"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, err := url.Parse(args[0])
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(tool, append([]string{"-h", u.Hostname(), "-p", u.Port(), "-o", "1"},
				args[1:]...)...).CombinedOutput()
			if err != nil {
				at := bytes.Index(out, []byte("Failures:"))
				t.Fatalf("%v\n%s", err, out[max(at, 0):])
			}
			if !strings.Contains(string(out), " 0 failed") {
				t.Errorf("%s", out)
			}
		})
	}
}
