package httpapi

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// Numbers that are integers, however they are written, are hits; and no others are.
func TestHits(t *testing.T) {
	for text, want := range map[string]int64{
		"1.0": 1, "-1.0": -1, "0.0": 0, "-0": 0, "0e5": 0, "0e99999999999999999999": 0, "-0.000e-99999999999999999999": 0, "1e3": 1000, "1E+3": 1000, "1.50e1": 15, "150e-1": 15, "1200.00e-2": 12, "0.001e3": 1, "2147483647.000": 2147483647, "100": 100, "10.0": 10,
	} {
		if n, ok := parseHits(text); !ok || n != want {
			t.Errorf("%s: %d, %v, want %d", text, n, ok, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,4})(\.[0-9]{1,4})?([eE][+-]?[0-9])?`).Draw(t, "text")
		exact, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("%s is no number", text)
		}
		want := exact.IsInt() && exact.Num().IsInt64() && -maxHits <= exact.Num().Int64() &&
			exact.Num().Int64() <= maxHits
		n, got := parseHits(text)
		if got != want || got && n != exact.Num().Int64() {
			t.Fatalf("%s: %d, %v; it is %s", text, n, got, exact)
		}
	})
}
