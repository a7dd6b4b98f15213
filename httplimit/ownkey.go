package httplimit

import (
	"slices"

	"github.com/weir-rl/weir/rule"
)

// ownKey reports whether each value of a key is of one client, so that an address takes places of
// nobody else. A tenant, a plan or a path is shared by clients, and so is whatever a header says.
func (id *Identity) ownKey(per []rule.Key) bool {
	return slices.ContainsFunc(per, func(key rule.Key) bool {
		return len(key) > 0 && !slices.ContainsFunc(key, func(name string) bool { return !id.ofOneClient(name) })
	})
}

// ofOneClient reports whether an attribute tells clients apart: the address, the user, and values
// of a credential or a cookie.
func (id *Identity) ofOneClient(name string) bool {
	switch name {
	case "ip", "user", "header.authorization":
		return true
	}
	if id == nil {
		return false
	}
	i, found := slices.BinarySearch(id.names, name)
	if !found {
		return false
	}
	switch s := &id.sources[i]; s.kind {
	case fromBasic, fromBearer, fromAPIKey, fromCookie, fromTLS:
		return true
	case fromJWT:
		return s.arg == "sub"
	case fromHeader:
		return s.arg == "Authorization"
	}
	return false
}
