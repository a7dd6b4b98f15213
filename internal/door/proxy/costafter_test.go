package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// settling is a store that reports each settlement that was made.
type settling struct {
	store.Reserver
	made chan store.Settlement
}

func (s settling) Settle(ctx context.Context, list []store.Settlement) error {
	err := s.Reserver.Settle(ctx, list)
	for _, one := range list {
		one.Key = nil
		s.made <- one
	}
	return err
}

// serveCosts serves a proxy whose rule has an estimate of 100, and returns what is settled.
func serveCosts(t *testing.T, upstream, after string,
	change ...func(*Options)) (addr string, l *weir.Limiter, made chan store.Settlement) {
	t.Helper()
	inner, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(`
limits: [{name: units, allow: 1000000/day, algorithm: token_bucket, cost: 100, cost_after: '` + after + `'}]`)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	made = make(chan store.Settlement, 100)
	if l, err = weir.New(settling{any(inner).(store.Reserver), made}, weir.WithRules(set)); err != nil {
		t.Fatal(err)
	}
	addr, _ = serveProxy(t, upstream, l, nil, change...)
	return addr, l, made
}

func wantSettled(t *testing.T, made chan store.Settlement, actual int64) {
	t.Helper()
	if s := patience.Receive(t, "a settlement", made); s.Reserved != 100 || s.Actual != actual {
		t.Errorf("%d reserved, %d settled, want %d", s.Reserved, s.Actual, actual)
	}
}

const tokensOrNothing = `response.status >= 400 ? 0 : int(response.header["x-tokens"])`

// The upstream's word is what a request cost, in a header or behind a streamed body, over HTTP/1
// and HTTP/2 alike.
func TestCostAfter(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/header":
			w.Header().Set("X-Tokens", "321")
			_, _ = io.WriteString(w, "hello")
		case "/announced", "/trailer":
			name := http.TrailerPrefix + "X-Tokens"
			if r.URL.Path == "/announced" {
				name = "X-Tokens"
				w.Header().Set("Trailer", name)
			}
			for range 10 {
				_, _ = io.WriteString(w, strings.Repeat("token ", 1000))
				w.(http.Flusher).Flush()
			}
			w.Header().Set(name, "10000")
		case "/failed":
			http.Error(w, "no", http.StatusInternalServerError)
		}
	}
	for _, upstream := range []string{newUpstream(t, h).URL, h2cServer(t, h)} {
		addr, l, made := serveCosts(t, upstream, tokensOrNothing)
		for _, h2c := range []bool{false, true} {
			for path, want := range map[string]int64{"/header": 321, "/announced": 10000, "/trailer": 10000,
				"/failed": 0} {
				resp, err := client(t, h2c).Get("http://" + addr + path)
				read(t, resp, err)
				wantSettled(t, made, want)
			}
			unknown := l.Reservations().Stats().Unknown
			resp, err := client(t, h2c).Get("http://" + addr + "/silent")
			read(t, resp, err)
			eventually(t, "the cost is unknown", func() bool { return l.Reservations().Stats().Unknown == unknown+1 })
		}
	}
}

// Without a response there is a status all the same: 502, 504, 499.
func TestCostAfterUpstreamFails(t *testing.T) {
	addr, _, made := serveCosts(t, "http://127.0.0.1:1", "response.status") // nobody listens
	resp, err := client(t, false).Get("http://" + addr + "/")
	read(t, resp, err)
	wantSettled(t, made, 502)

	came, leave := make(chan struct{}, 10), make(chan struct{})
	slow := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		came <- struct{}{}
		select {
		case <-leave:
		case <-r.Context().Done():
		}
	})
	defer close(leave)
	addr, _, made = serveCosts(t, slow.URL, "response.status", func(o *Options) { o.Timeout = 50 * time.Millisecond })
	resp, err = client(t, false).Get("http://" + addr + "/")
	read(t, resp, err)
	wantSettled(t, made, 504)
	<-came

	addr, _, made = serveCosts(t, slow.URL, "response.status")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { <-came; cancel() }()
	r, _ := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/", nil)
	if resp, err := client(t, false).Do(r); err == nil {
		t.Error(resp.Status)
	}
	wantSettled(t, made, 499)
}

// A response that breaks off in its body costs what it says of itself up to there; bytes are those
// that were passed on.
func TestCostAfterBrokenOff(t *testing.T) {
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Tokens", "55")
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, strings.Repeat("x", 300))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	for after, want := range map[string]int64{tokensOrNothing: 55, "response.status + response.bytes": 500} {
		addr, _, made := serveCosts(t, newUpstream(t, h).URL, after)
		resp, err := client(t, false).Get("http://" + addr + "/")
		if err == nil {
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		if err == nil {
			t.Error("the response did not break off")
		}
		wantSettled(t, made, want)
	}
}

// A WebSocket costs what came through it, so that a budget of bytes is not passed by with an
// upgrade.
func TestCostAfterWebSocket(t *testing.T) {
	echo := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		_ = c.Write(r.Context(), websocket.MessageText, []byte(strings.Repeat("x", 20_000)))
		_ = c.Close(websocket.StatusNormalClosure, "")
	})
	addr, _, made := serveCosts(t, echo.URL, "response.status == 101 ? response.bytes / 1000 : 0")
	ctx := patience.Context(t)
	c, _, err := websocket.Dial(ctx, "ws://"+addr+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, got, err := c.Read(ctx); err != nil || len(got) != 20_000 {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	_, _, _ = c.Read(ctx) // answers the closing
	wantSettled(t, made, 20)
}
