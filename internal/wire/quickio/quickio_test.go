package quickio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// eachNetwork runs f on both ends of a connection of each kind.
func eachNetwork(t *testing.T, f func(t *testing.T, ours, peer net.Conn)) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0",
		"unix": filepath.Join(testproc.SocketDir(t), "s")} {
		t.Run(network, func(t *testing.T) {
			l, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			peer, err := net.Dial(network, l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			ours, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer ours.Close()
			f(t, ours, peer)
		})
	}
}

// TestSupported: the ordinary calls are not what is tested here.
func TestSupported(t *testing.T) {
	eachNetwork(t, func(t *testing.T, ours, _ net.Conn) {
		if c := New(ours); (c.raw != nil) != supported {
			t.Errorf("system calls of our own: %v, want %v", c.raw != nil, supported)
		}
	})
}

// TestBytes: what is written is what is read, whatever the sizes, and however slow the peer.
func TestBytes(t *testing.T) {
	eachNetwork(t, func(t *testing.T, ours, peer net.Conn) {
		c := New(ours)
		random := rand.New(rand.NewPCG(1, 2))
		sent := make([]byte, 8<<20)
		for i := range sent {
			sent[i] = byte(random.Uint32())
		}
		sizes := []int{1, 2, 7, 100, 1000, most - 1, most, most + 1, 5 * most}
		var echo sync.WaitGroup
		echo.Go(func() { // both directions are under way at a time, until both block
			_, _ = io.Copy(peer, peer)
			_ = peer.Close()
		})
		var writer sync.WaitGroup
		writer.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(sizes[random.IntN(len(sizes))], len(rest))
				if wrote, err := c.Write(rest[:n]); wrote != n || err != nil {
					t.Errorf("%d bytes: %d, %v", n, wrote, err)
					return
				}
				rest = rest[n:]
			}
			_ = ours.(interface{ CloseWrite() error }).CloseWrite()
		})
		var got []byte
		for i := 0; ; i++ {
			buffer := make([]byte, sizes[i%len(sizes)])
			n, err := c.Read(buffer)
			got = append(got, buffer[:n]...)
			if err == io.EOF && n == 0 {
				break
			}
			if err != nil || n == 0 {
				t.Fatalf("after %d bytes: %d, %v", len(got), n, err)
			}
		}
		writer.Wait()
		echo.Wait()
		if !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back, not the %d that were sent", len(got), len(sent))
		}
	})
}

// TestWritesTogether: what is written at the same time does not mix, whatever the sizes.
func TestWritesTogether(t *testing.T) {
	eachNetwork(t, func(t *testing.T, ours, peer net.Conn) {
		c := New(ours)
		if c.raw != nil {
			c.nc = guarded{ours, &c.out.mu, t}
		}
		sizes := map[byte]int{'a': most - 1, 'b': 2*most + 1}
		var writers sync.WaitGroup
		for name, size := range sizes {
			writers.Go(func() {
				for range 100 {
					if _, err := c.Write(bytes.Repeat([]byte{name}, size)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		go func() {
			writers.Wait()
			_ = ours.Close()
		}()
		got, err := io.ReadAll(peer)
		if err != nil {
			t.Fatal(err)
		}
		for len(got) > 0 {
			size := min(sizes[got[0]], len(got))
			if n := bytes.Count(got[:size], got[:1]); n < sizes[got[0]] {
				t.Fatalf("%d bytes of a write of %d are together", n, sizes[got[0]])
			}
			got = got[size:]
		}
	})
}

// guarded is a connection whose ordinary writes have to be made while mu is held.
type guarded struct {
	net.Conn
	mu *sync.Mutex
	t  *testing.T
}

func (c guarded) Write(p []byte) (int, error) {
	if c.mu.TryLock() {
		c.mu.Unlock()
		c.t.Errorf("a write of %d bytes may go between the parts of another", len(p))
	}
	return c.Conn.Write(p)
}

// TestErrors: errors read like ordinary calls' errors.
func TestErrors(t *testing.T) {
	ended := func(c net.Conn) { _ = c.Close() }
	reset := func(c net.Conn) {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	for name, step := range map[string]func(t *testing.T, rw io.ReadWriter, ours, peer net.Conn) error{
		"closed before a read": func(_ *testing.T, rw io.ReadWriter, ours, _ net.Conn) error {
			_ = ours.Close()
			_, err := rw.Read(make([]byte, 10))
			return err
		},
		"closed before a write": func(_ *testing.T, rw io.ReadWriter, ours, _ net.Conn) error {
			_ = ours.Close()
			_, err := rw.Write(make([]byte, 10))
			return err
		},
		"a deadline before a read": func(t *testing.T, rw io.ReadWriter, ours, peer net.Conn) error {
			if _, err := peer.Write([]byte("there is something")); err != nil {
				t.Fatal(err)
			}
			_ = ours.SetReadDeadline(time.Unix(1, 0))
			_, err := rw.Read(make([]byte, 10))
			return err
		},
		"a deadline before a write": func(_ *testing.T, rw io.ReadWriter, ours, _ net.Conn) error {
			_ = ours.SetWriteDeadline(time.Unix(1, 0))
			_, err := rw.Write(make([]byte, 10))
			return err
		},
		"the peer has ended": func(_ *testing.T, rw io.ReadWriter, _, peer net.Conn) error {
			ended(peer)
			_, err := rw.Read(make([]byte, 10))
			return err
		},
		"the peer has reset": func(_ *testing.T, rw io.ReadWriter, _, peer net.Conn) error {
			reset(peer)
			_, err := rw.Read(make([]byte, 10))
			return err
		},
		"writes to a peer that has reset": func(_ *testing.T, rw io.ReadWriter, _, peer net.Conn) error {
			reset(peer)
			for {
				if _, err := rw.Write(make([]byte, 10)); err != nil {
					return err
				}
			}
		},
		"no room": func(_ *testing.T, rw io.ReadWriter, ours, _ net.Conn) error {
			_ = ours.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
			for {
				if _, err := rw.Write(make([]byte, 50_000)); err != nil {
					return err
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachNetwork(t, func(t *testing.T, ours, peer net.Conn) {
				got := step(t, New(ours), ours, peer)
				var want error
				eachNetworkOf(t, ours.LocalAddr().Network(),
					func(ours, peer net.Conn) { want = step(t, ours, ours, peer) })
				for _, kind := range []error{net.ErrClosed, os.ErrDeadlineExceeded, io.EOF, syscall.ECONNRESET,
					syscall.EPIPE} {
					if errors.Is(got, kind) != errors.Is(want, kind) {
						t.Errorf("%v, want an error as %v", got, want)
					}
				}
				var ourOp, theirOp *net.OpError
				if errors.As(got, &ourOp) != errors.As(want, &theirOp) {
					t.Errorf("%T, want %T", got, want)
				} else if ourOp != nil && (ourOp.Op != theirOp.Op || ourOp.Net != theirOp.Net ||
					ourOp.Err.Error() != theirOp.Err.Error() || ourOp.Timeout() != theirOp.Timeout()) {
					t.Errorf("%v, want an error as %v", got, want)
				}
			})
		})
	}
}

func eachNetworkOf(t *testing.T, network string, f func(ours, peer net.Conn)) {
	eachNetwork(t, func(_ *testing.T, ours, peer net.Conn) {
		if ours.LocalAddr().Network() == network {
			f(ours, peer)
		}
	})
}

// TestWaiting: a read that waits ends when bytes come, with its deadline, and with its connection.
func TestWaiting(t *testing.T) {
	eachNetwork(t, func(t *testing.T, ours, peer net.Conn) {
		c := New(ours)
		type result struct {
			n   int
			err error
		}
		wait := func() <-chan result {
			out := make(chan result, 1)
			go func() {
				n, err := c.Read(make([]byte, 100))
				out <- result{n, err}
			}()
			return out
		}
		for range 100 {
			waiting := wait()
			if _, err := peer.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if r := <-waiting; r.n != 5 || r.err != nil {
				t.Fatal(r)
			}
		}
		waiting := wait()
		_ = ours.SetReadDeadline(time.Unix(1, 0))
		if r := <-waiting; r.n != 0 || !errors.Is(r.err, os.ErrDeadlineExceeded) {
			t.Fatal(r)
		}
		_ = ours.SetReadDeadline(time.Time{})
		waiting = wait()
		_ = ours.Close()
		if r := <-waiting; r.n != 0 || !errors.Is(r.err, net.ErrClosed) {
			t.Fatal(r)
		}
	})
}

// TestAtOnce: one of many reads that wait for nothing is an ordinary one, which the scheduler's
// watch hears of.
func TestAtOnce(t *testing.T) {
	if !supported {
		t.Skip("all calls are ordinary")
	}
	eachNetwork(t, func(t *testing.T, ours, peer net.Conn) {
		told := 0
		c := New(ours)
		c.nc = counted{ours, &told}
		if _, err := peer.Write(make([]byte, 10*tellEvery)); err != nil {
			t.Fatal(err)
		}
		for range 5 * (tellEvery + 1) {
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if told != 5 {
			t.Errorf("%d ordinary reads of %d, want 5", told, 5*(tellEvery+1))
		}
	})
}

type counted struct {
	net.Conn
	reads *int
}

func (c counted) Read(p []byte) (int, error) {
	*c.reads++
	return c.Conn.Read(p)
}

// TestOther: what is no socket is read and written all the same.
func TestOther(t *testing.T) {
	ours, peer := net.Pipe()
	defer ours.Close()
	c := New(ours)
	go func() { _, _ = peer.Write([]byte("abc")) }()
	b := make([]byte, 10)
	if n, err := c.Read(b); string(b[:n]) != "abc" || err != nil {
		t.Errorf("%q, %v", b[:n], err)
	}
	_ = peer.Close()
	if _, err := c.Write(b); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
}

// BenchmarkEcho is the floor of a door with one caller: a server that answers at once, with
// ordinary calls and with this package's. Both ends are in this process.
func BenchmarkEcho(b *testing.B) {
	for _, quick := range []bool{false, true} {
		b.Run(map[bool]string{false: "ordinary", true: "quick"}[quick], func(b *testing.B) {
			l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			go func() {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				defer nc.Close()
				var rw io.ReadWriter = nc
				if quick {
					rw = New(nc)
				}
				buffer := make([]byte, 4096)
				for {
					n, err := rw.Read(buffer)
					if err != nil {
						return
					}
					if _, err := rw.Write(buffer[:n]); err != nil {
						return
					}
				}
			}()
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer nc.Close()
			p := make([]byte, 100)
			for b.Loop() {
				if _, err := nc.Write(p); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(nc, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
