package upstream

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// takes is how many places a connection gets before it has to wait.
func takes(t *testing.T, p *Places, connection any) (n int) {
	t.Helper()
	for {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Enter(gone, connection, 0); errors.Is(err, context.Canceled) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
		n++
	}
}

// TestPlacesShares: who has many requests on one connection leaves some for others.
func TestPlacesShares(t *testing.T) {
	p := NewPlaces(16)
	var got []int
	for _, connection := range []any{"a", "b", "c", "d"} {
		got = append(got, takes(t, p, connection))
	}
	if got[0] != 8 || got[1] != 4 || got[2] != 2 || got[3] != 1 {
		t.Errorf("four greedy connections have %v of 16 places", got)
	}
	if n := takes(t, p, nil); n != 1 {
		t.Errorf("%d are left for others", n)
	}
	if s := p.Stats(); s != (PlaceStats{Max: 16, Used: 16}) {
		t.Errorf("%+v", s)
	}
	for connection, n := range map[any]int{"a": 8, "b": 4, "c": 2, "d": 1, nil: 1} {
		for range n {
			p.Leave(connection)
		}
	}
	if s := p.Stats(); s != (PlaceStats{Max: 16}) || len(p.clients) > 0 {
		t.Errorf("%+v, %d clients are remembered", s, len(p.clients))
	}
	var none *Places
	if _, err := none.Enter(t.Context(), "a", 0); err != nil || none.Stats() != (PlaceStats{}) {
		t.Error("where there is no bound, there is one")
	}
	none.Leave("a")
}

// TestPlacesWait: who finds no place waits, not for ever, and those go first who have fewer than
// their share.
func TestPlacesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(4)
		if n, others := takes(t, p, "greedy"), takes(t, p, nil); n != 2 || others != 2 {
			t.Fatalf("%d and %d places", n, others)
		}
		start := time.Now()
		if waited, err := p.Enter(t.Context(), nil, 2*time.Second); !errors.Is(err, ErrNoPlace) ||
			time.Since(start) != 2*time.Second || waited != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		var mu sync.Mutex
		var order []any
		enter := func(connection any) {
			go func() {
				if _, err := p.Enter(context.Background(), connection, 0); err != nil {
					t.Error(err)
				}
				mu.Lock()
				order = append(order, connection)
				mu.Unlock()
			}()
			synctest.Wait()
		}
		enter("greedy")
		enter("greedy")
		enter("modest")
		enter(nil)
		if s := p.Stats(); s.Waiting != 4 || s.Refused != 1 {
			t.Errorf("%+v", s)
		}
		for range 2 {
			p.Leave(nil)
			synctest.Wait()
		}
		if len(order) != 2 || order[0] != "modest" || order[1] != nil {
			t.Errorf("who had to wait got in as %v", order)
		}
		p.Leave("modest")
		p.Leave(nil)
		synctest.Wait()
		if len(order) != 2 { // two of four are free, as many as greedy has
			t.Errorf("%v", order)
		}
		p.Leave("greedy") // it has one: each that waits may take its place, and be one of two
		synctest.Wait()
		if len(order) != 3 || order[2] != "greedy" {
			t.Errorf("%v", order)
		}
		p.Leave("greedy")
		synctest.Wait()
		if len(order) != 4 || p.Stats().Used != 2 {
			t.Errorf("%v, %+v", order, p.Stats())
		}
		p.Leave("greedy")
		p.Leave("greedy")
		if s := p.Stats(); s.Used != 0 || len(p.clients) > 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestPlacesTogether: no more have a place than there are, whatever comes and goes, and none is
// lost.
func TestPlacesTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPlaces(7)
		var under atomic.Int64
		var wg sync.WaitGroup
		for i := range 60 {
			connection := any(i % 5)
			if i%3 == 0 {
				connection = nil
			}
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			wg.Go(func() {
				for range 40 {
					ctx, cancel := context.WithTimeout(context.Background(),
						time.Duration(rng.IntN(300))*time.Millisecond)
					if _, err := p.Enter(ctx, connection, time.Duration(1+rng.IntN(200))*time.Millisecond); err == nil {
						if n := under.Add(1); n > 7 {
							t.Errorf("%d have a place", n)
						}
						time.Sleep(time.Duration(rng.IntN(50)) * time.Millisecond)
						under.Add(-1)
						p.Leave(connection)
					}
					cancel()
				}
			})
		}
		wg.Wait()
		if s := p.Stats(); s.Used != 0 || s.Waiting != 0 || len(p.clients) > 0 {
			t.Errorf("%+v, %d clients", s, len(p.clients))
		}
	})
}

// TestHalfClose: a counted connection can close its writing half, as an upgraded tunnel does when
// one side has said all.
func TestHalfClose(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		said, _ := io.ReadAll(conn) // until the half is closed
		_, _ = conn.Write(said)
	}()
	connections := &Connections{Max: 1}
	conn, err := connections.Dialer((&net.Dialer{}).DialContext)(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("all")); err != nil {
		t.Fatal(err)
	}
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		t.Fatal("no half of it can be closed")
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if heard, err := io.ReadAll(conn); string(heard) != "all" || err != nil {
		t.Errorf("heard %q, %v", heard, err)
	}
}
