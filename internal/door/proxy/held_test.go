package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// pipes is a network within the process: it works in virtual time.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	over  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), over: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.over) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		return here, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

// turns remembers which turn each request got, by its header X-Id.
type turns struct {
	mu    sync.Mutex
	delay map[string]int64 // µs
}

func (t *turns) hooks() weir.Option {
	t.delay = map[string]int64{}
	return weir.WithHooks(weir.Hooks{Decided: func(r *weir.Request, d *weir.Decision) {
		if id, ok := r.Attributes.Attribute("header.x-id"); ok && d.Allowed {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.delay[id] = d.Delay
		}
	}})
}

// A thousand requests at once before a queue of 500 that drains at 200 a second: the first goes at
// once, then one every 5 ms to the microsecond, in the order of the turns; the other 499 are told
// when to come back.
func TestQueueDrainsAtItsRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var ids []string
		var at []time.Duration
		start := time.Now()
		network := newPipes()
		upstream := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			ids, at = append(ids, r.Header.Get("X-Id")), append(at, time.Since(start))
			_, _ = io.WriteString(w, "served")
		})}
		go func() { _ = upstream.Serve(network) }()
		var given turns
		l := newLimiter(t,
			`limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 200/s, burst: 500}, on_limit: {wait: 3s}}]`, given.hooks())
		h, err := New(l, Options{Upstream: &url.URL{Scheme: "http", Host: "upstream"}})
		if err != nil {
			t.Fatal(err)
		}
		transport := h.reverse.Transport.(*again).kept
		transport.DialContext = network.dial
		if h.direct != nil {
			h.direct.Dial = network.dial
		}
		var wg sync.WaitGroup
		served, refused := 0, 0
		for i := range 1000 {
			wg.Go(func() {
				w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/orders", nil)
				r.Header.Set("X-Id", strconv.Itoa(i))
				h.ServeHTTP(w, r)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case w.Code == 200 && w.Body.String() == "served":
					served++
				case w.Code == 429 && w.Header().Get("Retry-After") == "1" &&
					strings.Contains(w.Body.String(), `"retry_after":0.005`):
					refused++
				default:
					t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
				}
			})
		}
		wg.Wait()
		for i := range at {
			if want := time.Duration(i) * 5 * time.Millisecond; at[i] != want ||
				given.delay[ids[i]] != want.Microseconds() {
				t.Fatalf("number %d left at %v, want %v; its turn was at %d µs", i, at[i], want, given.delay[ids[i]])
			}
		}
		if s := h.Held(); len(at) != 501 || served != 501 || refused != 499 || s.Total != 500 || s.Held != 0 ||
			s.Lines != 0 {
			t.Errorf("%d left, %d were served, %d refused; %+v", len(at), served, refused, s)
		}
		transport.CloseIdleConnections()
		_ = upstream.Close()
	})
}

// The same in real time, over real connections: each is served once, and none before its turn. How
// late it is then, and who of those that are late comes first, is up to the machine. All are
// decided at one instant of the store's clock, and the first turn lies far enough ahead that most
// are held by then.
func TestQueueInRealTime(t *testing.T) {
	effort.Long(t, "waits for turns; TestQueueDrainsAtItsRate does in virtual time")
	now := time.Now().UnixMicro()
	store, err := memory.New(memory.Options{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml",
		Data: []byte(`limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1000/s, burst: 700}}]`)}},
		file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var given turns
	l, err := weir.New(store, weir.WithRules(set), given.hooks())
	if err != nil {
		t.Fatal(err)
	}
	var ahead weir.Decision
	if err := l.Decide(t.Context(), &weir.Request{Attributes: rule.Pairs{}, Hits: 200, MaxDelay: weir.AnyDelay}, &ahead); err != nil || !ahead.Allowed {
		t.Fatal(err)
	}
	var mu sync.Mutex
	came := 0
	at := map[string]time.Duration{}
	start := time.Now()
	up := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		came++
		at[r.Header.Get("X-Id")] = time.Since(start)
	})
	addr, _ := serveProxy(t, up.URL, l, nil)
	c := client(t, true)
	var wg sync.WaitGroup
	served, refused := map[string]int{}, 0
	for i := range 1000 {
		wg.Go(func() {
			r, err := http.NewRequest("GET", "http://"+addr+"/", nil)
			if err != nil {
				t.Error(err)
				return
			}
			id := strconv.Itoa(i)
			r.Header.Set("X-Id", id)
			resp, err := c.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case resp.StatusCode == 200:
				served[id]++
			case resp.StatusCode == 429 && resp.Header.Get("Retry-After") == "1" &&
				strings.Contains(string(body), `"retry_after":0.001`):
				refused++
			default:
				t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
			}
		})
	}
	wg.Wait()
	if came != 501 || len(served) != 501 || refused != 499 {
		t.Fatalf("%d reached the upstream, %d were served, %d refused", came, len(served), refused)
	}
	for id, when := range at {
		if served[id] != 1 {
			t.Errorf("request %s was served %d times", id, served[id])
		}
		if turn := time.Duration(given.delay[id]) * time.Microsecond; when < turn || turn < 200*time.Millisecond {
			t.Errorf("request %s came after %v, its turn is after %v", id, when, turn)
		}
	}
}

// Clients that hang up while they are held leave nothing behind, and their turns are free again if
// nobody stands behind them.
func TestHangUpsFreeEverything(t *testing.T) {
	up := newUpstream(t, func(http.ResponseWriter, *http.Request) {})
	l := newLimiter(t, `
limits:
  - {name: turns, when: {path: /turns}, algorithm: leaky_bucket, allow: {rate: 1/h, burst: 500}}
  - {name: again, when: {path: /again}, algorithm: sliding_log, allow: 1/h, on_limit: {wait: 1h}}
`)
	u, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(l, Options{Upstream: u})
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := serveDoor(t, newServer(h), nil)
	for _, path := range []string{"/turns", "/again"} { // the ones that go at once
		resp, err := client(t, false).Get("http://" + addr + path)
		read(t, resp, err)
		if resp.StatusCode != 200 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
	before := runtime.NumGoroutine()
	var conns []net.Conn
	for i := range 60 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		path := []string{"turns", "again"}[i%2]
		if i%3 == 0 {
			_, err = fmt.Fprintf(conn, "GET /%s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		} else {
			_, err = fmt.Fprintf(conn, "POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", path)
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		eventually(t, "it is held", func() bool { return h.Held().Held == i+1 })
	}
	if s := h.Held(); s.Lines != 2 || s.Longest != 30 {
		t.Errorf("%+v", s)
	}
	for i := range conns {
		_ = conns[len(conns)-1-i].Close() // the last first, so that nobody stands behind
		eventually(t, "it has left", func() bool { return h.Held().Held == len(conns)-1-i })
	}
	if s := h.Held(); s.HungUp != 60 || s.Total != 60 || s.Lines != 0 || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
	eventually(t, "all turns but the first are free", func() bool {
		var peek weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/turns"}}, Peek: true}, &peek); err != nil {
			t.Fatal(err)
		}
		return peek.Limits[0].Remaining == 500
	})
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
}

// A server that stops lets go whom it holds: those with a turn when it comes, the others refused at
// once.
func TestDrain(t *testing.T) {
	up := newUpstream(t, func(http.ResponseWriter, *http.Request) {})
	// All come at one instant of the store's clock, so that one has to wait for its turn.
	now := time.Now().UnixMicro()
	store, err := memory.New(memory.Options{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(`
limits:
  - {name: turns, when: {path: /turns}, algorithm: leaky_bucket, allow: {rate: 5/s, burst: 500}}
  - {name: again, when: {path: /again}, algorithm: sliding_log, allow: 1/h, on_limit: {wait: 1h}}
`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := weir.New(store, weir.WithRules(set))
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(l, Options{Upstream: u})
	if err != nil {
		t.Fatal(err)
	}
	addr, server := serveDoor(t, newServer(h), nil)
	codes := make(chan string, 4)
	for i := range 4 {
		path := []string{"/turns", "/again"}[i%2]
		go func() {
			resp, err := client(t, false).Get("http://" + addr + path)
			if err != nil {
				codes <- err.Error()
				return
			}
			_ = resp.Body.Close()
			codes <- path + strconv.Itoa(resp.StatusCode)
		}()
	}
	eventually(t, "two are or were held", func() bool { return h.Held().Total == 2 })
	h.Drain()
	if err := server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	got := map[string]int{}
	for range 4 {
		got[<-codes]++
	}
	if got["/turns200"] != 2 || got["/again200"] != 1 || got["/again429"] != 1 {
		t.Errorf("%v", got)
	}
}
