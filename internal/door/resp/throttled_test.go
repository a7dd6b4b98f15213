package resp

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir/algo"
)

// TestThrottled: the hook hears of decisions of CL.THROTTLE and THROTTLE, with the key as it was
// sent, also where commands are decided at the same time; not of peeks, refunds, failures and other
// commands.
func TestThrottled(t *testing.T) {
	long := strings.Repeat("k", 300)
	for _, concurrent := range []int{0, 8} {
		var mu sync.Mutex
		var told []string
		d := openDoor(t, limitRules, Options{Concurrent: concurrent, Trusted: func(string) bool { return true },
			Throttled: func(command string, key []byte, quantity, now int64, r *algo.Result) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, fmt.Sprint(command, " ", string(key), " ", quantity, " ", now, " ", r.Allowed, " ",
					r.Limit, " ", r.Remaining, " ", r.RetryAfter))
			}})
		c := d.dial(t)
		c.send(command("CL.THROTTLE", "ada", "2", "1", "60") + command("CL.THROTTLE", "ada", "2", "1", "60", "3") +
			command("CL.THROTTLE", "ada", "2", "1", "60", "0") + command("CL.THROTTLE", "ada", "2", "1", "60", "-1") +
			command("CL.THROTTLE", "ada", "2", "0", "60") + command("CL.THROTTLE", "ada", "-2", "1", "60", "0") +
			command("THROTTLE", "ada", "3", "1", "60", "2") + command("CL.THROTTLE", long, "2", "1", "60") +
			command("WEIR.LIMIT", "shop", "1", "key", "ada", "path", "/all") + command("PING"))
		for range 10 {
			c.reply()
		}
		mu.Lock()
		slices.Sort(told)
		at := d.clock.now()
		want := []string{
			fmt.Sprint("cl.throttle ada 1 ", at, " true 3 2 0"),
			fmt.Sprint("cl.throttle ada 3 ", at, " false 3 2 60000000"),
			fmt.Sprint("cl.throttle ", long, " 1 ", at, " true 3 2 0"),
			fmt.Sprint("throttle ada 2 ", at, " true 3 1 0"),
		}
		if !slices.Equal(told, want) {
			t.Errorf("%d at a time:\n%s\nwant\n%s", concurrent, strings.Join(told, "\n"), strings.Join(want, "\n"))
		}
		mu.Unlock()
	}
	// Nobody hears of a failure, except as an error.
	failures := 0
	d := openDoorOn(t, broken{}, newClock(), "",
		Options{StoreError: func(error) { failures++ }, Throttled: func(string, []byte, int64, int64, *algo.Result) {
			t.Error("a failure is told of as a decision")
		}})
	if got := d.dial(t).do("CL.THROTTLE", "ada", "2", "1", "60"); got != "-"+errStore || failures != 1 {
		t.Errorf("%s, %d failures", got, failures)
	}
}
