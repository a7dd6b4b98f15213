package gather

import (
	"strings"
	"sync/atomic"

	"github.com/weir-rl/weir"
)

// unknownDomains counts the requests for domains that no rule file declares.
type unknownDomains struct {
	n    atomic.Uint64
	last atomic.Pointer[string] // one that was asked for lately
}

// unknownNamed is of how many such requests one names its domain: a client chooses the names.
const unknownNamed = 1024

// longestName bounds the name that is kept, in bytes.
const longestName = 64

func (u *unknownDomains) add(d *weir.Decision) {
	if (u.n.Add(1)-1)%unknownNamed != 0 {
		return
	}
	name := d.Domain
	if len(name) > longestName {
		name = strings.ToValidUTF8(name[:longestName], "") + "…"
	}
	name = strings.Clone(name)
	u.last.Store(&name)
}

// name is a domain that was asked for lately; "" if there is none.
func (u *unknownDomains) name() string {
	if name := u.last.Load(); name != nil {
		return *name
	}
	return ""
}
