package lint_test

import (
	"slices"
	"testing"

	"github.com/weir-rl/weir/rule/file"
)

// Of whole rules that are without use it is known which, each by itself; not of those of which a
// part is, or of which a comment says that they are meant so.
func TestUseless(t *testing.T) {
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(`domain: shop
exempt: { ip: 10.0.0.0/8 }
limits:
  - { name: used, per: [ip], allow: 10/min }
  - { name: inside, when: { ip: 10.1.0.0/16 }, per: [ip], allow: 5/min }
  - { name: inside-too, when: { ip: 10.2.0.0/16 }, per: [ip], allow: 5/min }
  - { name: loose, per: [ip], allow: 40/min }
  # lint: ignore never-refuses
  - { name: meant, per: [ip], allow: 50/min }
  - { name: part, when: { path: [/a, /b, "!/b"] }, allow: 2/min }
`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range file.Useless(set) {
		kind := "refuses none: "
		if p.Unmet {
			kind = "unmet: "
		}
		got = append(got, p.Rule.Name+" "+kind+p.Why)
	}
	want := []string{
		"inside unmet: no request can meet it: exempt lets all with that ip pass",
		"inside-too unmet: no request can meet it: exempt lets all with that ip pass",
		"loose refuses none: never refuses anything, since used is always tighter, except for keys that are granted more there",
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
