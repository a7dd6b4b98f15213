package human

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// NodeName names a node: for people by a name that stays over restarts and an address, and for
// programs also by a number of its machine, since machines may have equal addresses, such as
// 127.0.0.1, and by an id, which no other process has.
type NodeName struct{ Name, Address, Machine, ID string }

// MaxNodeName bounds NodeName.Name, in bytes.
const MaxNodeName = 48

// MachineDigits is the length of NodeName.Machine, hexadecimal digits.
const MachineDigits = 8

// String returns all of n, as nodes tell each other: "web-1 10.0.0.3:6070@1c0ffee5 4f3a9c".
func (n NodeName) String() string {
	return strings.TrimRight(n.Label()+" "+n.ID, " ")
}

// Label returns n without its id: "web-1 10.0.0.3:6070@1c0ffee5". It stays over restarts.
func (n NodeName) Label() string {
	if n.Machine == "" {
		return n.short()
	}
	return n.Name + " " + n.Address + "@" + n.Machine
}

// short returns the name with the address: "web-1 10.0.0.3:6070".
func (n NodeName) short() string { return strings.TrimRight(n.Name+" "+n.Address, " ") }

// ParseNodeName reads what NodeName.String returned. Other text is a name alone.
func ParseNodeName(s string) NodeName {
	f := strings.Split(s, " ")
	if len(f) != 2 && len(f) != 3 {
		return NodeName{Name: s}
	}
	n := NodeName{Name: f[0], Address: f[1]}
	if at := len(n.Address) - MachineDigits - 1; at >= 0 && n.Address[at] == '@' &&
		strings.Trim(n.Address[at+1:], "0123456789abcdef") == "" {
		n.Address, n.Machine = n.Address[:at], n.Address[at+1:]
	}
	if len(f) == 3 {
		n.ID = f[2]
	}
	return n
}

// Is reports whether a person who says "web-1", or "web-1 10.0.0.3:6070", means n.
func (n NodeName) Is(said string) bool {
	return said == n.Name || said == n.short() || said == n.Label() || said == n.String()
}

// NodeNames are the names of nodes that live at the same time. Each is shown by as little as tells
// it from the others.
type NodeNames struct{ names, shorts, labels map[string]int }

// NewNodeNames returns the names of nodes, each as NodeName.String returns it.
func NewNodeNames(all []string) NodeNames {
	n := NodeNames{map[string]int{}, map[string]int{}, map[string]int{}}
	for _, s := range all {
		x := ParseNodeName(s)
		n.names[x.Name]++
		n.shorts[x.short()]++
		n.labels[x.Label()]++
	}
	return n
}

// Shown returns how the node s is shown: by its name if no other node has it, or else with its
// address, or, if another node has both, with the number of its machine, or then with its id.
func (n NodeNames) Shown(s string) string {
	x := ParseNodeName(s)
	switch {
	case n.names[x.Name] < 2:
		return x.Name
	case n.shorts[x.short()] < 2:
		return x.short()
	case n.labels[x.Label()] < 2:
		return x.Label()
	}
	return s
}

// IsNodeName reports whether s can be the name of a node: 1 to 48 bytes of text without spaces.
func IsNodeName(s string) bool {
	return s != "" && len(s) <= MaxNodeName && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) })
}
