//go:build unix

package stores

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// orders is an upstream that notes which orders reached it, when, and by which idempotency key. One
// in a hundred is answered 503.
type orders struct {
	mu       sync.Mutex
	keys     map[string]string // by body
	arrivals []time.Time
	doubles  int
	problems []string
	arrived  chan struct{} // closed at the next arrival
}

// reached returns how many orders have come, and what is closed when one comes again.
func (o *orders) reached() (int, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.keys), o.arrived
}

func (o *orders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	key := r.Header.Get("Idempotency-Key")
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		return // the proxy was killed while it sent this
	}
	close(o.arrived)
	o.arrived = make(chan struct{})
	o.arrivals = append(o.arrivals, time.Now())
	before, seen := o.keys[string(body)]
	switch {
	case seen && before != key:
		o.problems = append(o.problems, fmt.Sprintf("order %s came as %q and as %q", body, before, key))
	case seen:
		o.doubles++
	}
	o.keys[string(body)] = key
	if len(o.arrivals)%100 == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

const ordersBurst = 50

// TestDeferred defers requests while the proxy is killed, and Redis restarted or PostgreSQL killed:
// each that was promised reaches the upstream, with its own idempotency key, no faster than the
// limit allows. TestDeferredMany defers ten thousand.
func TestDeferred(t *testing.T) {
	t.Parallel()
	program := servertest.BuiltProgram(t)
	kills := effort.Of(2, 5)
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		testDeferred(t, program, deferredOnFile(effort.Of(200, 1500), 200, kills))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "restarts Redis")
		testDeferred(t, program, deferredOnRedis(t, 1000, 200, kills))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		effort.Long(t, "kills PostgreSQL")
		testDeferred(t, program, deferredOnPostgres(t, 450, kills))
	})
}

func deferredOnFile(orders, rate, kills int) deferredOn {
	return deferredOn{orders: orders, kills: kills, rate: rate, args: []string{"--defer-path=deferred.db"},
		forgets: true, restart: func() {}}
}

func deferredOnRedis(t *testing.T, orders, rate, kills int) deferredOn {
	redis := redistest.Start(t, "appendonly yes", "appendfsync everysec")
	return deferredOn{orders: orders, kills: kills, rate: rate, args: []string{"--store=" + redis.URL()},
		restart: redis.Restart}
}

func deferredOnPostgres(t *testing.T, orders, kills int) deferredOn {
	server := pgtest.Start(t)
	// What was counted in the last moments before the kill is lost; what was promised is not.
	return deferredOn{orders: orders, kills: kills, rate: 150, args: []string{"--store=" + server.URL()}, forgets: true,
		restart: func() {
			server.Kill()
			server.Restart()
		}}
}

// deferredOn is where deferred requests lie, and how many there are.
type deferredOn struct {
	orders  int      // that are deferred
	kills   int      // of the proxy
	rate    int      // of a second: one that the clients exceed on any machine, however busy
	args    []string // of the program
	forgets bool     // what was counted, at a kill
	restart func()   // the server, if there is one
}

// proxyRun is one run of the proxy.
type proxyRun struct {
	*servertest.Process
	next chan struct{} // closed when the run behind it takes connections
}

func testDeferred(t *testing.T, program string, on deferredOn) {
	deferredOrders := on.orders
	ahead := deferredOrders * 3 / 10 // of the upstream: then clients wait, so that orders come in through most of the kills
	upstream := &orders{keys: map[string]string{}, arrived: make(chan struct{})}
	server := httptest.NewServer(upstream)
	defer server.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), fmt.Sprintf(
		"limits: [{ name: orders, per: [header.x-shop], allow: { rate: %d/s, burst: %d }, on_limit: { defer: orders } }]\n", on.rate, ordersBurst))
	args := []string{"proxy", "--upstream=" + server.URL, "--rules=rules.yaml", "--proxy-timeout=1m",
		"--defer-attempts=20"}
	port := "127.0.0.1:" + servertest.FreePort(t)
	args = append(append(args, on.args...), "--listen-proxy="+port)
	var at atomic.Pointer[proxyRun]
	begin := func() {
		p := &proxyRun{servertest.Launch(t, program, dir, args...), make(chan struct{})}
		p.Addr("proxy")
		if before := at.Swap(p); before != nil {
			close(before.next)
		}
	}
	begin()
	defer func() {
		if t.Failed() {
			t.Logf("the program said\n%s", at.Load().Stderr)
		}
	}()
	// progress waits until nothing is left, with new patience whenever that becomes less.
	progress := func(what string, left func() int) {
		t.Helper()
		for n := left(); n > 0; n = left() {
			servertest.Eventually(t, fmt.Sprintf("%s (%d to go)", what, n), func() bool { return left() < n })
		}
	}

	// Clients send until enough requests were deferred; requests sent while the proxy was away
	// carry no promise.
	var (
		tickets  sync.Map // ticket by order
		deferred atomic.Int64
		next     atomic.Int64
		clients  sync.WaitGroup
	)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	ctx, stop := context.WithCancel(t.Context())
	defer clients.Wait()
	defer stop()
	for range 16 {
		clients.Go(func() {
			for int(deferred.Load()) < deferredOrders && ctx.Err() == nil {
				if n, more := upstream.reached(); int(deferred.Load()) > n+ahead {
					select {
					case <-more:
					case <-ctx.Done():
					}
					continue
				}
				run := at.Load()
				order := fmt.Sprintf("order-%d", next.Add(1))
				r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+port+"/orders",
					strings.NewReader(order))
				r.Header.Set("X-Shop", "one")
				answer, err := client.Do(r)
				if errors.Is(err, syscall.ECONNREFUSED) { // so run has ended
					select {
					case <-run.next:
					case <-ctx.Done():
					}
				}
				if err != nil {
					continue
				}
				var ticket struct{ Ticket string }
				if answer.StatusCode == http.StatusAccepted && json.NewDecoder(answer.Body).Decode(&ticket) == nil {
					tickets.Store(order, ticket.Ticket)
					deferred.Add(1)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		})
	}
	var kills []time.Time
	// One kill after each part of the orders, while they come in and while they are worked off.
	for kill := 1; kill <= on.kills; kill++ {
		progress("orders reach the upstream", func() int {
			n, _ := upstream.reached()
			return kill*deferredOrders/(on.kills+1) - n
		})
		at.Load().Signal(syscall.SIGKILL)
		at.Load().Wait()
		kills = append(kills, time.Now())
		if kill == (on.kills+1)/2 {
			on.restart()
		}
		begin()
	}
	progress("orders are deferred", func() int { return deferredOrders - int(deferred.Load()) })
	clients.Wait()
	missing := func() (n int) {
		upstream.mu.Lock()
		defer upstream.mu.Unlock()
		tickets.Range(func(order, ticket any) bool {
			if upstream.keys[order.(string)] != ticket {
				n++
			}
			return true
		})
		return n
	}
	progress("deferred orders reach the upstream by their ticket's ID", missing)
	// Those that were sent again for a 503, or for a kill, end as well.
	admin := "http://" + at.Load().Addr("admin")
	var left struct{ Waiting, Dead int }
	servertest.Eventually(t, "the queue is empty", func() bool {
		_, _, body := servertest.Get(t, admin+"/api/v1/deferred")
		return json.Unmarshal([]byte(body), &left) == nil && left.Waiting == 0
	})
	if left.Dead != 0 {
		t.Errorf("%d dead letters", left.Dead)
	}
	upstream.mu.Lock()
	defer upstream.mu.Unlock()
	for _, p := range upstream.problems[:min(5, len(upstream.problems))] {
		t.Error(p)
	}
	// In any second no more arrive than the limit admits in it, and those that were on their way:
	// of each proxy, and each may have had its bucket full once more.
	const onTheWay = 64 + 16
	each := onTheWay
	if on.forgets {
		each += ordersBurst
	}
	most, from := 0, 0
	for i, at := range upstream.arrivals {
		for at.Sub(upstream.arrivals[from]) > time.Second {
			from++
		}
		bound := on.rate + ordersBurst + onTheWay
		for _, kill := range kills {
			if kill.After(upstream.arrivals[from].Add(-time.Second)) && kill.Before(at.Add(time.Second)) {
				bound += each
			}
		}
		n := i - from + 1
		if n > bound {
			t.Fatalf("%d arrived in one second, more than %d", n, bound)
		}
		most = max(most, n)
	}
	t.Logf("%d deferred, all reached; %d came more than once; at most %d in a second, of %d", deferred.Load(),
		upstream.doubles, most, on.rate)
}
