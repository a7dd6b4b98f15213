//go:build !nocel

package cel

import (
	"strings"
	"testing"
)

func TestCompileCEL(t *testing.T) {
	for _, c := range []struct {
		source string
		cost   bool
		want   string // in the error; "" for none
	}{
		{`path.size() > 100 && header["x-plan"] == "free"`, false, ""},
		{`"x-plan" in header || query.size() > 3`, false, ""},
		{`attr.exists(k, attr[k] == "x")`, false, ""},
		{`domain == "shop" && method != "GET" && host.endsWith(".com") && ip.startsWith("10.") && user != ""`, false, ""},
		{`int(attr.tokens)`, true, ""},
		{`size(path)`, true, ""},
		{`path`, false, "gives string"},
		{`1.5`, true, "gives double"},
		{``, false, "empty"},
		{`pat == "/"`, false, "known are domain"},
		{`path ==`, false, "1:"},
		{`path.matches("(")`, false, ""},
	} {
		var err error
		if c.cost {
			_, err = CompileCost(c.source)
		} else {
			_, err = CompileIf(c.source)
		}
		if c.source == `path.matches("(")` {
			if err == nil {
				t.Errorf("%s: a broken constant regular expression compiles", c.source)
			}
			continue
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.source, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has several lines: %v", c.source, err)
		}
	}
}
