package httplimit

import (
	"net/http"
	"strings"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/wire/accept"
)

// refuseCall answers a call of gRPC that was refused, and reports whether it has: false for all
// other requests.
func (f Headers) refuseCall(w http.ResponseWriter, d *weir.Decision, near *weir.LimitResult) bool {
	var o answer.Refusal
	if near != nil && near.Window.Rule != nil && near.Window.Rule.Response != nil {
		resp := near.Window.Rule.Response
		status := http.StatusTooManyRequests
		if o.Status = resp.Status; o.Status != 0 {
			status = o.Status
		}
		data := responseData(d, near, status)
		const plain = "text/plain"
		contentType, body := resp.Render(accept.Preferred(plain, resp.MediaTypes()...), data)
		if contentType == "" || strings.HasPrefix(contentType, plain) { // a page is no message
			o.Message = strings.TrimSpace(string(body))
		}
		o.Header = http.Header{}
		for _, p := range resp.RenderHeaders(nil, data) {
			switch k := http.CanonicalHeaderKey(p.Name); k {
			case "Content-Length", "Transfer-Encoding", "Connection", "Content-Type": // of HTTP
			default:
				o.Header[k] = append(o.Header[k], p.Value)
			}
		}
	}
	return answer.RefuseGRPC(w, d, o)
}
