package httplimit

import (
	"net/http"
	"strings"

	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/httpfield"
)

// authReads are the parts of the Authorization field that an Identity reads.
type authReads uint8

const (
	readsBasic authReads = 1 << iota
	readsBearer
	readsWhole     // the value, as header:Authorization
	readsSignature // the access key of a signature of AWS
)

// misspelled returns the scheme of a value that is read, that servers may understand, and that
// cannot be read; "" for others.
func (a authReads) misspelled(value string) (scheme string) {
	if a&readsSignature != 0 && door.UnreadableSignature(value) {
		return "AWS4"
	}
	return httpfield.Misspelled(value, a&(readsBasic|readsWhole) != 0, a&(readsBearer|readsWhole) != 0)
}

// credentialsOf returns the Authorization field of r if it is of the scheme. Of several lines it is
// the first that counts, as for Request.BasicAuth and for handlers that use Header.Get.
func credentialsOf(r *http.Request, scheme string) (httpfield.Credentials, bool) {
	lines := r.Header["Authorization"]
	if len(lines) == 0 {
		return httpfield.Credentials{}, false
	}
	c, ok := httpfield.CutCredentials(lines[0])
	return c, ok && strings.EqualFold(c.Scheme, scheme)
}
