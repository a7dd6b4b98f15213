package h2

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// h2specTool is where scripts/test installs h2spec (https://github.com/summerwind/h2spec).
const h2specTool = "../../.cache/tools/h2spec"

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
	_, addr := serve(t, Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	})})
	host, port, _ := net.SplitHostPort(addr)
	out, err := exec.Command(tool, "-h", host, "-p", port, "-o", "1").CombinedOutput()
	if err != nil {
		at := bytes.Index(out, []byte("Failures:"))
		t.Fatalf("%v\n%s", err, out[max(at, 0):])
	}
	if !strings.Contains(string(out), " 0 failed") {
		t.Errorf("%s", out)
	}
}
