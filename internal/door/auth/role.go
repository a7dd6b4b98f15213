package auth

import (
	"fmt"
	"slices"
	"strings"
)

// Role says what the holder of a token may do on the admin port. Each role includes the roles
// before it. The zero value may do nothing.
type Role uint8

// The roles. From Operator on a token also opens the decision doors of auth.doors, where each
// decision uses up the limits of others.
const (
	Nobody   Role = iota
	Viewer        // figures; keys of clients are masked
	Support       // single keys and decisions that they name
	Operator      // all keys, bans, grants, resets, signals, previews
	Editor        // rules
	Admin         // profiles and the audit log; the role of a token without one
)

var roleNames = [...]string{Viewer: "viewer", Support: "support", Operator: "operator", Editor: "editor",
	Admin: "admin"}

// Roles are the names of all roles, those with fewer rights first.
var Roles = roleNames[1:]

func (r Role) String() string {
	if r == Nobody || int(r) >= len(roleNames) {
		return "nobody"
	}
	return roleNames[r]
}

// ParseRole is the inverse of Role.String for the roles of a tokens file.
func ParseRole(s string) (Role, error) {
	if i := slices.Index(Roles, s); i >= 0 {
		return Role(i + 1), nil
	}
	return Nobody, fmt.Errorf("there is no role %q; there are %s", s, strings.Join(Roles, ", "))
}

// Identity is who sent a request.
type Identity struct {
	// Name is the name in the tokens file, or, for a token without one, the beginning of its hash:
	// sha256:1b4f0e98.
	Name string
	Role Role
	// ByCookie: a browser sent the cookie of a login, which it does for pages of other sites, too.
	ByCookie bool
}
