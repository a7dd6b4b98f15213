package spoe

import (
	"testing"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// Requests that have stood in line for too long are answered as the setting says.
func TestLate(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		for answer, want := range map[shed.Answer][3]any{
			shed.Error: {nil, errorLate, nil}, shed.Deny: {true, errorLate, int64(429)}, shed.Allow: {false, nil, nil},
		} {
			o.Line = shed.Overloaded(answer)
			p := dial(t, serve(t, New(newLimiter(t, "limits: [{name: a, per: [ip], allow: 1/day}]"), o))).greet()
			for range 3 {
				v := p.ask("ip", client)
				if got := [3]any{v["deny"], v["error"], v["status"]}; got != want || v["limit"] != nil {
					t.Errorf("%s: %v", answer, v)
				}
			}
			if n := o.Line.Count(); n != 3 {
				t.Errorf("%s: %d were turned away", answer, n)
			}
		}
	})
}
