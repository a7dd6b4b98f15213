package redistest

import (
	"strconv"
	"testing"
	"time"
)

// TestStartAhead: a server's clock is ahead or behind, also in a function and after a restart.
func TestStartAhead(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{-time.Hour, 1500 * time.Millisecond} {
		s := StartAhead(t, ahead)
		read := func(command ...string) {
			t.Helper()
			before := time.Now().Add(ahead).Truncate(time.Microsecond)
			reply, _ := s.Do(command...).([]any)
			after := time.Now().Add(ahead)
			if len(reply) != 2 {
				t.Fatalf("%v: %v", command, reply)
			}
			var parts [2]int64
			for i := range parts {
				parts[i], _ = strconv.ParseInt(reply[i].(string), 10, 64)
			}
			if now := time.Unix(parts[0], 1000*parts[1]); now.Before(before) || now.After(after) {
				t.Errorf("%v ahead: it is %v, between %v and %v", ahead, now, before, after)
			}
		}
		read("TIME")
		read("EVAL", "return redis.call('TIME')", "0")
		s.Restart()
		read("TIME")
	}
}
