package proxy

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/overload"
)

// A request that is spare under overload counts in the share of its slot all the same, so that one
// address never has all slots.
func TestSpareCountsInSlots(t *testing.T) {
	const slots = 8
	grace(t, time.Millisecond) // so that whoever dawdles is soon spare
	dawdleSoon(t)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		for part := make([]byte, 64<<10); r.URL.Path == "/large"; {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	})
	guard, err := overload.New(overload.Options{Fixed: 100})
	if err != nil {
		t.Fatal(err)
	}
	limits := fmt.Sprintf("limits: [{name: all, allow: %d concurrent}]", slots)
	addr, h := serveProxy(t, up.URL, newLimiter(t, limits), nil, trustLoopback, func(o *Options) { o.Overload = guard })
	turnedAway := 0
	for range slots {
		r, _ := http.NewRequest("GET", "http://"+addr+"/large", nil)
		r.Header.Set("X-Forwarded-For", "192.0.2.1")
		res, err := client(t, false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusOK {
			turnedAway++
		}
		t.Cleanup(func() { _ = res.Body.Close() }) // nobody reads it
	}
	patience.Until(t, "half of them keep their slots, and are spare", func() bool {
		a := h.Abandoned()
		return a.Spare == slots/2 && a.Dawdling == 0 && h.Stats().UnreadAnswers+uint64(turnedAway) == slots/2
	})
	patience.Until(t, "the places of the others are free", func() bool { return guard.Stats().InFlight == slots/2 })
	status, _ := visitors{t, client(t, false), addr}.visit("192.0.2.2", "/")
	if got := patience.Receive(t, "an answer", status); got != 200 {
		t.Errorf("a good request: %d", got)
	}
}
