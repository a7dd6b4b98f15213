package resp

import (
	"testing"

	"github.com/weir-rl/weir/internal/wire/shed"
)

// Commands that have stood in line for too long are answered as the setting says; those that decide
// nothing, as ever, and all in their order.
func TestLate(t *testing.T) {
	const rules = "domain: shop\nlimits: [{name: a, per: [user], allow: 1/min}]\n"
	for answer, want := range map[shed.Answer][]string{
		shed.Error: {"-" + errLate, "-" + errLate, "-" + errLate, "-" + errLate},
		shed.Deny: {
			"[0 -1 -1 1000 0 []]", `[0 -1 -1 1000 0 [] 0 0  [] 0]`, "[1 16 0 1 1]", "[0 15 0 27 1]",
		},
		shed.Allow: {
			"[1 -1 -1 0 0 []]", `[1 -1 -1 0 0 [] 0 0  [] 0]`, "[0 16 16 -1 0]", "[1 15 15 26 0]",
		},
	} {
		for _, concurrent := range []int{0, 8} {
			line := shed.Overloaded(answer)
			c := openDoor(t, rules, Options{Line: line, Concurrent: concurrent}).dial(t)
			for range 20 { // in one pipeline
				c.send(command("WEIR.LIMIT", "shop", "1", "user", "ada") +
					command("WEIR.LIMIT", "shop", "1", "user", "ada", "FULL") +
					command("CL.THROTTLE", "key", "15", "30", "60") + command("PING") +
					command("THROTTLE", "key", "15", "30", "60"))
			}
			for range 20 {
				for i, want := range append(append([]string{}, want[:3]...), "PONG", want[3]) {
					if got := c.reply(); got != want {
						t.Fatalf("%s, answer %d: %q, want %q", answer, i, got, want)
					}
				}
			}
			if n := line.Count(); n != 80 {
				t.Errorf("%s: %d were turned away", answer, n)
			}
		}
	}
	c := openDoor(t, rules, Options{Line: shed.Overloaded(shed.Allow)}).dial(t)
	if got := c.do("WEIR.LIMIT", "shop", "x", "user", "ada"); got != "-"+errHits {
		t.Errorf("bad arguments: %q", got)
	}
}
