package proxy

import (
	"io"
	"maps"
	"net/http"
	"slices"

	"golang.org/x/net/http/httpguts"

	"github.com/weir-rl/weir/internal/door"
)

// Trailers come when all else was judged. So fields that frame a message, or say who asks or where
// to, are dropped from them (RFC 9110, 6.5.1), and from a request also fields that its header has
// not announced. Package h2 does that as well; net/http passes them on. From a request, fields that
// say where it came from are dropped, too, as they are from the header: some servers put trailers
// among the fields of that.

// requestTrailers takes what may not be a trailer out of those that r announces, and returns the
// names of the rest.
func (p *Proxy) requestTrailers(r *http.Request) (announced []string) {
	if len(r.Trailer) == 0 {
		return nil
	}
	maps.DeleteFunc(r.Trailer, func(name string, _ []string) bool {
		plain := http.CanonicalHeaderKey(door.Dashed(name))
		return plain == "Cookie" || !httpguts.ValidTrailerHeader(name) || !httpguts.ValidTrailerHeader(plain) ||
			p.o.ClientIP.Forwarding(name) || slices.Contains(ownFields, plain)
	})
	return slices.Collect(maps.Keys(r.Trailer))
}

func dropInvalid(trailer http.Header) {
	maps.DeleteFunc(trailer, func(name string, _ []string) bool { return !httpguts.ValidTrailerHeader(name) })
}

// trailerBody is the body of a response that takes what may not be a trailer out of those that came
// behind it.
type trailerBody struct {
	io.ReadCloser
	response *http.Response
}

// Read implements io.Reader.
func (b trailerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		dropInvalid(b.response.Trailer)
	}
	return n, err
}
