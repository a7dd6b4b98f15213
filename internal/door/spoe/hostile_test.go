package spoe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// TestMalformed: each malformed input ends its connection, and says why; others go on being served.
func TestMalformed(t *testing.T) {
	length := func(n uint32, rest ...byte) []byte { return append(binary.BigEndian.AppendUint32(nil, n), rest...) }
	raw := func(b ...byte) []byte { return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) }
	good := message("m", "ip", client)
	var many []any
	for range 255 {
		many = append(many, "a", "b")
	}
	for name, c := range map[string]struct {
		bytes []byte
		want  status
		fresh bool // before the HELLO
	}{
		"a huge length":               {length(0xffffffff), statusTooBig, false},
		"a length beyond the bound":   {length(16381), statusTooBig, false},
		"a length of 0":               {length(0), statusInvalid, false},
		"a length below any frame":    {length(6, 3, 0, 0, 0, 1, 0), statusInvalid, false},
		"HTTP":                        {[]byte("GET / HTTP/1.1\r\nHost: weir\r\n\r\n"), statusTooBig, true},
		"TLS":                         {[]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), statusTooBig, true},
		"a HELLO that is too long":    {length(4097, 1), statusTooBig, true},
		"a NOTIFY first":              {notify(1, 1, good), statusInvalid, true},
		"a DISCONNECT first":          {rawFrame(2, 1, 0, 0, nil), statusInvalid, true},
		"an unknown frame first":      {rawFrame(9, 1, 0, 0, nil), statusInvalid, true},
		"a HELLO in pieces":           {rawFrame(1, 0, 0, 0, nil), statusFragmentation, true},
		"a HELLO without a value":     {rawFrame(1, 1, 0, 0, str("supported-versions")), statusInvalid, true},
		"a HELLO without a name":      {rawFrame(1, 1, 0, 0, pairs("", 1)), statusInvalid, true},
		"a HELLO with a bad length":   {rawFrame(1, 1, 0, 0, []byte{0xff, 0xff, 0xff}), statusInvalid, true},
		"a second HELLO":              {helloFrom26(), statusInvalid, false},
		"a NOTIFY in pieces":          {rawFrame(3, 0, 1, 1, good), statusFragmentation, false},
		"a piece":                     {rawFrame(0, 0, 1, 1, good), statusFragmentation, false},
		"the last piece":              {rawFrame(0, 1, 1, 1, good), statusFragmentation, false},
		"AGENT-HELLO":                 {rawFrame(101, 1, 0, 0, nil), statusInvalid, false},
		"AGENT-DISCONNECT":            {rawFrame(102, 1, 0, 0, nil), statusInvalid, false},
		"ACK":                         {rawFrame(103, 1, 1, 1, nil), statusInvalid, false},
		"a stream id without an end":  {raw(3, 0, 0, 0, 1, 0xff, 0xff, 0xff), statusInvalid, false},
		"a frame id beyond 64 bits":   {raw(append([]byte{3, 0, 0, 0, 1, 1}, bytes.Repeat([]byte{0xff}, 12)...)...), statusInvalid, false},
		"a message without a name":    {notify(1, 1, message("", "ip", client)), statusInvalid, false},
		"a message without arguments": {notify(1, 1, str("m")), statusInvalid, false},
		"fewer arguments than said":   {notify(1, 1, append(str("m"), 3)), statusInvalid, false},
		"more arguments than said":    {notify(1, 1, append(slices.Clone(good), pairs("x", "y")...)), statusInvalid, false},
		"too many arguments":          {notify(1, 1, message("m", many...), message("m", many...), message("m", many...)), statusInvalid, false},
		"an unknown type":             {notify(1, 1, slices.Concat(str("m"), []byte{1}, str("a"), []byte{12})), statusInvalid, false},
		"a text beyond the frame":     {notify(1, 1, slices.Concat(str("m"), []byte{1}, str("a"), []byte{8}, number(1<<40), []byte("x"))), statusInvalid, false},
		"a text of 2^64 bytes":        {notify(1, 1, slices.Concat(str("m"), []byte{1}, str("a"), []byte{8}, number(1<<64-1))), statusInvalid, false},
		"half an address":             {notify(1, 1, slices.Concat(str("m"), []byte{1}, str("a"), []byte{6, 1, 2})), statusInvalid, false},
		"a name beyond the frame":     {notify(1, 1, number(1<<32)), statusInvalid, false},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, o Options) {
				addr := serve(t, New(limiterFor(t, o, apiRules), o))
				other := dial(t, addr).greet()
				p := dial(t, addr)
				if !c.fresh {
					p.greet()
				}
				p.send(c.bytes)
				p.ends(c.want)
				if v := other.ask("ip", client, "path", "/api/x"); v["remaining"] != int64(2) {
					t.Errorf("the other connection: %v", v)
				}
			})
		})
	}
}

// TestDisconnect: what came before is answered, then the agent disconnects too.
func TestDisconnect(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		var log logged
		o.Logger = log.logger()
		addr := serve(t, New(limiterFor(t, o, apiRules), o))
		for _, payload := range [][]byte{
			pairs("status-code", uint32(0), "message", "normal"),
			pairs("status-code", uint32(2), "message", "a timeout\noccurred"), nil, {1, 2, 3},
			pairs("status-code", uint32(4), "message", "invalid\nframe"),
		} {
			p := dial(t, addr).greet()
			p.send(append(notify(1, 1, message("m", "ip", client)), rawFrame(2, 1, 0, 0, payload)...))
			if r := p.next(); r.kind != 103 {
				t.Fatalf("frame %d", r.kind)
			}
			p.ends(statusNormal)
		}
		// One line within a minute.
		if text := log.text(); strings.Count(text, "\n") != 1 || strings.Contains(text, "timeout") {
			t.Error(text)
		}
	})
}

// TestPipelining: many requests at once, cut anywhere, are each answered once.
func TestPipelining(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		const n = 3000
		p := dial(t,
			serve(t, New(limiterFor(t, o, "limits: [{name: a, per: [user], allow: 1000/day, algorithm: sliding_log}]"),
				o))).greet()
		var all []byte
		for i := range n {
			all = append(all, notify(uint64(i), uint64(i)%7,
				message("m", "user", "ada", "pad", strings.Repeat("x", i%500)))...)
		}
		random := rand.New(rand.NewPCG(1, 2))
		go func() {
			for len(all) > 0 {
				k := min(1+random.IntN(3000), len(all))
				if _, err := p.conn.Write(all[:k]); err != nil {
					t.Error(err)
					return
				}
				all = all[k:]
			}
		}()
		seen, denied := map[uint64]bool{}, 0
		for range n {
			r := p.next()
			if r.kind != 103 || seen[r.stream] || r.id != r.stream%7 {
				t.Fatalf("%+v", r)
			}
			seen[r.stream] = true
			if r.vars(t)["deny"] == true {
				denied++
			}
		}
		if len(seen) != n || denied != n-1000 {
			t.Errorf("%d answers, %d refusals, want %d and %d", len(seen), denied, n, n-1000)
		}
	})
}

// pipes is a listener without a network, for virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "@"} }

func (l *pipes) dial(t testing.TB) *peer {
	here, there := net.Pipe()
	l.conns <- there
	return newPeer(t, here)
}

// inBubble runs a test in virtual time with an agent that listens on pipes.
func inBubble(t *testing.T, o Options, test func(t *testing.T, l *pipes, a *Agent)) {
	limiter := limiterFor(t, o, apiRules)
	synctest.Test(t, func(t *testing.T) {
		l, a := newPipes(), New(limiter, o)
		done := make(chan error, 1)
		go func() { done <- a.Serve(l) }()
		test(t, l, a)
		if err := a.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// trickle sends a byte a second, until the connection ends.
func trickle(p *peer, b []byte) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for _, c := range b {
			if _, err := p.conn.Write([]byte{c}); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}()
	return done
}

func TestTimeouts(t *testing.T) {
	// after checks that the connection ends with a status at an instant.
	after := func(t *testing.T, p *peer, began time.Time, want time.Duration, s status) {
		t.Helper()
		p.ends(s)
		if d := time.Since(began); d < want || d > want+want/4 {
			t.Errorf("it ended after %v, want %v", d, want)
		}
	}
	for name, test := range map[string]func(t *testing.T, l *pipes){
		"no HELLO": func(t *testing.T, l *pipes) {
			began := time.Now()
			after(t, l.dial(t), began, 10*time.Second, statusTimeout)
		},
		"a HELLO byte by byte": func(t *testing.T, l *pipes) {
			p, began := l.dial(t), time.Now()
			done := trickle(p, helloFrom26())
			after(t, p, began, 10*time.Second, statusTimeout)
			<-done
		},
		"a NOTIFY byte by byte": func(t *testing.T, l *pipes) {
			p := l.dial(t).greet()
			time.Sleep(time.Minute)
			began := time.Now()
			done := trickle(p, notify(1, 1, message("m", "ip", client)))
			after(t, p, began, 10*time.Second, statusTimeout)
			<-done
		},
		"silence": func(t *testing.T, l *pipes) {
			p := l.dial(t).greet()
			began := time.Now()
			after(t, p, began, 10*time.Minute, statusNormal)
		},
		"frames that never end where a read does": func(t *testing.T, l *pipes) {
			p := l.dial(t).greet()
			whole := notify(7, 1, message("m", "ip", client))
			p.send(whole[:9])
			for range 100 { // of 3 s
				time.Sleep(3 * time.Second)
				p.send(append(slices.Clone(whole[9:]), whole[:9]...))
				if r := p.next(); r.kind != 103 {
					t.Fatalf("frame %d", r.kind)
				}
			}
			began := time.Now()
			after(t, p, began, 8750*time.Millisecond, statusTimeout)
		},
		"answers that nobody takes": func(t *testing.T, l *pipes) {
			p := l.dial(t).greet()
			p.send(notify(1, 1, message("m", "ip", client)))
			time.Sleep(11 * time.Second)
			if _, err := p.conn.Write([]byte{0}); !errors.Is(err, io.ErrClosedPipe) {
				t.Errorf("%v, want a connection that is closed", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, o Options) {
				inBubble(t, o, func(t *testing.T, l *pipes, _ *Agent) { test(t, l) })
			})
		})
	}
}

// TestManyConnections: connections that have sent all but the end of the largest frame cost what
// they have sent, and others are served.
func TestManyConnections(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		inBubble(t, o, func(t *testing.T, l *pipes, _ *Agent) {
			const n = 2000
			heap := func() uint64 {
				synctest.Wait()
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return m.HeapAlloc + m.StackInuse
			}
			before := heap()
			silent := make([]*peer, n)
			for i := range silent {
				silent[i] = l.dial(t).greet()
			}
			idle := (heap() - before) / n
			begun := append(binary.BigEndian.AppendUint32(nil, 16380), make([]byte, 16379)...)
			for _, p := range silent {
				p.send(begun)
			}
			full := (heap() - before) / n
			if v := l.dial(t).greet().ask("ip", client, "path", "/api/x"); v["remaining"] != int64(2) {
				t.Errorf("%v", v)
			}
			t.Logf("a connection takes %d bytes idle, %d with a frame that does not end, the test's own side included",
				idle, full)
			if full > 64<<10 {
				t.Errorf("%d bytes a connection", full)
			}
			for _, p := range silent {
				p.conn.Close()
			}
		})
	})
}

// gate is a store that waits.
type gate struct {
	store.Store
	waiting chan struct{} // gets one for each that came
	open    chan struct{}
}

func (g *gate) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	g.waiting <- struct{}{}
	select {
	case <-g.open:
		return g.Store.Take(ctx, charges, results)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func newGate(t *testing.T) *gate {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return &gate{store, make(chan struct{}, 1000), make(chan struct{})}
}

// TestShutdown: what is under way is answered, then HAProxy is told.
func TestShutdown(t *testing.T) {
	g := newGate(t)
	a := New(newLimiterOver(t, g, apiRules), Options{Parallel: 8})
	addr := serve(t, a)
	idle, busy, fresh := dial(t, addr).greet(), dial(t, addr).greet(), dial(t, addr)
	for i := range 4 {
		busy.send(notify(uint64(i), 1, message("m", "ip", client, "path", "/api/x")))
		<-g.waiting
	}
	stopped := make(chan error, 1)
	go func() { stopped <- a.Shutdown(context.Background()) }()
	idle.ends(statusNormal)
	fresh.ends(statusNormal)
	close(g.open)
	for range 4 {
		if r := busy.next(); r.kind != 103 {
			t.Fatalf("frame %d", r.kind)
		}
	}
	busy.ends(statusNormal)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("it still takes connections")
	}
}

// TestShutdownCutsOff: what takes too long is not waited for.
func TestShutdownCutsOff(t *testing.T) {
	for _, o := range []Options{{}, {Parallel: 8}} {
		g := newGate(t)
		a := New(newLimiterOver(t, g, apiRules), o)
		p := dial(t, serve(t, a)).greet()
		p.send(notify(1, 1, message("m", "ip", client, "path", "/api/x")))
		<-g.waiting
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Shutdown(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
}

// TestSlowStore: one connection that waits for the store, with all that it may have under way, does
// not keep another from being answered.
func TestSlowStore(t *testing.T) {
	g := newGate(t)
	addr := serve(t, New(newLimiterOver(t, g, apiRules), Options{Parallel: 8}))
	greedy, other := dial(t, addr).greet(), dial(t, addr).greet()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range 100 {
			if _, err := greedy.conn.Write(notify(uint64(i), 1, message("m", "ip", client, "path", "/api/x"))); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 4 {
		<-g.waiting
	}
	if v := other.ask("path", "/free"); v["deny"] != false { // meets no limit
		t.Errorf("%v", v)
	}
	select {
	case <-g.waiting:
		t.Error("one connection has more than half of the workers")
	default:
	}
	close(g.open)
	for range 100 {
		greedy.next()
	}
	<-sent
}

// TestAnswersNotTaken: connections that ask and take no answers keep nobody else from being
// answered.
func TestAnswersNotTaken(t *testing.T) {
	inBubble(t, Options{Parallel: 8}, func(t *testing.T, l *pipes, _ *Agent) {
		var asking sync.WaitGroup
		for range 8 {
			p := l.dial(t).greet()
			asking.Go(func() {
				for i := range 1000 {
					if _, err := p.conn.Write(notify(uint64(i), 1, message("m", "ip", client, "path", "/api/x"))); err != nil {
						return // it was cut off
					}
				}
				t.Error("a connection that takes no answers may ask without end")
			})
		}
		other := l.dial(t).greet()
		synctest.Wait()
		start := time.Now()
		if v := other.ask("path", "/free"); v["deny"] != false {
			t.Errorf("%v", v)
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("another connection waited %v", waited)
		}
		asking.Wait()
		_ = other.conn.Close()
	})
}

// script is a connection that reads bytes which are there already.
type script struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (s *script) Read(b []byte) (int, error)       { return s.in.Read(b) }
func (s *script) Write(b []byte) (int, error)      { return s.out.Write(b) }
func (s *script) Close() error                     { return nil }
func (s *script) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "@"} }
func (s *script) RemoteAddr() net.Addr             { return &net.UnixAddr{Name: "@"} }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// FuzzConnection: whatever comes in, what goes out are whole frames, an answer for each NOTIFY at
// most, and a DISCONNECT only at the end.
func FuzzConnection(f *testing.F) {
	hello := helloFrom26()
	f.Add(hello, 100)
	f.Add(slices.Concat(hello, notify(1, 2, message("m", "ip", client, "path", "/api/x", "hits", 1))), 1)
	f.Add(
		slices.Concat(hello,
			notify(1, 2, message("m", "domain", "x", "query", "a=b", "header.X-Y", []byte{1}, "hits", "-1"))), 7)
	f.Add(slices.Concat(hello, notify(1, 2, message("m", "ip", netip.MustParseAddr("::1"))), rawFrame(3, 3, 1, 1, nil),
		rawFrame(2, 1, 0, 0, nil)), 13)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), 3)
	inOrder, workers := Options{MaxFrameSize: 1024}, Options{MaxFrameSize: 1024, Parallel: 2}
	limiters := []*weir.Limiter{limiterFor(f, inOrder, apiRules), limiterFor(f, workers, apiRules)}
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		for i, o := range []Options{inOrder, workers} {
			a := New(limiters[i], o)
			s := &script{in: bytes.NewReader(b)}
			a.newConn(s).Serve()
			if err := a.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			p := &peer{t: t}
			p.r = newPeer(t, nil).r
			p.r.Reset(&s.out)
			notifies, acks := bytes.Count(b, []byte{frameNotify}), 0
			for {
				r, err := p.read()
				if err == io.EOF {
					break
				}
				if err != nil || r.flags != 1 {
					t.Fatalf("%+v, %v", r, err)
				}
				switch r.kind {
				case 101, 102:
					r.keys()
				case 103:
					r.vars(t)
					acks++
				default:
					t.Fatalf("frame %d", r.kind)
				}
				if r.kind == 102 && p.r.Buffered()+s.out.Len() > 0 {
					t.Fatal("something follows a DISCONNECT")
				}
			}
			if acks > notifies {
				t.Fatalf("%d answers for at most %d questions", acks, notifies)
			}
		}
	})
}
