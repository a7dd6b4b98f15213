package postgres_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
)

// gate is before a server. It takes connections, and closes some of them as soon as the client has
// said something, as a proxy does whose server is not there for a moment.
type gate struct {
	net.Listener
	closes atomic.Int64 // so many of the next
	closed atomic.Int64
}

func newGate(t *testing.T, server string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	g := &gate{Listener: l}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			if g.closes.Add(-1) >= 0 {
				_, _ = client.Read(make([]byte, 1))
				g.closed.Add(1)
				_ = client.Close()
				continue
			}
			to, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			for _, ends := range [][2]net.Conn{{client, to}, {to, client}} {
				go func() {
					_, _ = io.Copy(ends[0], ends[1])
					_, _ = ends[0].Close(), ends[1].Close()
				}()
			}
		}
	}()
	return g
}

// TestBreakWhileConnecting: connections that break while they are made are as good as any that
// break: calls wait for the next one.
func TestBreakWhileConnecting(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	g := newGate(t, s.Addr())
	p := redistest.Proxy(t, g.Addr().String())
	w := newTaker(t, open(t, postgres.Options{URL: throughProxy(t, s.URL(), p.Addr()), Timeout: patience.Left(t)}))
	w.well()
	for range 3 {
		g.closes.Store(20)
		p.Cut()
		if err := w.try(t.Context()); err != nil {
			t.Error(err)
		}
		g.closes.Store(0)
	}
	if g.closed.Load() == 0 {
		t.Error("no connection broke while it was made")
	}
	if r, err := w.take(t.Context(), 0); err != nil || r.Limit-r.Remaining != w.made {
		t.Errorf("%+v, %v; %d calls were made", r, err, w.made)
	}
}

// TestClaimWithoutConnection: a claim that may have been made is not forgotten while there is no
// connection to ask what became of it.
func TestClaimWithoutConnection(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	g := newGate(t, s.Addr())
	p := redistest.Proxy(t, g.Addr().String())
	l := &lossy{server: s, proxy: p}
	l.taker = newTaker(t, open(t, postgres.Options{URL: throughProxy(t, s.URL(), p.Addr()), Timeout: patience.Left(t)}))
	l.well()
	if err := l.s.Hold(t.Context(), "one", []byte("note"), time.Hour); err != nil {
		t.Fatal(err)
	}
	l.lose("reservations", "select count(*) = 0 from weir.reservations where id >= '\\x01'", func() {
		if _, ok, err := l.s.Claim(t.Context(), "one"); ok || err == nil || errors.Is(err, store.ErrNotCharged) {
			t.Errorf("no answer came: %v, %v", ok, err)
		}
	}, func() { g.closes.Store(1 << 40) })
	// Nor is it by one that is repeated, and certainly not made.
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, ok, err := l.s.Claim(short, "one"); ok || err == nil {
		t.Errorf("there is no connection: %v, %v", ok, err)
	}
	g.closes.Store(0)
	if note, ok, err := l.s.Claim(t.Context(), "one"); string(note) != "note" || !ok || err != nil {
		t.Errorf("%q, %v, %v", note, ok, err)
	}
}
