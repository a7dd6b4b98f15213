package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/overload"
)

// loads records what a Load is told.
type loads struct {
	mu               sync.Mutex
	inside, answered int
}

func (l *loads) Enter()                 { l.add(1, 0) }
func (l *loads) Leave()                 { l.add(-1, 0) }
func (l *loads) Answered(time.Duration) { l.add(0, 1) }
func (l *loads) add(inside, answered int) {
	l.mu.Lock()
	l.inside += inside
	l.answered += answered
	l.mu.Unlock()
}

// overloadProxy is a proxy with an Overload and a Load.
func overloadProxy(t *testing.T, upstream string, o overload.Options) (addr string, a *overload.Limiter, l *loads) {
	t.Helper()
	a, err := overload.New(o)
	if err != nil {
		t.Fatal(err)
	}
	l = &loads{}
	return newProxy(t, upstream, noLimits, func(o *Options) { o.Overload, o.Load = a, l }), a, l
}

// TestOverloadUpgrade: an upgraded connection is no request under way, however long it stays; a
// fixed limit counts it.
func TestOverloadUpgrade(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "chat")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, rw) // ends with the connection
	}))
	defer upstream.Close()
	for _, fixed := range []int{0, 5} {
		addr, a, l := overloadProxy(t, upstream.URL, overload.Options{Fixed: fixed})
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: chat\r\n\r\n")
		r := bufio.NewReader(conn)
		response, err := http.ReadResponse(r, nil)
		if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(response, err)
		}
		fmt.Fprintf(conn, "hello\n")
		if line, err := r.ReadString('\n'); line != "hello\n" {
			t.Fatal(line, err)
		}
		l.mu.Lock()
		if in := a.Stats().InFlight; in != min(fixed, 1) || l.inside != 1 || l.answered != 1 {
			t.Errorf("of a fixed limit of %d, an upgraded connection takes %d; %d inside, %d answered", fixed, in,
				l.inside, l.answered)
		}
		l.mu.Unlock()
		_ = conn.Close()
		eventually(t, "the end", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return a.Stats().InFlight == 0 && l.inside == 0
		})
	}
}

// TestOverloadOutcomes: an upstream that is away, a client that hangs up, and an answer that breaks
// off leave nothing behind.
func TestOverloadOutcomes(t *testing.T) {
	arrived := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hangup":
			arrived <- struct{}{}
			<-r.Context().Done()
		case "/break":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "part")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/500":
			w.WriteHeader(500)
		}
	}))
	a, err := overload.New(overload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := &loads{}
	addr := newProxy(t, upstream.URL, noLimits, func(o *Options) { o.Overload, o.Load, o.CutAbandoned = a, l, true })
	// A connection for each: a client tries a request anew for which a connection that served
	// another broke off.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (status int) {
		response, err := client.Get("http://" + addr + path)
		if err != nil {
			return 0
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		return response.StatusCode
	}
	for path, want := range map[string]int{"/": 200, "/500": 500} {
		if got := get(path); got != want {
			t.Errorf("%s: %d", path, got)
		}
	}
	get("/break") // the header may come through, or not
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/hangup", nil)
	if err != nil {
		t.Fatal(err)
	}
	hungUp := make(chan struct{})
	go func() {
		if response, err := http.DefaultClient.Do(r); err == nil {
			_ = response.Body.Close()
			t.Error("answered")
		}
		close(hungUp)
	}()
	<-arrived
	cancel()
	<-hungUp
	eventually(t, "the hang-up", func() bool { return a.Stats().InFlight == 0 })
	upstream.Close()
	if got := get("/"); got != http.StatusBadGateway {
		t.Errorf("of an upstream that is away: %d", got)
	}
	eventually(t, "the end", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return a.Stats().InFlight == 0 && l.inside == 0
	})
	if l.answered != 2 { // of / and /break
		t.Errorf("%d answers were told of", l.answered)
	}
}
