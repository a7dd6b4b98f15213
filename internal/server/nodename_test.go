package server

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/util/human"
)

// TestAddressOf: nodes of one name are told apart by the admin port, or by another door, and by an
// address of the machine where the setting says all of them.
func TestAddressOf(t *testing.T) {
	machine := func() string { return "10.0.0.3" }
	for _, c := range []struct{ args, want string }{
		{"", "127.0.0.1:6070"},
		{"--listen-admin=:6071", "10.0.0.3:6071"},
		{"--listen-admin=0.0.0.0:6071", "10.0.0.3:6071"},
		{"--listen-admin=[::]:6071", "10.0.0.3:6071"},
		{"--listen-admin=192.0.2.7:6071", "192.0.2.7:6071"},
		{"--listen-admin=[2001:db8::1]:6071", "[2001:db8::1]:6071"},
		{"--listen-admin=off --listen-http=:8088", "10.0.0.3:8088"},
		{"--listen-admin=unix:/run/weir.sock", "unix:/run/weir.sock"},
	} {
		if got := addressOf(mustConfig(t, "", nil, strings.Fields(c.args)), machine); got != c.want {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
}

// TestHostName: a host's name that cannot be a node's is made one, or replaced.
func TestHostName(t *testing.T) {
	for host, want := range map[string]string{"web-1": "web-1", "two words": "two-words", "": "", "a\x00b": "",
		strings.Repeat("x", 60): strings.Repeat("x", 48)} {
		if got := hostName(host); got != want {
			t.Errorf("%q becomes %q, want %q", host, got, want)
		}
	}
	for _, name := range []string{"two words", strings.Repeat("x", 49), "a\tb"} {
		if _, err := configOf(t, "", nil, []string{"--node-name=" + name}); err == nil {
			t.Errorf("node.name %q is taken", name)
		}
	}
	if c := mustConfig(t, "node: { name: web-1 }", nil, nil); nodeNameOf(c).Name != "web-1" {
		t.Errorf("%+v", nodeNameOf(c))
	}
}

// TestMachines: nodes of one name and one address are two where their machines differ in anything,
// and one that starts anew is the same.
func TestMachines(t *testing.T) {
	one := machineOf("web-1", "aa", "10.0.0.1")
	if again := machineOf("web-1", "aa", "10.0.0.1"); again != one || len(one) != human.MachineDigits {
		t.Errorf("%q, then %q", one, again)
	}
	for _, other := range [][3]string{{"web-2", "aa", "10.0.0.1"}, {"web-1", "ab", "10.0.0.1"}, {"web-1", "aa", "10.0.0.2"}, {"web-1a", "a", "10.0.0.1"}} {
		if got := machineOf(other[0], other[1], other[2]); got == one {
			t.Errorf("%q is the machine of another", other)
		}
	}
	c := mustConfig(t, "node: { name: web-1 }", nil, nil)
	first, second := nodeNameOf(c), nodeNameOf(c)
	if first.Label() != second.Label() || first.String() == second.String() || first.Machine == "" {
		t.Errorf("a node is %s, and anew %s", first, second)
	}
	if back := human.ParseNodeName(first.String()); back != first {
		t.Errorf("%+v is read as %+v", first, back)
	}
}
