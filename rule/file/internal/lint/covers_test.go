package lint

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/rule"
)

// genPattern draws a pattern of a small alphabet, so that patterns often meet.
func genPattern(attribute string) *rapid.Generator[string] {
	if attribute == "ip" {
		return rapid.SampledFrom([]string{"10.0.0.0/8", "10.0.0.0/9", "10.1.0.0/16", "10.1.2.3", "10.*", "10.1.2.*",
			"*", "0.0.0.0/0", "::/0", "~^10[.]1", "~[.]3$"})
	}
	return rapid.OneOf(
		rapid.StringMatching(`[ab/]{1,4}`),
		rapid.StringMatching(`[ab/*]{1,6}`),
		rapid.StringMatching(`[ab/*]{0,3}/\*\*`),
		rapid.StringMatching(`~\^?[ab/]{1,3}\$?`),
		rapid.StringMatching(`~\^?[ab/]{0,2}(a|b)?[ab]\*\$?`),
	)
}

func drawMeeting(t *rapid.T, attribute, label string) *rule.Condition {
	c := &rule.Condition{Attribute: attribute}
	for range rapid.IntRange(1, 3).Draw(t, label) {
		source := genPattern(attribute).Draw(t, label)
		if rapid.IntRange(0, 3).Draw(t, label) == 0 {
			source = "!" + source
		}
		if p, err := rule.ParsePattern(attribute, source); err == nil {
			c.Patterns = append(c.Patterns, p)
		}
	}
	return c
}

// meets reports whether a value meets c; "" stands for an absent one.
func meets(c *rule.Condition, value string) bool {
	positives, negatives := split(c)
	any := len(positives) == 0
	if value == "" {
		return any
	}
	for _, p := range positives {
		any = any || positive(p, value)
	}
	for _, p := range negatives {
		any = any && !positive(p, value)
	}
	return any
}

// texts of up to 4 letters, which the patterns above are made of.
var shortTexts = func() []string {
	all := []string{""}
	for from := 0; len(all[from]) < 4; from++ {
		for _, c := range "ab/" {
			all = append(all, all[from]+string(c))
		}
	}
	return all
}()

// Where a condition is said to cover another one, no value meets the other alone; where patterns
// are said to be apart, no value matches both.
func TestCoversIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attribute := rapid.SampledFrom([]string{"plan", "ip"}).Draw(t, "attribute")
		a, b := drawMeeting(t, attribute, "a"), drawMeeting(t, attribute, "b")
		values := shortTexts
		if attribute == "ip" {
			values = []string{"", "10.0.0.1", "10.1.2.3", "10.200.0.1", "11.1.2.3", "2001:db8::1", "x"}
		}
		covers := conditionCovers(a, b)
		for _, v := range values {
			if covers && meets(b, v) && !meets(a, v) {
				t.Fatalf("%v is said to cover %v, but %q meets the latter only", a.Patterns, b.Patterns, v)
			}
		}
		for i := range a.Patterns {
			for k := range b.Patterns {
				x, y := &a.Patterns[i], &b.Patterns[k]
				apart := patternsApart(x, y)
				for _, v := range values[1:] {
					if apart && positive(x, v) && positive(y, v) {
						t.Fatalf("%s and %s are said to be apart, but %q matches both", x.Source, y.Source, v)
					}
				}
			}
		}
	})
}

// Equal patterns, prefixes, single texts and networks are compared.
func TestCoversFinds(t *testing.T) {
	for _, c := range []struct {
		attribute, a, b string
		want            bool
	}{
		{"path", "/api/**", "/api/x", true}, {"path", "/api/**", "/api", true}, {"path", "/api/**", "/api/", true}, {"path", "/api/**", "/apix", false},
		{"path", "/api/**", "/api/*", true}, {"path", "/api/**", "/api/x/**", true}, {"path", "/api/**", "/api**", false}, {"path", "/api/**", "/ap/**", false},
		{"path", "/api/*", "/api/**", false}, {"path", "/api/*", "/api/x", true}, {"path", "/api/*", "/api/v*", true}, {"path", "/api/v*", "/api/*", false},
		{"path", "/api/*", "/api/v*/x", false}, {"path", "/**", "/api/**", true}, {"path", "**", "/a*b", true}, {"path", "/*/x", "/a/x", true},
		{"path", "~^/api", "/api/x", true}, {"path", "~(?i)^/api", "/api/x", true}, {"path", "/api/**", "~/api/", false}, {"path", "~^/(a|b)", "/a/**", false},
		{"method", "GET", "get", true}, {"method", "*", "GET", true}, {"host", "*.Example", "a.example", true},
		{"ip", "10.0.0.0/8", "10.1.0.0/16", true}, {"ip", "10.1.0.0/16", "10.0.0.0/8", false}, {"ip", "::/0", "10.1.1.1", false}, {"ip", "10.*", "10.1.1.1", true},
		{"plan", "~.", "~.", true},
	} {
		a, err := rule.ParsePattern(c.attribute, c.a)
		if err != nil {
			t.Fatal(err)
		}
		b, err := rule.ParsePattern(c.attribute, c.b)
		if err != nil {
			t.Fatal(err)
		}
		if got := patternCovers(&a, &b); got != c.want {
			t.Errorf("%s: %s covers %s: %v, want %v", c.attribute, c.a, c.b, got, c.want)
		}
	}
}

// What is said to be impossible matches no value in its normal form.
func TestImpossibleIsSound(t *testing.T) {
	raw := map[string]*rapid.Generator[string]{
		"path":   rapid.StringMatching(`/?([a-bA-B./%2F?#é ]|%2f|%41|\*){0,8}`),
		"method": rapid.StringMatching(`[A-Ca-c-]{1,4}`),
		"host":   rapid.StringMatching(`[A-Ca-c.-]{0,5}[a-c](:[0-9]{1,2})?`),
		"ip":     rapid.SampledFrom([]string{"10.0.0.1", "192.0.2.255", "2001:DB8::1", "::ffff:1.2.3.4", "fe80::1%eth0"}),
	}
	patterns := rapid.OneOf(
		rapid.StringMatching(`[A-Ca-c0-9./%*:?#é-]{1,6}`),
		rapid.StringMatching(`~\^?[A-Ca-c0-9./%:é-]{1,4}\$?`),
		rapid.StringMatching(`~(\(\?i\))?\^?([a-c]|[A-C/]|[0-9]|[.]|\[\^a\]|\.\*|\(a\|B\)){1,3}[?*+]?\$?`),
	)
	rapid.Check(t, func(t *rapid.T) {
		attribute := rapid.SampledFrom([]string{"path", "method", "host", "ip"}).Draw(t, "attribute")
		p, err := rule.ParsePattern(attribute, patterns.Draw(t, "pattern"))
		if err != nil {
			t.Skip()
		}
		why, _ := impossible(attribute, &p)
		if why == "" {
			return
		}
		for range 20 {
			text := raw[attribute].Draw(t, "raw")
			value := rule.NormalValue(attribute, text)
			value = strings.TrimSuffix(value, map[bool]string{true: "."}[attribute == "host"])
			if value == "*" && attribute == "path" || value == "" {
				continue
			}
			if positive(&p, value) {
				t.Fatalf("%s %s is said to match nothing (%s), but matches %q, of %q", attribute, p.Source, why, value,
					text)
			}
		}
	})
}
