package cas

import (
	"context"
	"testing"
	"time"
)

// TestStalledCall: a call that ends long after its time shows that this process did not run. The
// server then does not count as silent while a new connection is made; after one that ends in time
// it does.
func TestStalledCall(t *testing.T) {
	const second, quick = int64(time.Second), int64(time.Millisecond)
	for _, test := range []struct {
		took   int64
		silent bool
	}{{second, true}, {second + stallLeast, false}} {
		p := &server{timeout: second}
		p.detector.Begin(1)
		asked := 20 * second
		p.sent(asked)
		p.answered(asked+quick, quick) // the first guess is forgotten
		p.sent(asked)
		now := asked + test.took
		p.lost(t.Context(), now, asked, context.DeadlineExceeded)
		p.sent(now)
		if got := p.detector.SilentUntil(now) <= now; got != test.silent {
			t.Errorf("after %v: silent is %v", time.Duration(test.took), got)
		}
	}
}
