package rule_test

import (
	"testing"

	"github.com/weir-rl/weir/rule/file"
)

// A key is exempt if an exempt entry for an attribute of it holds, whatever else a request brings.
func TestExemptKey(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(`
domain: shop
exempt: { ip: [10.0.0.0/8, "2001:db8:1::/48", "2001:db8:2::/128"], user: [root], path: "!/api/**" }
limits: [{ name: a, per: [user|ip], allow: 1/min }]
`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]bool{
		"ip=10.1.2.3": true, "ip=192.0.2.1": false, "user=root": true, "user=ada": false, "plan=gold": false,
		"ip=2001:db8:1:7::/64": true, "ip=2001:db8:2::/64": false, "path=/x": true, "path=/api/x": false,
	} {
		if got := set.ExemptKey("shop", []string{part}); got != want {
			t.Errorf("%s: %v, want %v", part, got, want)
		}
	}
	if !set.ExemptKey("shop", []string{"user=ada", "ip=10.0.0.1"}) {
		t.Error("one exempt attribute is enough")
	}
	if set.ExemptKey("shop", nil) || set.ExemptKey("other", []string{"ip=10.0.0.1"}) {
		t.Error("nothing is exempt")
	}
}
