//go:build !nocel

package cel

import (
	"regexp/syntax"
	"testing"
)

func TestPlacesOf(t *testing.T) {
	for source, want := range map[string]int{"bot": 1, "aaa": 3, "abab": 2, "bot|crawler": 3, "[ab]*z": 3,
		"(a?b?){100}c": 501, "a{3}": 3, "^/api/v[0-9]+$": 6} {
		re, err := syntax.Parse(source, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		if got := placesOf(re.Simplify()); got != want {
			t.Errorf("%s: %d, want %d", source, got, want)
		}
		if most := mostInstructions(re); most < want {
			t.Errorf("%s: at most %d instructions", source, most)
		}
	}
}
