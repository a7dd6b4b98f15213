package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/upstream"
	"github.com/weir-rl/weir/overload"
)

// newPlaces serves a proxy with so many places, in front of an upstream that reads bodies. What it
// answers for /large has no end, and /hang is answered when hang is closed.
func newPlaces(t *testing.T, places int,
	change ...func(*Options)) (addr string, h *Proxy, guard *overload.Limiter, hang chan bool) {
	t.Helper()
	grace(t, time.Hour)
	dawdleSoon(t)
	hang = make(chan bool)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.URL.Path {
		case "/large":
			part := make([]byte, 64<<10)
			for {
				if _, err := w.Write(part); err != nil {
					return
				}
			}
		case "/hang":
			<-hang
		}
	})
	guard, err := overload.New(overload.Options{Fixed: places})
	if err != nil {
		t.Fatal(err)
	}
	addr, h = serveProxy(t, up.URL, newLimiter(t, noLimits), nil, append(change, trustLoopback, func(o *Options) {
		o.Overload, o.BodyTimeout = guard, time.Hour
	})...)
	return addr, h, guard, hang
}

// A body that does not come keeps its place while others are free, whatever its address has of
// them. One is cut for each request that takes the last place.
func TestSpareDawdlers(t *testing.T) {
	const places = 8
	addr, h, guard, hang := newPlaces(t, places)
	var slow []*upload
	for range places - 2 {
		u := beginUploadWith(t, addr, false, upstream.MaxBody+1000, http.Header{"X-Forwarded-For": {"192.0.2.1"}})
		u.write(upstream.MaxBody)
		slow = append(slow, u)
	}
	patience.Until(t, "they dawdle", func() bool {
		a := h.Abandoned()
		return a.Dawdling == places/2 && a.Spare == places/2-2
	})
	v := visitors{t, client(t, false), addr}
	first, _ := v.visit("192.0.2.2", "/hang")
	patience.Until(t, "it has a place", func() bool { return guard.Stats().InFlight == places-1 })
	if s := h.Stats(); s.CrowdedBodies != 0 {
		t.Errorf("with a place free %d are cut", s.CrowdedBodies)
	}
	second, _ := v.visit("192.0.2.2", "/hang")
	patience.Until(t, "one is cut", func() bool {
		return h.Stats().CrowdedBodies == 1 && h.Abandoned().Spare == places/2-3 && guard.Stats().InFlight == places-1
	})
	third, _ := v.visit("192.0.2.2", "/")
	if status := patience.Receive(t, "an answer", third); status != 200 {
		t.Errorf("a request that comes then: %d", status)
	}
	patience.Until(t, "it had the last place",
		func() bool { return h.Stats().CrowdedBodies == places/2-2 && h.Abandoned().Spare == 0 })
	close(hang)
	for _, status := range []chan int{first, second} {
		if got := patience.Receive(t, "an answer", status); got != 200 {
			t.Errorf("one of those that took the last places: %d", got)
		}
	}
	got := map[int]int{}
	for _, u := range slow {
		u.end(1000)
		got[u.answered()]++
	}
	if got[200] != places/2 || got[http.StatusRequestTimeout] != places/2-2 {
		t.Errorf("those whose bodies came late get %v", got)
	}
}

// Bodies of a known length that stop coming behind their first part have no more places than others
// that do not come.
func TestStoppedBodiesShare(t *testing.T) {
	const places = 8
	for _, h2c := range []bool{false, true} {
		for _, direct := range []bool{true, false} {
			t.Run(fmt.Sprintf("h2c=%v, direct=%v", h2c, direct), func(t *testing.T) {
				addr, h, guard, hang := newPlaces(t, places)
				defer close(hang)
				if !direct {
					h.direct = nil
				}
				for range places {
					u := beginUploadWith(t, addr, h2c, 1<<20, http.Header{"X-Forwarded-For": {"192.0.2.1"}})
					u.write(upstream.MaxBody + 100)
				}
				patience.Until(t, "half of them dawdle, and one at least is cut", func() bool {
					a := h.Abandoned()
					return a.Dawdling == places/2 && h.Stats().CrowdedBodies+uint64(a.Spare) == places/2 &&
						guard.Stats().InFlight < places
				})
				v := visitors{t, client(t, false), addr}
				for _, from := range []string{"192.0.2.1", "192.0.2.2"} {
					status, _ := v.visit(from, "/")
					if got := patience.Receive(t, "an answer", status); got != 200 {
						t.Errorf("a good request from %s: %d", from, got)
					}
				}
			})
		}
	}
}

// Answers that are not read have no more places of one address than bodies that do not come, and
// what is beyond that is broken off when no place is free.
func TestUnreadAnswersShare(t *testing.T) {
	const places = 8
	for _, h2c := range []bool{false, true} {
		for _, direct := range []bool{true, false} {
			t.Run(fmt.Sprintf("h2c=%v, direct=%v", h2c, direct), func(t *testing.T) {
				var lines seenLines
				addr, h, guard, hang := newPlaces(t, places, func(o *Options) { o.Logf = lines.logf })
				defer close(hang)
				if !direct {
					h.direct = nil
				}
				for range places {
					r, _ := http.NewRequest("GET", "http://"+addr+"/large", nil)
					r.Header.Set("X-Forwarded-For", "192.0.2.1")
					res, err := client(t, h2c).Do(r)
					if err != nil || res.StatusCode != 200 && res.StatusCode != http.StatusServiceUnavailable {
						t.Fatalf("%v, %v", res, err)
					}
					t.Cleanup(func() { _ = res.Body.Close() }) // nobody reads it
				}
				patience.Until(t, "half of them dawdle, and the rest is broken off, turned away or spare", func() bool {
					a := h.Abandoned()
					return a.Dawdling == places/2 && h.Stats().UnreadAnswers+a.Refused+uint64(a.Spare) == places/2 &&
						guard.Stats().InFlight == a.Dawdling+a.Spare
				})
				status, _ := visitors{t, client(t, false), addr}.visit("192.0.2.2", "/")
				if got := patience.Receive(t, "an answer", status); got != 200 {
					t.Errorf("a good request: %d", got)
				}
				if n := strings.Count(lines.String(), "its answer is not read"); n != 1 {
					t.Errorf("the log says %s", lines.String())
				}
			})
		}
	}
}

// An address whose unread answers have its share gets no further place while few are free, so that
// it cannot take these as well.
func TestUnreadAnswersTakeNoMore(t *testing.T) {
	const places = 8
	addr, h, guard, hang := newPlaces(t, places)
	defer close(hang)
	for range places / 2 {
		r, _ := http.NewRequest("GET", "http://"+addr+"/large", nil)
		r.Header.Set("X-Forwarded-For", "192.0.2.1")
		res, err := client(t, false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
	}
	patience.Until(t, "they dawdle", func() bool { return h.Abandoned().Dawdling == places/2 })
	v := visitors{t, client(t, false), addr}
	answer := func(from string) int {
		status, _ := v.visit(from, "/")
		return patience.Receive(t, "an answer", status)
	}
	if got := answer("192.0.2.1"); got != 200 {
		t.Errorf("while half of the places are free: %d", got)
	}
	for i := range places/2 - 1 {
		v.visit("192.0.2.2", "/hang")
		patience.Until(t, "it has a place", func() bool { return guard.Stats().InFlight == places/2+i+1 })
	}
	if got := answer("192.0.2.1"); got != http.StatusServiceUnavailable {
		t.Errorf("while one is free: %d", got)
	}
	if got := answer("192.0.2.2"); got != 200 {
		t.Errorf("another address: %d", got)
	}
}

// What of a body has come before its request takes a place earns it no time in that.
func TestStoppedBodyIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard, err := overload.New(overload.Options{Fixed: 1})
		if err != nil {
			t.Fatal(err)
		}
		network, h, end := inBubble(t, nil, func(o *Options) { o.Overload = guard })
		defer end()
		conn, _ := network.dial(t.Context(), "", "")
		defer conn.Close()
		answer := make(chan int, 1)
		start := time.Now()
		go func() { answer <- statusOf(http.ReadResponse(bufio.NewReader(conn), nil)) }()
		fmt.Fprintf(conn, "POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 1<<20)
		go func() { _, _ = conn.Write(make([]byte, upstream.MaxBody)) }()
		if status, after := <-answer, time.Since(start); status != http.StatusRequestTimeout || after > 12*time.Second {
			t.Errorf("%d after %v; %+v", status, after, h.Stats())
		}
	})
}

// The time in which nobody reads a body, since the upstream takes nothing, is no fault of its
// client.
func TestUnreadBodyDawdlesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard, err := overload.New(overload.Options{Fixed: 8})
		if err != nil {
			t.Fatal(err)
		}
		release := make(chan bool)
		network, h, end := inBubble(t, release, func(o *Options) { o.Overload = guard })
		defer end()
		for range 6 {
			conn, _ := network.dial(t.Context(), "", "")
			defer conn.Close()
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			fmt.Fprintf(conn,
				"POST /stuck HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		}
		time.Sleep(5 * time.Second)
		if a := h.Abandoned(); a.Dawdling+a.Spare != 0 || guard.Stats().InFlight != 6 || h.Stats() != (Stats{}) {
			t.Errorf("%+v, %+v, %d under way", a, h.Stats(), guard.Stats().InFlight)
		}
		close(release)
		time.Sleep(time.Second)
	})
}
