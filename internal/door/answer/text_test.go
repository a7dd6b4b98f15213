package answer

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/algo"
)

func TestAppendSeconds(t *testing.T) {
	for us, want := range map[int64]string{
		0: "0", 1: "0.000001", 10: "0.00001", 100_000: "0.1", 999_999: "0.999999", 1_000_000: "1", 1_500_000: "1.5", 60_000_000: "60", 1_000_001: "1.000001",
		algo.Never: "null", 31_536_000_000_000: "31536000",
	} {
		if got := string(AppendSeconds(nil, us)); got != want {
			t.Errorf("%d µs: got %s, want %s", us, got, want)
		}
	}
}

func TestAppendStringProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.String().Draw(t, "s")
		var back string
		if err := json.Unmarshal(AppendJSON(nil, s), &back); err != nil || back != s {
			t.Fatalf("%q became %s: %v", s, AppendJSON(nil, s), err)
		}
	})
}
