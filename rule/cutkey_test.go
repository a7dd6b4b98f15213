package rule_test

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// A key that is cut is shorter, fits, and is still read: with values that begin as they did, and no
// character cut in two.
func TestCutKey(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "a.yaml",
		Data: []byte("limits: [{name: a, per: [user, ip, path], allow: 1/min}]")}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := set.Rules()[0].Windows[0]
	for _, user := range []string{"ada", strings.Repeat("ü", 120), strings.Repeat("x", 255)} {
		for _, ip := range []string{"192.0.2.1", "2001:db8::1"} {
			for _, path := range []string{"/", "/" + strings.Repeat("é", 40)} {
				key, err := w.AppendKey(nil, []string{"user=" + user, "ip=" + ip, "path=" + path})
				if err != nil {
					t.Fatal(err)
				}
				for _, room := range []int{112, 64} {
					into := make([]byte, room)
					n := rule.CutKey(into, key, set.IPv6Prefix())
					if n == 0 {
						t.Errorf("%q does not fit into %d", key, room)
						continue
					}
					parts := w.KeyParts(into[:n])
					if len(parts) != 3 {
						t.Fatalf("%q was cut to %q", key, into[:n])
					}
					for i, want := range w.KeyParts(key) {
						if !strings.HasPrefix(want, parts[i]) || len(parts[i]) < 9 && parts[i] != want ||
							!strings.Contains(want, strings.ToValidUTF8(parts[i], "?")) {
							t.Errorf("%q became %q", want, parts[i])
						}
					}
				}
				if n := rule.CutKey(make([]byte, 8), key, set.IPv6Prefix()); n != 0 {
					t.Errorf("%d bytes in 8", n)
				}
			}
		}
	}
	if n := rule.CutKey(make([]byte, 100), []byte{0, 200}, 64); n != 0 {
		t.Errorf("what is no key was cut to %d bytes", n)
	}
}
