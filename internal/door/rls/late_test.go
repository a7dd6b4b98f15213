package rls

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// Calls that have stood in line for too long are answered as the setting says, and counted by no
// limit.
func TestRLSLate(t *testing.T) {
	const rules = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}]\n"
	for _, test := range []struct {
		answer  shed.Answer
		want    string
		code    codes.Code
		headers int
	}{
		{shed.Error, "Unavailable: " + shed.Reason, codes.Unavailable, 0},
		{shed.Deny, "OVER_LIMIT: ", codes.OK, 2},
		{shed.Allow, "OK: ", codes.OK, 0},
	} {
		line := shed.Overloaded(test.answer)
		late := newBed(t, rules, Options{}, ServerOptions{Line: line})
		for range 40 {
			if got := late.ask(t, "d: a=1"); got != test.want {
				t.Fatalf("%s: got %q, want %q", test.answer, got, test.want)
			}
		}
		answer, err := late.client.ShouldRateLimit(t.Context(), parseRequest(t, "d: a=1"))
		if status.Code(err) != test.code || len(answer.GetResponseHeadersToAdd()) != test.headers {
			t.Errorf("%s: %v, %v", test.answer, answer, err)
		}
		if n := line.Count(); n != 41 {
			t.Errorf("%s: %d were turned away", test.answer, n)
		}
		inTime := &bed{limiter: late.limiter}
		inTime.serve(t, Options{}, ServerOptions{})
		if got := inTime.ask(t, "d: a=1"); got != "OK: OK 1/MINUTE left 0 reset 60" {
			t.Errorf("%s: after that %s: something was counted", test.answer, got)
		}
	}
}
