package accept

import (
	"testing"
	"time"
)

func TestGRPCTimeout(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"1S": time.Second, "200m": 200 * time.Millisecond, "0n": 0, "99999999u": 99999999 * time.Microsecond,
		"3M": 3 * time.Minute, "1H": time.Hour, "99999999H": 366 * 24 * time.Hour,
		"": -1, "S": -1, "1": -1, "1s": -1, "1.5S": -1, "-1S": -1, "+1S": -1, "100000000S": -1, " 1S": -1, "1S ": -1,
	} {
		got, ok := GRPCTimeout(value)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %v, %v, want %v", value, got, ok, want)
		}
	}
}
