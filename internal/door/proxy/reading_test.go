package proxy

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/weir-rl/weir/internal/door/proxy/deferred"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// newDeferring serves a proxy that defers all but the first request.
func newDeferring(t *testing.T, change ...func(*Options)) (addr string, h *Proxy) {
	t.Helper()
	queue, err := deferred.OpenFile(filepath.Join(t.TempDir(), "queue"), deferred.Bounds{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = queue.Close() })
	up := newUpstream(t, func(http.ResponseWriter, *http.Request) {})
	const yaml = `limits: [{name: once, allow: 1/day, algorithm: sliding_log, on_limit: {defer: later}}]`
	addr, h = serveProxy(t, up.URL, newLimiter(t, yaml), nil, append(change, trustLoopback, func(o *Options) {
		o.Defer = &Deferral{Queue: queue}
	})...)
	if status := statusOf(client(t, false).Get("http://" + addr + "/")); status != 200 {
		t.Fatalf("the first request: %d", status)
	}
	return addr, h
}

func (r *readings) bytes() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

// deferOne sends a whole request from an address.
func deferOne(t *testing.T, addr, from string) int {
	t.Helper()
	r, err := http.NewRequest("POST", "http://"+addr+"/", struct{ *strings.Reader }{strings.NewReader("order")})
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Forwarded-For", from)
	return statusOf(client(t, false).Do(r))
}

// Bodies that never come take no room from others that are to be deferred, however many may come.
func TestBodiesToDeferThatNeverCome(t *testing.T) {
	grace(t, time.Hour)
	addr, h := newDeferring(t, func(o *Options) { o.BodyTimeout = time.Hour })
	const slow = 80 // for 1 MiB of each there would be no room
	for i := range slow {
		h2c := i%2 == 1
		beginUploadWith(t, addr, h2c, []int64{-1, 1 << 20}[i/2%2], http.Header{"X-Forwarded-For": {"192.0.2.1"}})
	}
	patience.Until(t, "they are waited for", func() bool { return h.defers.reading.bytes() >= slow*firstReading })
	if n := h.defers.reading.bytes(); n > slow*firstReading {
		t.Errorf("%d bytes are taken by %d bodies of which nothing has come", n, slow)
	}
	if status := deferOne(t, addr, "192.0.2.1"); status != http.StatusAccepted {
		t.Errorf("one whose body comes: %d", status)
	}
}

// Where the room for bodies to be deferred is short, an address has no more of it than is left for
// others.
func TestBodiesToDeferShare(t *testing.T) {
	grace(t, time.Hour)
	var lines seenLines
	addr, h := newDeferring(t, func(o *Options) { o.BodyTimeout, o.Logf = time.Hour, lines.logf })
	h.defers.reading.most = 16 * firstReading
	for i, share := range []uint64{8, 4, 2, 1} {
		refused := h.Deferred().Share
		for n := range uint64(10) {
			beginUploadWith(t, addr, false, -1, http.Header{"X-Forwarded-For": {fmt.Sprintf("192.0.2.%d", i+1)}})
			patience.Until(t, "it is waited for, or refused", func() bool {
				return h.Deferred().Share-refused+min(share, n+1) == n+1
			})
		}
		want := 16 * firstReading
		for range i + 1 {
			want /= 2
		}
		patience.Until(t, "they have their share",
			func() bool { return h.defers.reading.bytes() == 16*firstReading-want })
	}
	if s := h.Deferred(); s.Share != 40-15 || s.Full != 0 ||
		strings.Count(lines.String(), "too many bodies of one address") != 1 {
		t.Errorf("%+v; the log says %s", s, lines.String())
	}
	if status := deferOne(t, addr, "192.0.2.99"); status != http.StatusAccepted {
		t.Errorf("another address: %d", status)
	}
}

// TestReadings: bodies are read whole, in room that is given back, and refused where there is none.
func TestReadings(t *testing.T) {
	r := newReadings(1 << 20)
	one, unknown := netip.MustParseAddr("192.0.2.1"), netip.Addr{}
	for _, n := range []int{0, 1, firstReading - 1, firstReading, firstReading + 1, 100_000} {
		text := strings.Repeat("x", n)
		if got, err := r.read(iotest.OneByteReader(strings.NewReader(text)), one); string(got) != text || err != nil {
			t.Errorf("%d bytes: %d, %v", n, len(got), err)
		}
	}
	large := strings.Repeat("x", 600_000)
	if _, err := r.read(strings.NewReader(large), one); !errors.Is(err, deferred.ErrShare) {
		t.Errorf("more than half for an address: %v", err)
	}
	if got, err := r.read(strings.NewReader(large), unknown); len(got) != len(large) || err != nil {
		t.Errorf("without an address: %d, %v", len(got), err)
	}
	if _, err := r.read(strings.NewReader(large+large), unknown); !errors.Is(err, deferred.ErrFull) ||
		errors.Is(err, deferred.ErrShare) {
		t.Errorf("more than all: %v", err)
	}
	broken := errors.New("broken")
	if _, err := r.read(iotest.ErrReader(broken), one); err != broken {
		t.Errorf("%v", err)
	}
	if r.used != 0 || len(r.of) != 0 {
		t.Errorf("%d bytes stay taken, of %v", r.used, r.of)
	}
}
