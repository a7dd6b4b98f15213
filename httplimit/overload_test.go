package httplimit

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

func newOverload(t testing.TB, o overload.Options) *overload.Limiter {
	t.Helper()
	a, err := overload.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// adaptiveServer is middleware with an Overload, a Load and a handler.
type adaptiveServer struct {
	http.Handler
	limiter  *weir.Limiter
	overload *overload.Limiter
	load     doortest.Loads
}

func newAdaptiveServer(t testing.TB, o overload.Options, rules string, h http.HandlerFunc) *adaptiveServer {
	t.Helper()
	s := &adaptiveServer{limiter: newLimiter(t, nil, rules), overload: newOverload(t, o)}
	wrap, err := New(s.limiter, Options{Overload: s.overload, Load: &s.load})
	if err != nil {
		t.Fatal(err)
	}
	s.Handler = wrap(h)
	return s
}

func (s *adaptiveServer) get(path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

// empty checks that nothing is left behind.
func (s *adaptiveServer) empty(t testing.TB) {
	t.Helper()
	inside, _ := s.load.Told()
	if in := s.overload.Stats().InFlight; in != 0 || inside != 0 {
		t.Errorf("%d are under way, and %d inside", in, inside)
	}
}

// used is how much a limit has counted for a path.
func (s *adaptiveServer) used(t testing.TB, path string) (n int64) {
	t.Helper()
	d := decide(t, s.limiter, 0, rule.Pair{Name: "path", Value: path})
	for i := range d.Limits {
		n += d.Limits[i].Limit - d.Limits[i].Remaining
	}
	return n
}

const priorities = `
exempt: {path: [/exempt]}
limits:
  - {name: all, allow: 1000/hour, algorithm: sliding_log}
  - {name: important, when: {path: /critical}, allow: 1000/hour, priority: critical}
  - {name: extra, when: {path: /sheddable}, allow: 1000/hour, priority: sheddable}
`

// TestAdaptiveRefuses: who finds no room is refused in words that say it, and is charged nothing.
func TestAdaptiveRefuses(t *testing.T) {
	enter, leave := make(chan struct{}), make(chan struct{})
	s := newAdaptiveServer(t, overload.Options{Fixed: 1}, priorities, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/critical" {
			enter <- struct{}{}
			<-leave
		}
	})
	done := make(chan struct{})
	go func() { s.get("/critical"); close(done) }()
	<-enter
	for _, path := range []string{"/x", "/critical", "/sheddable", "/sheddable"} {
		w := s.get(path)
		var problem struct{ Type, Title, Detail string }
		if err := json.Unmarshal(w.Body.Bytes(), &problem); err != nil {
			t.Fatal(err)
		}
		if w.Code != 503 || w.Header().Get("Retry-After") != "1" || problem.Type != answer.TypeReducedCapacity ||
			!strings.Contains(problem.Detail, "Try again") ||
			w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %v %s", path, w.Code, w.Header(), w.Body)
		}
		if w.Header().Get("RateLimit") != "" {
			t.Errorf("it speaks of a limit: %v", w.Header())
		}
	}
	if w := s.get("/exempt"); w.Code != 200 {
		t.Errorf("an exempt request: %d", w.Code)
	}
	if n := s.used(t, "/x"); n != 1 {
		t.Errorf("%d were charged, and one was passed on", n)
	}
	if st := s.overload.Stats(); st.Refused != [3]uint64{2, 1, 1} || st.InFlight != 1 || st.Limit != 1 {
		t.Errorf("%+v", st)
	}
	close(leave)
	<-done
	s.empty(t)
}

// TestAdaptiveReleases: however a request ends, its place is free afterwards.
func TestAdaptiveReleases(t *testing.T) {
	for _, fixed := range []int{0, 3} {
		s := newAdaptiveServer(t, overload.Options{Fixed: fixed},
			priorities+"  - {name: never, when: {path: /refused}, allow: 0/hour}\n",
			func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/panic":
					panic("no")
				case "/late":
					w.WriteHeader(200)
					panic(http.ErrAbortHandler)
				case "/500":
					w.WriteHeader(500)
				case "/hangup":
					<-r.Context().Done()
				case "/flush":
					_ = http.NewResponseController(w).Flush()
				}
			})
		for range 5 {
			for _, path := range []string{"/panic", "/late", "/500", "/hangup", "/flush", "/refused", "/", "/exempt"} {
				func() {
					defer func() { _ = recover() }()
					ctx, cancel := context.WithCancel(t.Context())
					if path == "/hangup" {
						cancel()
					}
					s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil).WithContext(ctx))
					cancel()
				}()
				s.empty(t)
			}
		}
		// Of /late, /flush, / and /exempt; the others did not answer, or as an overloaded server
		// does.
		if _, answered := s.load.Told(); len(answered) != 20 {
			t.Errorf("%d answers were told of", len(answered))
		}
	}
}

// TestAdaptiveStream: what is streamed after the header takes no place where the limit is found by
// latency, and does not count as latency; a fixed limit counts it.
func TestAdaptiveStream(t *testing.T) {
	for _, fixed := range []int{0, 5} {
		synctest.Test(t, func(t *testing.T) {
			s := newAdaptiveServer(t, overload.Options{Fixed: fixed}, priorities,
				func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(20 * time.Millisecond)
					if _, err := io.WriteString(w, "a"); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Hour)
				})
			for range 3 {
				go s.get("/stream")
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if in, want := s.overload.Stats().InFlight, min(3, fixed); in != want {
				t.Errorf("of a limit of %d, %d are taken by streams, not %d", fixed, in, want)
			}
			inside, answered := s.load.Told()
			if !slices.Equal(answered, []time.Duration{20e6, 20e6, 20e6}) || inside != 3 {
				t.Errorf("%v, %d inside", answered, inside)
			}
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			s.empty(t)
		})
	}
}

// slowBody gives one byte each second.
type slowBody struct{ left int }

func (b *slowBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	time.Sleep(time.Second)
	b.left--
	p[0] = 'x'
	return 1, nil
}

// TestAdaptiveSlowClient: the time that a client takes to send its request is none of the server's.
func TestAdaptiveSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAdaptiveServer(t, overload.Options{}, priorities, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/all":
				if _, err := io.ReadAll(r.Body); err != nil {
					t.Error(err)
				}
			case "/some":
				if _, err := io.ReadFull(r.Body, make([]byte, 5)); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(30 * time.Millisecond)
		})
		for _, length := range []int64{10, -1} {
			for _, path := range []string{"/all", "/some", "/none"} {
				r := httptest.NewRequest("POST", path, &slowBody{10})
				r.ContentLength = length
				s.ServeHTTP(httptest.NewRecorder(), r)
			}
		}
		// Of /some nothing can be said.
		if _, answered := s.load.Told(); !slices.Equal(answered, []time.Duration{30e6, 30e6, 30e6, 30e6}) {
			t.Errorf("%v", answered)
		}
		s.empty(t)
	})
}

// TestAdaptiveHeld: a request that is held takes no place; when its turn comes, there must be room.
func TestAdaptiveHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := time.Duration(0)
		s := newAdaptiveServer(t, overload.Options{Fixed: 1}, `
limits:
  - {name: queue, when: {path: /queue}, algorithm: leaky_bucket, allow: {rate: 1/s, burst: 5}}
  - {name: again, when: {path: /again}, algorithm: sliding_log, allow: 1/s, on_limit: {wait: 5s}}
  - {name: free, when: {path: /free}, allow: 1000/hour}
`, func(w http.ResponseWriter, r *http.Request) { time.Sleep(busy) })
		for _, path := range []string{"/queue", "/again"} {
			if w := s.get(path); w.Code != 200 {
				t.Fatal(w.Code)
			}
			codes := make(chan int, 2)
			go func() { codes <- s.get(path).Code }()
			synctest.Wait()
			if in := s.overload.Stats().InFlight; in != 0 {
				t.Errorf("%s: a held request takes %d places", path, in)
			}
			if w := s.get("/free"); w.Code != 200 {
				t.Errorf("beside a held request: %d", w.Code)
			}
			if code := <-codes; code != 200 {
				t.Errorf("%s: after its wait: %d", path, code)
			}
			go func() { codes <- s.get(path).Code }()
			synctest.Wait()
			busy = time.Minute
			go func() { codes <- s.get("/free").Code }()
			synctest.Wait()
			if code := <-codes; code != 503 {
				t.Errorf("%s: after its wait there was no room, and it got %d", path, code)
			}
			if code := <-codes; code != 200 {
				t.Error(code)
			}
			busy = 0
			time.Sleep(time.Hour)
			synctest.Wait()
			s.empty(t)
		}
	})
}

// failingStore fails.
type failingStore struct{}

func (failingStore) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	return 0, errors.New("away")
}
func (failingStore) Release(context.Context, *rule.Counter, []byte, uint64) (bool, error) {
	return false, errors.New("away")
}
func (failingStore) Close() error { return nil }

// TestAdaptiveWithoutStore: requests that pass since the rules say so without a store are counted
// too.
func TestAdaptiveWithoutStore(t *testing.T) {
	l, err := weir.New(failingStore{},
		weir.WithRules(load(t, `limits: [{name: a, allow: 5/min, on_store_error: allow}]`)))
	if err != nil {
		t.Fatal(err)
	}
	a := newOverload(t, overload.Options{Fixed: 1})
	wrap, err := New(l, Options{Overload: a})
	if err != nil {
		t.Fatal(err)
	}
	var inner int
	var h http.Handler
	h = wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.Stats().InFlight != 1 {
			t.Error("it is not counted")
		}
		second := httptest.NewRecorder()
		h.ServeHTTP(second, httptest.NewRequest("GET", "/", nil))
		inner = second.Code
	}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	if w.Code != 200 || inner != 503 || a.Stats().InFlight != 0 {
		t.Errorf("%d, and inside of it %d", w.Code, inner)
	}
}

// TestAdaptiveLearns: a server that is slow under load gets a limit at which it is not, and answers
// of 500 and above lower it.
func TestAdaptiveLearns(t *testing.T) {
	for _, status := range []int{200, 503} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			under := 0
			s := newAdaptiveServer(t, overload.Options{}, priorities, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				under++
				d := 20 * time.Millisecond
				if status == 200 {
					d = d * time.Duration(max(under, 4)) / 4 // works on four at a time
				}
				mu.Unlock()
				time.Sleep(d)
				mu.Lock()
				under--
				mu.Unlock()
				w.WriteHeader(status)
			})
			var clients sync.WaitGroup
			for range 40 {
				clients.Go(func() {
					for range effort.Of(200, 500) {
						if s.get("/x").Code == 503 {
							time.Sleep(20 * time.Millisecond)
						}
					}
				})
			}
			clients.Wait()
			if got := s.overload.Stats(); got.Limit > 9 ||
				status == 200 && (got.Limit < 4 || got.Baseline < 19*time.Millisecond ||
					got.Baseline > 30*time.Millisecond) {
				t.Errorf("status %d: %+v", status, got)
			}
			s.empty(t)
		})
	}
}

func TestBadAdaptive(t *testing.T) {
	if _, err := overload.New(overload.Options{Fixed: -1}); err == nil ||
		!strings.Contains(err.Error(), "concurrency") {
		t.Error(err)
	}
}

func TestAdaptiveOutsideOfGate(t *testing.T) {
	a := newOverload(t, overload.Options{Fixed: 1})
	var d weir.Decision
	permit, ok := a.Acquire(overload.PriorityOf(&d))
	if !ok || a.WouldAdmit(overload.PriorityOf(&d)) {
		t.Error("there is room for one")
	}
	if permit, ok := a.Acquire(overload.PriorityOf(&d)); ok {
		t.Error("there is room for two")
	} else {
		permit.Return()
	}
	permit.Return()
	if !a.WouldAdmit(overload.PriorityOf(&d)) {
		t.Error("the place is not free")
	}
}
