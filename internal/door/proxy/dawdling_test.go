package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/overload"
)

// seenLines are the lines of a log.
type seenLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *seenLines) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, format+"\n", args...)
}

// String returns them.
func (l *seenLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// dawdleSoon makes requests dawdle after 20 ms.
func dawdleSoon(t *testing.T) {
	before := dawdleAfter
	dawdleAfter = 20 * time.Millisecond
	t.Cleanup(func() { dawdleAfter = before })
}

// Requests whose bodies nobody can wait for, and which do not come, have half of the places for one
// address. While they do, others of these are turned away; all other requests are served.
func TestDawdlingBodiesShare(t *testing.T) {
	grace(t, time.Hour)
	dawdleSoon(t)
	up := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	const places = 8
	for _, c := range []struct {
		name   string
		h2c    bool
		length int64
		expect bool
		rule   bool
	}{
		{"chunked", false, -1, false, false},
		{"chunked, by a limit", false, -1, false, true},
		{"Expect", false, 30_000, true, false},
		{"h2c", true, -1, false, false},
		{"h2c, by a limit", true, -1, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			yaml := noLimits
			var guard *overload.Limiter
			if c.rule {
				yaml = fmt.Sprintf("limits: [{name: all, allow: %d concurrent}]", places)
			} else {
				guard, _ = overload.New(overload.Options{Fixed: places})
			}
			var lines seenLines
			addr, h := serveProxy(t, up.URL, newLimiter(t, yaml), nil, trustLoopback, func(o *Options) {
				o.Overload, o.BodyTimeout, o.Logf = guard, time.Hour, lines.logf
			})
			begin := func(from string) *upload {
				header := http.Header{"X-Forwarded-For": {from}}
				if c.expect {
					header.Set("Expect", "100-continue")
				}
				return beginUploadWith(t, addr, c.h2c, c.length, header)
			}
			var slow []*upload
			for range places {
				slow = append(slow, begin("192.0.2.1"))
			}
			patience.Until(t, "half of them are cut, turned away, or spare", func() bool {
				a := h.Abandoned()
				return a.Dawdling == places/2 && h.Stats().CrowdedBodies+a.Refused+uint64(a.Spare) == places/2 &&
					(guard == nil || guard.Stats().InFlight == a.Dawdling+a.Spare)
			})
			if a := h.Abandoned(); a.Spare == places/2 || c.rule && a.Spare > 0 {
				t.Errorf("with all places taken: %+v", a)
			}
			if status := begin("192.0.2.1").answered(); status != http.StatusServiceUnavailable {
				t.Errorf("one more gets %d", status)
			}
			v := visitors{t, client(t, false), addr}
			for _, from := range []string{"192.0.2.1", "192.0.2.2"} {
				status, _ := v.visit(from, "/")
				if got := patience.Receive(t, "an answer", status); got != 200 {
					t.Errorf("a request without a body from %s gets %d", from, got)
				}
			}
			end := func(u *upload) int {
				switch {
				case c.length > 0:
					u.end(int(c.length))
				case u.h2c:
					u.end(1)
				default:
					_, _ = io.WriteString(u.send, "1\r\nx\r\n0\r\n\r\n")
				}
				return u.answered()
			}
			if status := end(begin("192.0.2.2")); status != 200 {
				t.Errorf("an upload from another address gets %d", status)
			}
			got := map[int]int{}
			for _, u := range slow {
				got[end(u)]++
			}
			late := got[http.StatusRequestTimeout] + got[http.StatusServiceUnavailable]
			if got[200] < places/2 || c.rule && got[200] > places/2 || late == 0 || got[200]+late != places {
				t.Errorf("those whose bodies came late get %v", got)
			}
			patience.Until(t, "nothing dawdles", func() bool { return h.Abandoned().Dawdling == 0 })
			if text := lines.String(); strings.Count(text, "its body does not come") != 1 {
				t.Errorf("the log says %s", text)
			}
			if status := end(begin("192.0.2.1")); status != 200 {
				t.Errorf("afterwards one gets %d", status)
			}
		})
	}
}

// TestDawdlingAddressesShare: several addresses whose bodies do not come never have all places:
// each gets no more than it leaves to all others.
func TestDawdlingAddressesShare(t *testing.T) {
	grace(t, time.Hour)
	dawdleSoon(t)
	up := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	const places = 16
	guard, _ := overload.New(overload.Options{Fixed: places})
	addr, h := serveProxy(t, up.URL, newLimiter(t, noLimits), nil, trustLoopback, func(o *Options) {
		o.Overload, o.BodyTimeout = guard, time.Hour
	})
	sent, want := uint64(0), 0
	for i, share := range []int{8, 4, 2, 1, 0} {
		for range 9 {
			beginUploadWith(t, addr, false, -1, http.Header{"X-Forwarded-For": {fmt.Sprintf("192.0.2.%d", i+1)}})
			sent++
			patience.Until(t, "its body does not come", func() bool {
				a := h.Abandoned()
				return uint64(a.Dawdling+a.Spare)+h.Stats().CrowdedBodies+a.Refused == sent
			})
		}
		if want += share; h.Abandoned().Dawdling != want {
			t.Errorf("%d of %d places are with the first %d addresses, want %d", h.Abandoned().Dawdling, places, i+1,
				want)
		}
	}
	v := visitors{t, client(t, false), addr}
	for _, from := range []string{"192.0.2.2", "192.0.2.99"} {
		status, _ := v.visit(from, "/")
		if got := patience.Receive(t, "an answer", status); got != 200 {
			t.Errorf("a request without a body from %s gets %d", from, got)
		}
	}
}
