package h2

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// whose is the client that the next connections are of.
type whose struct{ now atomic.Pointer[netip.Addr] }

func (w *whose) of(net.Addr) netip.Addr { return *w.now.Load() }

// dial opens a connection of a client; none counts it for itself.
func (w *whose) dial(t *testing.T, addr, client string) *rawClient {
	t.Helper()
	var address netip.Addr
	if client != "" {
		address = netip.MustParseAddr(client)
	}
	w.now.Store(&address)
	c := dialRaw(t, addr)
	c.ping() // it is there
	return c
}

// TestSharesOfClients: a client with many connections that keep little each has the share of one
// client, and when memory is short its connections end before any of a client that keeps less.
func TestSharesOfClients(t *testing.T) {
	const budget = 8 << 20
	var w whose
	s, addr := serve(t, Options{
		MaxMemory: budget, MaxStreams: 1000, MaxHandlers: 1000, Logger: discard(), Client: w.of,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				<-r.Context().Done()
			}
		}),
	})
	begin := func(c *rawClient, streams int) (begun int) {
		for id := uint32(1); begun < streams; id += 2 {
			c.open(id, "/wait")
			c.ping()
			if a := c.answers[id]; a != nil {
				return begun
			}
			begun++
		}
		return begun
	}
	const modest = 8
	good := w.dial(t, addr, "192.0.2.1")
	if n := begin(good, modest); n != modest {
		t.Fatalf("%d", n)
	}
	all := 0
	for range 200 { // of which each could keep as little for itself
		all += begin(w.dial(t, addr, "192.0.2.2"), 3)
	}
	m := s.Memory()
	t.Logf("200 connections of one client: %d of 600 requests; %+v", all, m)
	if m.Connections != 0 || m.Bytes > budget*5/8 {
		t.Errorf("one client keeps more than its share: %+v", m)
	}
	if n := begin(w.dial(t, addr, "192.0.2.3"), 3); n != 3 {
		t.Errorf("another one gets %d of 3", n)
	}
	// Those that count for themselves need room now.
	for range 24 {
		begin(w.dial(t, addr, ""), 3)
	}
	if m = s.Memory(); m.Connections == 0 || m.Bytes > budget {
		t.Errorf("%+v", m)
	}
	good.ping()
	if len(good.answers) > 1 { // 0 is the connection
		t.Errorf("who keeps less in all was ended: %v", good.answers)
	}
}

// TestSmallConnectionOfGreedyClient: one that keeps much on two connections does not shut out
// others behind the same address.
func TestSmallConnectionOfGreedyClient(t *testing.T) {
	var w whose
	s, addr := serve(t, Options{
		MaxMemory: 8 << 20, MaxStreams: 1000, MaxHandlers: 1000, Logger: discard(), Client: w.of,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
	})
	for range 2 {
		fill(w.dial(t, addr, "192.0.2.1"), "/wait")
	}
	for range 3 { // a stream without a length, which is all that fits
		if n := fill(w.dial(t, addr, "192.0.2.1"), "/wait"); n != 1 {
			t.Errorf("%d more on a small connection", n)
		}
	}
	if m := s.Memory(); m.Connections != 0 || m.Bytes > 5<<20 {
		t.Errorf("%+v", m)
	}
}

// TestClientsForgotten: a client is remembered for as long as something is kept for it.
func TestClientsForgotten(t *testing.T) {
	var w whose
	s, addr := serve(t, Options{Client: w.of,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })})
	var conns []*rawClient
	for _, client := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", ""} {
		c := w.dial(t, addr, client)
		c.open(1, "/wait")
		c.ping()
		conns = append(conns, c)
	}
	known := func() int {
		s.clients.Lock()
		defer s.clients.Unlock()
		return len(s.clients.of)
	}
	if n := known(); n != 2 {
		t.Errorf("%d clients", n)
	}
	for _, c := range conns {
		_ = c.conn.Close()
	}
	patience.Until(t, "they are forgotten", func() bool { return known() == 0 })
}

// TestEvenSharesBesideLeftBehind: what somebody has left behind makes the shares of others neither
// smaller nor uneven.
func TestEvenSharesBesideLeftBehind(t *testing.T) {
	s, addr := serve(t, Options{
		MaxMemory: 8 << 20, MaxStreams: 1000, MaxHandlers: 1000, Logger: discard(),
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if <-r.Context().Done(); r.URL.Path == "/keep" {
				<-KeptWhile(r.Context()).Done()
			}
		}),
	})
	behind := dialRaw(t, addr)
	for i := range uint32(5) {
		behind.open(2*i+1, "/keep")
	}
	behind.ping()
	_ = behind.conn.Close()
	patience.Until(t, "something is left behind", func() bool { return s.left.Load() >= 5*handlerCost })
	var counts []int
	for range 6 {
		counts = append(counts, fill(dialRaw(t, addr), "/wait"))
	}
	if m := s.Memory(); m.Connections != 0 || len(s.leftBehind()) != 1 {
		t.Errorf("streams of %v: %+v", counts, m)
	}
	if counts[5] < 1 || !slices.IsSortedFunc(counts, func(a, b int) int { return b - a }) {
		t.Errorf("streams of %v", counts)
	}
	for _, c := range s.leftBehind() {
		c.calm()
	}
	patience.Until(t, "all that was left is given back",
		func() bool { return s.left.Load() == 0 && len(s.leftBehind()) == 0 })
}
