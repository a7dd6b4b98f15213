package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// Requests that have stood in line for too long do not reach the upstream.
func TestLate(t *testing.T) {
	upstream := newUpstream(t, func(http.ResponseWriter, *http.Request) { t.Error("the upstream is asked") })
	for answer, status := range map[shed.Answer]int{shed.Error: 503, shed.Deny: 429} {
		line := shed.Overloaded(answer)
		addr := newProxy(t, upstream.URL, "domain: shop\nlimits: [{name: a, allow: 1/min}]\n",
			func(o *Options) { o.Line = line })
		for n := range 3 {
			r, err := client(t, false).Post("http://"+addr+"/", "text/plain", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(r.Body)
			r.Body.Close()
			if r.StatusCode != status || r.Header.Get("Retry-After") != "1" ||
				!strings.Contains(string(body), "#temporary-reduced-capacity") || line.Count() != uint64(n+1) {
				t.Errorf("%s: %s %s", answer, r.Status, body)
			}
		}
	}
}
