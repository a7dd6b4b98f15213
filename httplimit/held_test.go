package httplimit

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/redis"
)

// A request that a limit with a wait refuses is held until it is admitted, and answered as one that
// was admitted at once; past its wait, or where there is no room, it is refused.
func TestAnyAlgorithmHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, nil,
			`limits: [{name: q, per: [header.x-user], algorithm: token_bucket, allow: {rate: 1/s, burst: 1}, on_limit: {wait: 2s}}]`)
		g, err := NewGate(l, Options{MaxHeld: 4})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var mu sync.Mutex
		var log []string
		come := func(user string) {
			go func() {
				w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
				r.Header.Set("X-User", user)
				if p := g.Enter(w, r); p != nil {
					p.WriteHeaders(w.Header())
					p.Leave()
				}
				mu.Lock()
				defer mu.Unlock()
				log = append(log, fmt.Sprintf("%s@%v %d remaining %s retry %s", user, time.Since(start), w.Code,
					w.Header().Get("X-RateLimit-Remaining"), w.Header().Get("Retry-After")))
			}()
			synctest.Wait()
		}
		for range 4 {
			// two places are left when two are held, so that a third must not take one of them
			come("ada")
		}
		come("bob")
		come("bob")
		if s := g.Stats(); s.Held != 3 || s.Lines != 2 || s.Longest != 2 || s.Total != 3 || s.TurnedAway != 1 {
			t.Errorf("%+v", s)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		slices.Sort(log)
		want := []string{"ada@0s 200 remaining 0 retry ", "ada@0s 429 remaining 0 retry 1",
			"ada@1s 200 remaining 0 retry ", "ada@2s 200 remaining 0 retry ",
			"bob@0s 200 remaining 0 retry ", "bob@1s 200 remaining 0 retry "}
		if !slices.Equal(log, want) {
			t.Errorf("got  %q\nwant %q", log, want)
		}
	})
}

// When the handler of one returns, the next one in line goes in at once; a refund through another
// door does so too.
func TestGivenBackWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, nil, `
limits:
  - {name: slots, when: {path: /slots}, allow: 1 concurrent, on_limit: {wait: 30s}}
  - {name: log, when: {path: /log}, algorithm: sliding_log, allow: 1/min, on_limit: {wait: 90s}}
`)
		g, err := NewGate(l, Options{})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		for _, path := range []string{"/slots", "/slots", "/slots", "/log", "/log"} {
			go func() {
				w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
				p := g.Enter(w, r)
				if p == nil {
					t.Errorf("%s: %d", path, w.Code)
					return
				}
				mu.Lock()
				at = append(at, time.Since(start))
				mu.Unlock()
				time.Sleep(1234567 * time.Microsecond)
				p.Leave()
			}()
			synctest.Wait()
		}
		time.Sleep(5500 * time.Millisecond)
		refund := weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/log"}}, Hits: -1}
		var d weir.Decision
		if err := l.Decide(t.Context(), &refund, &d); err != nil {
			t.Fatal(err)
		}
		g.Refunded(&refund, &d)
		synctest.Wait()
		want := []time.Duration{0, 0, 1234567 * time.Microsecond, 2469134 * time.Microsecond, 5500 * time.Millisecond}
		if !slices.Equal(at, want) {
			t.Errorf("got %v, want %v", at, want)
		}
		time.Sleep(time.Minute)
	})
}

// A client that hangs up while its POST waits to ask again is noticed, and makes room for the next.
func TestHangUpInLine(t *testing.T) {
	l := newLimiter(t, nil, `limits: [{name: q, algorithm: sliding_log, allow: 1/h, on_limit: {wait: 1h}}]`)
	set, _ := l.Rules()
	set.Rules()[0].WaitQueue = 1
	g, err := NewGate(l, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan int, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &statusRecorder{ResponseWriter: w, status: 200}
		if p := g.Enter(rec, r); p != nil {
			p.Leave()
		}
		ended <- rec.status
	}))
	defer s.Close()
	for i, want := range []int{200, statusHungUp, statusHungUp} {
		// the third would be refused if the second had kept its place
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
		if want == statusHungUp {
			patience.Until(t, "it is held", func() bool { return g.Stats().Held == 1 })
			if i == 1 {
				resp, err := http.Get(s.URL)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if got := <-ended; got != 429 || resp.Header.Get("Retry-After") == "" {
					t.Errorf("with the line full: %d %v", got, resp.Header)
				}
			}
			_ = conn.Close()
		}
		if got := <-ended; got != want {
			t.Errorf("request %d ended with %d, want %d", i, got, want)
		}
	}
	if s := g.Stats(); s.Held != 0 || s.Lines != 0 || s.HungUp != 2 || s.TurnedAway != 1 {
		t.Errorf("%+v", s)
	}
}

// newNode is a gate of its own over a store of its own on one Redis.
func newNode(t *testing.T, url, yaml string, decided func(*weir.Request, *weir.Decision)) (*Gate, *weir.Limiter) {
	t.Helper()
	store, err := redis.Open(redis.Options{URL: url, Timeout: 30 * time.Second,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), RememberRefusals: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	l, err := weir.New(store, weir.WithRules(load(t, yaml)), weir.WithHooks(weir.Hooks{Decided: decided}))
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGate(l, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return g, l
}

// Across three nodes on one Redis the turns of one key are spaced at the rate, to the microsecond;
// no turn is given twice; and on each node the requests leave in the order of their turns, none
// before its turn.
func TestTurnsAcrossNodes(t *testing.T) {
	const spacing = 1000                                 // µs
	n, first := effort.Of(300, 900), effort.Of(150, 500) // requests; the turn of the first one
	server := redistest.Start(t)
	type gone struct {
		node       int
		turn, left int64
		at         int64 // by the wall clock, µs
		none       bool  // it had not to wait
	}
	var mu sync.Mutex
	var went []gone
	refused := 0
	var nodes []*Gate
	var begun time.Time
	for i := range 3 {
		g, l := newNode(t, server.URL(),
			fmt.Sprintf("limits: [{name: q, algorithm: leaky_bucket, allow: {rate: 1000/s, burst: %d}}]", n), nil)
		nodes = append(nodes, g)
		if i == 0 { // the first turn lies far enough ahead that all are in line by then
			begun = time.Now()
			var d weir.Decision
			if err := l.Decide(t.Context(), &weir.Request{Hits: int64(first), MaxDelay: weir.AnyDelay}, &d); err != nil || !d.Allowed {
				t.Fatal(err, d.Allowed)
			}
		}
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
			p := nodes[i%3].Enter(w, r)
			now := time.Now().UnixMicro()
			mu.Lock()
			defer mu.Unlock()
			if p == nil {
				if refused++; w.Code != 429 || w.Header().Get("Retry-After") != "1" {
					t.Errorf("%d %v", w.Code, w.Header())
				}
				return
			}
			went = append(went, gone{i % 3, p.decision.Time + p.decision.Delay, p.visit.Left, now,
				p.decision.Delay == 0})
			p.Leave()
		})
	}
	// On a busy machine one may stand in line only after others have gone whose turn is later.
	inTime := false
	patience.Until(t, "all are in line, or the first turn has come", func() bool {
		mu.Lock()
		all := refused
		mu.Unlock()
		for _, g := range nodes {
			all += int(g.Stats().Held)
		}
		over := time.Since(begun) >= time.Duration(first)*time.Millisecond
		inTime = all == n && !over
		return inTime || over
	})
	wg.Wait()
	slices.SortFunc(went, func(a, b gone) int { return cmp.Compare(a.turn, b.turn) })
	last := [3]int64{}
	for i, g := range went {
		if i > 0 {
			// On a busy machine the line may have run empty before it came.
			if after := g.turn - went[i-1].turn; after != spacing && !(g.none && after > spacing) {
				t.Fatalf("turn %d is %d µs after the one before it, want %d", i, after, spacing)
			}
		}
		if g.at < g.turn-spacing {
			// both are read from one machine's wall clock, which may be slewed meanwhile
			t.Errorf("turn %d left %d µs before its time", i, g.turn-g.at)
		}
		if g.left == 0 {
			continue // on a busy machine its turn had come before it could stand in line
		}
		if g.left <= last[g.node] && inTime {
			t.Errorf("turn %d left node %d as number %d, after number %d", i, g.node, g.left, last[g.node])
		}
		last[g.node] = g.left
	}
	if len(went)+refused != n || len(went) < n-first+1 || len(went) == n && refused > 0 {
		t.Errorf("%d went, %d were refused", len(went), refused)
	}
	for _, g := range nodes {
		if s := g.Stats(); s.Held != 0 || s.Lines != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// On three nodes, too, a limit that is waited for never admits more than it may, and each node lets
// its own in by arrival.
func TestWaitingAcrossNodes(t *testing.T) {
	n := effort.Of(20, 60)
	server := redistest.Start(t)
	var mu sync.Mutex
	var admitted []int64 // instants of the store
	decided := func(_ *weir.Request, d *weir.Decision) {
		if d.Allowed && len(d.Limits) > 0 {
			mu.Lock()
			defer mu.Unlock()
			admitted = append(admitted, d.Time)
		}
	}
	var wg sync.WaitGroup
	var nodes []*Gate
	// of each node's requests by arrival: as which number it left the line, 0 if it was admitted at
	// once
	left := [3][]int64{make([]int64, n), make([]int64, n), make([]int64, n)}
	began := time.Now()
	for i := range 3 {
		g, _ := newNode(t, server.URL(),
			"limits: [{name: q, algorithm: sliding_log, allow: 20/100ms, on_limit: {wait: 60s}}]", decided)
		nodes = append(nodes, g)
		for k := range n {
			before := g.Stats().Total
			done := make(chan struct{})
			wg.Go(func() {
				defer close(done)
				w := httptest.NewRecorder()
				p := g.Enter(w, httptest.NewRequest("GET", "/", nil))
				if p == nil {
					t.Errorf("request %d of node %d: %d", k, i, w.Code)
					return
				}
				left[i][k] = p.visit.Left
				p.Leave()
			})
			for came := false; !came; {
				// the next one comes when this one stands in line, or has gone
				select {
				case <-done:
					came = true
				case <-time.After(50 * time.Microsecond):
					came = g.Stats().Total > before
				}
			}
		}
	}
	asked := time.Since(began)
	wg.Wait()
	slices.Sort(admitted)
	for i := 20; i < len(admitted); i++ {
		if d := admitted[i] - admitted[i-20]; d < 100_000 {
			t.Errorf("21 were admitted within %d µs", d)
		}
	}
	if len(admitted) != 3*n {
		t.Errorf("%d were admitted", len(admitted))
	}
	held := 0
	for i, g := range nodes {
		last := int64(0)
		for k, number := range left[i] {
			if number > 0 {
				if held++; number < last {
					t.Errorf("request %d of node %d left as number %d, after number %d", k, i, number, last)
				}
				last = number
			}
		}
		if s := g.Stats(); s.Held != 0 || s.Lines != 0 || s.HungUp+s.Expired+s.TurnedAway != 0 {
			t.Errorf("node %d: %+v", i, s)
		}
	}
	// No more than this were admitted at once, however long it took to ask for all.
	if atOnce := 20 * (int(asked/(100*time.Millisecond)) + 2); held < 3*n-atOnce {
		t.Errorf("only %d had to wait, although all were asked for within %v", held, asked)
	}
}
