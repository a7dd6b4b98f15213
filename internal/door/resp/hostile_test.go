package resp

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/pipenet"
	"github.com/weir-rl/weir/store/memory"
)

// served fails unless the door serves others.
func (d *served) served(t *testing.T) {
	t.Helper()
	c := d.dial(t)
	defer c.Close()
	if got := c.do("PING"); got != "PONG" {
		t.Errorf("another client gets %s", got)
	}
}

// TestAgainstProtocol: whoever speaks otherwise is told so, and is gone.
func TestAgainstProtocol(t *testing.T) {
	d := openDoor(t, "", Options{})
	for name, a := range map[string]struct{ send, want string }{
		"a huge argument":            {"*2\r\n$4\r\nECHO\r\n$9999999999\r\n", errTooLarge.Error()},
		"a larger one than a number": {"*2\r\n$4\r\nECHO\r\n$99999999999999999999\r\n", errBulk.Error()},
		"a negative one":             {"*2\r\n$4\r\nECHO\r\n$-1\r\n", errBulk.Error()},
		"very many arguments":        {"*1000000000\r\n", errTooLarge.Error()},
		"arguments in arguments":     {"*1\r\n*1\r\n*1\r\n$4\r\nPING\r\n", errExpected.Error()},
		"no length":                  {"*\r\n", errArgs.Error()},
		"a wrong end":                {"*1\r\n$4\r\nPINGPONG\r\n", errTerminator.Error()},
		"a reply":                    {"*1\r\n+PING\r\n", errExpected.Error()},
		"much together":              {"*3\r\n$4\r\nECHO\r\n$40000\r\n" + strings.Repeat("x", 40000) + "\r\n$40000\r\n", errTooLarge.Error()},
		"a long line":                {strings.Repeat("x", maxCommand+1), errInline.Error()},
		"a quote without an end":     {"PING \"x\r\n", errQuotes.Error()},
		"binary":                     {"\x00\x01\x02\x03", errBinary.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			c := d.dial(t)
			c.send("PING\r\n" + a.send)
			c.gone("+PONG\r\n-ERR " + a.want + "\r\n")
		})
	}
	if n := count(d.Stats().Dropped, "protocol", ""); n != 12 {
		t.Errorf("%d were dropped, want 12", n)
	}
	d.served(t)
}

// TestOtherProtocols: HTTP requests, in whose bodies a web page could put commands, and TLS get
// nowhere.
func TestOtherProtocols(t *testing.T) {
	d := openDoor(t, "", Options{Trusted: func(string) bool { return true }})
	body := command("CL.THROTTLE", "k", "0", "1", "60")
	for _, method := range []string{"POST", "GET", "PUT", "OPTIONS", "post", "X"} {
		request, err := http.NewRequest(method, "http://"+d.address+"/", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Client{Timeout: patience.Left(t)}).Do(request)
		if err == nil {
			response.Body.Close()
			t.Errorf("%s: %s", method, response.Status)
		}
	}
	c := d.dial(t)
	c.send("PING a b\r\nHost: x\r\n\r\n" + body) // whatever came before
	c.gone("")
	if _, err := tls.Dial("tcp", d.address, &tls.Config{InsecureSkipVerify: true}); err == nil {
		t.Error("it speaks TLS")
	}
	st := d.Stats()
	if n := count(st.Dropped, "http", ""); n != 7 {
		t.Errorf("%d were dropped as HTTP, want 7", n)
	}
	for _, n := range st.Decisions {
		if n.N > 0 {
			t.Errorf("%d %s %s", n.N, n.Name, n.Outcome)
		}
	}
	d.served(t)
}

// TestGarbage: random bytes end in an error or in nothing.
func TestGarbage(t *testing.T) {
	d := openDoor(t, limitRules, Options{})
	var seeds bytes.Buffer
	for _, f := range frames {
		seeds.WriteString(f)
	}
	text := seeds.Bytes()
	var senders sync.WaitGroup
	for i := range 50 {
		c := d.dial(t)
		senders.Go(func() {
			for j := range 200 {
				from := (i*7919 + j*104729) % len(text)
				if _, err := c.Write(text[from:min(len(text), from+1+(i*j)%97)]); err != nil {
					return
				}
			}
			c.Close()
		})
	}
	senders.Wait()
	d.served(t)
}

// TestPartialCommands: many connections with most of a large command each take no more memory than
// they may, and who finds none left is told so.
func TestPartialCommands(t *testing.T) {
	const most = 2 << 20
	d := openDoor(t, "", Options{MaxMemory: most})
	var clients []*client
	part := "*2\r\n$4\r\nECHO\r\n$60000\r\n" + strings.Repeat("x", 50_000)
	refused := 0
	for range 60 {
		c := d.dial(t)
		c.send(part)
		clients = append(clients, c)
		if d.memory.Load() > most {
			t.Errorf("%d bytes are taken", d.memory.Load())
		}
	}
	for _, c := range clients {
		_, err := io.WriteString(c, strings.Repeat("x", 10_000)+"\r\n")
		got := ""
		if err == nil {
			got, err = readReply(c.r)
		}
		switch {
		case err != nil || got == "-ERR "+errMemory.Error():
			// who wrote on may find no more than that the connection is reset
			refused++
		case len(got) != 60_000:
			t.Errorf("%.80s", got)
		}
	}
	if refused == 0 || refused == len(clients) {
		t.Errorf("%d of %d were refused", refused, len(clients))
	}
	for _, c := range clients {
		c.Close()
	}
	eventually(t, "the memory is given back", func() bool { return d.memory.Load() == 0 })
	d.served(t)
}

// TestConnectionsBeyondMemory: connections beyond the bound are turned away.
func TestConnectionsBeyondMemory(t *testing.T) {
	d := openDoor(t, "", Options{MaxMemory: 2 * connMemory})
	first, second := d.dial(t), d.dial(t)
	for _, c := range []*client{first, second} {
		if got := c.do("PING"); got != "PONG" {
			t.Error(got)
		}
	}
	d.dial(t).gone("-ERR " + errMemory.Error() + "\r\n")
	first.Close()
	eventually(t, "there is room again", func() bool { return d.memory.Load() == connMemory })
	d.served(t)
	if n := count(d.Stats().Dropped, "memory", ""); n != 1 {
		t.Errorf("%d were dropped, want 1", n)
	}
}

// TestNothingIsKept: a connection that sent a large command once, and rests, holds neither room for
// its arguments nor the buffer that they lay in.
func TestNothingIsKept(t *testing.T) {
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // the first one leaves what pools hold
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	connections := effort.Of(50, 200)
	for name, text := range map[string]string{
		"beyond the small buffer": "*1024\r\n" + strings.Repeat("$0\r\n\r\n", 1024),
		"within it":               "*1000\r\n" + strings.Repeat(":1\r\n", 1000),
		"of a batch":              "*5\r\n$11\r\nCL.THROTTLE\r\n$9000\r\n" + strings.Repeat("k", 9000) + "\r\n:1\r\n:1\r\n:1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			d := openDoor(t, "", Options{Concurrent: 4})
			clients := make([]*client, connections)
			for i := range clients {
				clients[i] = d.dial(t)
				clients[i].do("PING")
			}
			before := heap()
			first := text[:len(text)-1]
			for _, c := range clients {
				c.send(first)
			}
			want := int64(connections) * connMemory
			if len(text) > smallBuffer {
				want += int64(connections) * largeBuffer
			}
			eventually(t, "each has a buffer of its own", func() bool { return d.memory.Load() == want })
			for _, c := range clients {
				c.send(text[len(first):])
				c.reply()
				c.do("PING") // a small read, after which nothing large is kept
			}
			eventually(t, "the memory is given back",
				func() bool { return d.memory.Load() == int64(connections)*connMemory })
			if held := (heap() - before) / int64(connections); held > 8<<10 {
				t.Errorf("a connection that rests holds %d bytes more than before", held)
			}
			runtime.KeepAlive(clients)
		})
	}
}

// TestNobodyReads: a client that sends for ever and reads nothing is held to a bound, and cut off;
// others are served meanwhile.
func TestNobodyReads(t *testing.T) {
	d := openDoor(t, "", Options{Stall: 300 * time.Millisecond})
	deaf := d.dial(t)
	echo := command("ECHO", strings.Repeat("x", 10_000))
	sent := make(chan int)
	go func() {
		n := 0
		for {
			m, err := io.WriteString(deaf, echo)
			if n += m; err != nil {
				sent <- n
				return
			}
		}
	}()
	most := int64(0)
	for {
		most = max(most, d.memory.Load())
		select {
		case n := <-sent:
			if limit := int64(connMemory + largeBuffer + 2*maxUnread + 3*chunkSize); most > 2*limit {
				t.Errorf("%d bytes were taken for a client that sent %d and read none; the bound is %d", most, n, limit)
			}
			eventually(t, "it is counted", func() bool { return count(d.Stats().Dropped, "slow", "") == 1 })
			d.served(t)
			return
		default:
			d.served(t)
			runtime.Gosched()
		}
	}
}

// onVirtualTime runs test with a server whose connections are pipes.
func onVirtualTime(t *testing.T, o Options, test func(t *testing.T, s *Server, l *pipenet.Listener)) {
	synctest.Test(t, func(t *testing.T) {
		store, err := memory.New(memory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		limiter, err := weir.New(store)
		if err != nil {
			t.Fatal(err)
		}
		s, l := New(limiter, store, o), pipenet.Listen()
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		test(t, s, l)
		if err := s.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// goneAfter reads until the connection is closed, and returns what came, and after how long.
func goneAfter(t *testing.T, c net.Conn, begun time.Time) (string, time.Duration) {
	t.Helper()
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), time.Since(begun)
}

// TestTimes: a silent connection, one that says nothing from the start, and one that never ends
// what it says are closed.
func TestTimes(t *testing.T) {
	for _, c := range []struct {
		name     string
		send     []string // one a second
		at       time.Duration
		reason   string
		answered string
	}{
		{"nothing is said", nil, 30 * time.Second, "slow", ""},
		{"silence after a command", []string{"PING\r\n"}, 10 * time.Minute, "idle", "+PONG\r\n"},
		{"half a command", []string{"PING\r\n", "*2\r\n$4\r\n"}, 31 * time.Second, "slow", "+PONG\r\n"},
		{"a command in drops", strings.Split("P I N G - x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x x", " "), 30 * time.Second, "slow", ""},
		{"a large command in drops", append([]string{"*2\r\n$4\r\nECHO\r\n$60000\r\n"}, strings.Split(strings.Repeat("x ", 50), " ")...), 30 * time.Second, "slow", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			onVirtualTime(t, Options{}, func(t *testing.T, s *Server, l *pipenet.Listener) {
				nc := l.Dial()
				begun := time.Now()
				var sending sync.WaitGroup
				sending.Go(func() {
					for i, text := range c.send {
						if i > 0 {
							time.Sleep(time.Second)
						}
						if _, err := io.WriteString(nc, text); err != nil {
							return
						}
					}
				})
				got, after := goneAfter(t, nc, begun)
				if got != c.answered || after < c.at || after > c.at+c.at/4 {
					t.Errorf("it is closed after %v, want %v; it said %q, want %q", after, c.at, got, c.answered)
				}
				sending.Wait()
				if n := count(s.Stats().Dropped, c.reason, ""); n != 1 {
					t.Errorf("it is not counted as %s: %+v", c.reason, s.Stats().Dropped)
				}
			})
		})
	}
}

// TestSlowReader: an answer that nobody takes is given up in its time.
func TestSlowReader(t *testing.T) {
	onVirtualTime(t, Options{Stall: 20 * time.Second}, func(t *testing.T, s *Server, l *pipenet.Listener) {
		nc := l.Dial()
		if _, err := io.WriteString(nc, "PING\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(19 * time.Second)
		if n := s.Stats().Connections; n != 1 {
			t.Errorf("%d connections before the time", n)
		}
		time.Sleep(7 * time.Second)
		if st := s.Stats(); st.Connections != 0 || count(st.Dropped, "slow", "") != 1 {
			t.Errorf("after the time: %+v", st)
		}
	})
}

// TestShutdown: what has come is answered, silent connections are closed, and what does not end is
// cut off.
func TestShutdown(t *testing.T) {
	onVirtualTime(t, Options{}, func(t *testing.T, s *Server, l *pipenet.Listener) {
		silent, half := l.Dial(), l.Dial()
		for _, text := range []string{"PING\r\n", "*1\r\n$4\r\nPI"} {
			if _, err := io.WriteString(half, text); err != nil {
				t.Fatal(err)
			}
			if text == "PING\r\n" {
				if _, err := io.ReadFull(half, make([]byte, 7)); err != nil {
					t.Fatal(err)
				}
			}
		}
		unread := l.Dial() // its answer blocks
		if _, err := io.WriteString(unread, "PING\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		ended := make(chan error)
		go func() { ended <- s.Shutdown(ctx) }()
		for _, nc := range []net.Conn{silent, half} {
			if got, after := goneAfter(t, nc, begun); got != "" || after != 0 {
				t.Errorf("%q after %v", got, after)
			}
		}
		if err := <-ended; err != context.DeadlineExceeded || time.Since(begun) != 3*time.Second {
			t.Errorf("Shutdown: %v after %v", err, time.Since(begun))
		}
		if err := s.Serve(pipenet.Listen()); err != nil {
			t.Errorf("Serve after Shutdown: %v", err)
		}
	})
}
