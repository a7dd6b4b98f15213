package proxy

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/overload"
)

// visitors are clients whose addresses a trusted proxy tells.
type visitors struct {
	t      *testing.T
	client *http.Client
	addr   string
}

func trustLoopback(o *Options) {
	o.ClientIP = httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
}

// visit begins a request, and returns where its status comes, 0 if none does, and what hangs up.
func (v visitors) visit(address, path string) (status chan int, hangUp context.CancelFunc) {
	v.t.Helper()
	return v.visitAs(address, path, "")
}

// visitAs is visit by a client of a tenant; "" for none.
func (v visitors) visitAs(address, path, tenant string) (status chan int, hangUp context.CancelFunc) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(v.t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+v.addr+path, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header.Set("X-Forwarded-For", address)
	if tenant != "" {
		r.Header.Set("X-Tenant", tenant)
	}
	status = make(chan int, 1)
	go func() { status <- statusOf(v.client.Do(r)) }()
	return status, cancel
}

// working is an upstream whose handler works on, whoever hangs up.
type working struct {
	begun, release chan bool
}

// newWorking serves one over HTTP/1, or HTTP/2 if way is h2c.
func newWorking(t *testing.T, way string) (w *working, url string) {
	w = &working{make(chan bool, 100), make(chan bool)}
	if way == "h2c" {
		url = h2cServer(t, w.ServeHTTP)
	} else {
		url = newUpstream(t, w.ServeHTTP).URL
	}
	t.Cleanup(func() { close(w.release) }) // before the server is closed, which waits for it
	return w, url
}

// ServeHTTP implements http.Handler.
func (w *working) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.begun <- true
	<-w.release
	if r.URL.Path == "/stream" {
		_ = http.NewResponseController(out).Flush()
		<-r.Context().Done()
	}
}

// Whoever hangs up keeps its place at the upstream, which works on; one address half of the places,
// and while it has that, no further one.
func TestAbandonedKeepTheirPlaces(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		for _, way := range []string{"http", "h2c"} {
			for _, bound := range []string{"fixed", "adaptive", "rule"} {
				t.Run(fmt.Sprintf("%s/%s/h2c=%v", bound, way, h2c), func(t *testing.T) { abandon(t, bound, way, h2c) })
			}
		}
	}
}

func abandon(t *testing.T, bound, way string, h2c bool) {
	const places = 8
	yaml, full := noLimits, http.StatusServiceUnavailable
	var guard *overload.Limiter
	var err error
	switch bound {
	case "fixed":
		guard, err = overload.New(overload.Options{Fixed: places})
	case "adaptive":
		guard, err = overload.New(overload.Options{Min: places, Max: places})
	case "rule":
		yaml, full = fmt.Sprintf("limits: [{name: all, allow: %d concurrent}]", places), http.StatusTooManyRequests
	}
	if err != nil {
		t.Fatal(err)
	}
	up, url := newWorking(t, way)
	addr, h := serveProxy(t, url, newLimiter(t, yaml), nil, trustLoopback, func(o *Options) { o.Overload = guard })
	t.Cleanup(h.Drain)
	v := visitors{t, client(t, h2c), addr}

	var all []context.CancelFunc
	for range places - 2 {
		_, hangUp := v.visit("192.0.2.1", "/")
		all = append(all, hangUp)
		patience.Receive(t, "the upstream is asked", up.begun)
	}
	for _, hangUp := range all {
		hangUp()
	}
	want := httplimit.AbandonedStats{Now: places / 2, Kept: places / 2, Cut: places/2 - 2}
	patience.Until(t, "the hang-ups are noticed", func() bool { return h.Abandoned() == want })

	crowded, _ := v.visit("192.0.2.1", "/")
	if status := patience.Receive(t, "an answer", crowded); status != http.StatusServiceUnavailable {
		t.Errorf("an address with half of the places gets %d", status)
	}
	if got := h.Abandoned().Refused; got != 1 {
		t.Errorf("%d were turned away", got)
	}
	var others []chan int
	for range places / 2 { // the other half is for others
		patience.Until(t, "another address is served", func() bool { // when what was cut has left
			status, _ := v.visit("192.0.2.2", "/")
			select {
			case <-up.begun:
				others = append(others, status)
				return true
			case got := <-status:
				if got != full {
					t.Errorf("another address gets %d", got)
				}
				return false
			case <-patience.Context(t).Done():
				return false
			}
		})
	}
	over, _ := v.visit("192.0.2.3", "/")
	if status := patience.Receive(t, "an answer", over); status != full {
		t.Errorf("with all places taken: %d", status)
	}
	for range places - 2 + places/2 { // what the upstream works on, two of which were cut
		select {
		case up.release <- true:
		case <-patience.Context(t).Done():
			t.Fatal("the upstream has nothing to do")
		}
	}
	for _, status := range others {
		if got := patience.Receive(t, "an answer", status); got != 200 {
			t.Errorf("another address gets %d", got)
		}
	}
	patience.Until(t, "the places are free", func() bool {
		return h.Abandoned().Now == 0 && (guard == nil || guard.Stats().InFlight == 0)
	})
	again, _ := v.visit("192.0.2.1", "/")
	patience.Receive(t, "the address is served again", up.begun)
	up.release <- true
	if got := patience.Receive(t, "an answer", again); got != 200 {
		t.Errorf("the address gets %d", got)
	}
}

// An abandoned request ends when the header of its answer is there, when the upstream has taken too
// long, and when the program ends.
func TestAbandonedEnd(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		for _, way := range []string{"http", "h2c"} {
			for _, end := range []string{"header", "timeout", "drain"} {
				guard, err := overload.New(overload.Options{Fixed: 2})
				if err != nil {
					t.Fatal(err)
				}
				up, url := newWorking(t, way)
				addr, h := serveProxy(t, url, newLimiter(t, noLimits), nil, func(o *Options) {
					if o.Overload = guard; end == "timeout" {
						o.Timeout = 200 * time.Millisecond
					}
				})
				t.Cleanup(h.Drain)
				_, hangUp := visitors{t, client(t, h2c), addr}.visit("", "/stream")
				patience.Receive(t, "the upstream is asked", up.begun)
				hangUp()
				switch end {
				case "header":
					patience.Until(t, "the hang-up is noticed", func() bool { return h.Abandoned().Kept == 1 })
					if in := guard.Stats().InFlight; in != 1 {
						t.Errorf("%d places are taken", in)
					}
					up.release <- true
				case "drain":
					patience.Until(t, "the hang-up is noticed", func() bool { return h.Abandoned().Kept == 1 })
					h.Drain()
				}
				patience.Until(t, fmt.Sprintf("%s, h2c=%v: the place is free (%s)", way, h2c, end), func() bool {
					return guard.Stats().InFlight == 0 && h.Abandoned().Now == 0
				})
			}
		}
	}
}

// A limit for each client has no places that its own abandoned requests could take from others; and
// where the setting says so, hanging up frees a place at once.
func TestAbandonedOwnPlaces(t *testing.T) {
	up, url := newWorking(t, "http")
	addr, h := serveProxy(t, url, newLimiter(t, `limits: [{name: own, per: [ip], allow: 2 concurrent}]`), nil,
		trustLoopback)
	t.Cleanup(h.Drain)
	v := visitors{t, client(t, false), addr}
	for i := range 2 {
		_, hangUp := v.visit("192.0.2.1", "/")
		patience.Receive(t, "the upstream is asked", up.begun)
		hangUp()
		patience.Until(t, "the hang-up is noticed", func() bool { return h.Abandoned().Kept == uint64(i+1) })
	}
	status, _ := v.visit("192.0.2.1", "/")
	if got := patience.Receive(t, "an answer", status); got != http.StatusTooManyRequests {
		t.Errorf("both places are abandoned: %d", got)
	}

	gone := make(chan bool, 1)
	cut := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		up.begun <- true
		<-r.Context().Done()
		gone <- true
	})
	addr, h = serveProxy(t, cut.URL, newLimiter(t, `limits: [{name: one, allow: 1 concurrent}]`), nil,
		func(o *Options) { o.CutAbandoned = true })
	_, hangUp := visitors{t, client(t, false), addr}.visit("", "/")
	patience.Receive(t, "the upstream is asked", up.begun)
	hangUp()
	patience.Receive(t, "the upstream sees the hang-up", gone)
	if got := h.Abandoned(); got != (httplimit.AbandonedStats{}) {
		t.Errorf("%+v", got)
	}
}

// The places of a limit for each tenant are shared by its clients: one address keeps half of them
// when it hangs up, and the others are for others of the tenant.
func TestAbandonedOfTenant(t *testing.T) {
	const places = 8
	up, url := newWorking(t, "http")
	addr, h := serveProxy(t, url, newLimiter(t,
		fmt.Sprintf("limits: [{name: tenant, per: [header.x-tenant], allow: %d concurrent}]", places)), nil,
		trustLoopback)
	t.Cleanup(h.Drain)
	v := visitors{t, client(t, false), addr}
	var all []context.CancelFunc
	for range places - 1 {
		_, hangUp := v.visitAs("192.0.2.1", "/", "acme")
		all = append(all, hangUp)
		patience.Receive(t, "the upstream is asked", up.begun)
	}
	for _, hangUp := range all {
		hangUp()
	}
	want := httplimit.AbandonedStats{Now: places / 2, Kept: places / 2, Cut: places/2 - 1}
	patience.Until(t, "the hang-ups are noticed", func() bool { return h.Abandoned() == want })
	crowded, _ := v.visitAs("192.0.2.1", "/", "acme")
	if status := patience.Receive(t, "an answer", crowded); status != http.StatusServiceUnavailable {
		t.Errorf("the address that has half of the places gets %d", status)
	}
	v.visitAs("192.0.2.1", "/", "other")
	patience.Receive(t, "places of another tenant are others", up.begun)
	for range places / 2 {
		v.visitAs("192.0.2.2", "/", "acme")
		patience.Receive(t, "another client of the tenant is served", up.begun)
	}
}
