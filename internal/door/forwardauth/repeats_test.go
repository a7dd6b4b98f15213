package forwardauth

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// nginxCheck asks as nginx does for one request of a client.
func nginxCheck(h http.Handler, id, uri string, more ...string) doortest.Answer {
	headers := []string{"X-Original-URI", uri, "X-Original-Method", "GET", "X-Forwarded-For", "198.51.100.7", "Host",
		"shop.example"}
	if id != "" {
		headers = append(headers, "X-Request-Id", id)
	}
	return check(h, edgeProxy, nginxPath, append(headers, more...)...)
}

// A request that nginx asks about again counts once, and gets the same answer, refused or not.
func TestForwardAuthDedupe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, asked := forwardAuthDoor(t, Options{Dedupe: true}, tenRules)
		for i := range 12 {
			first := nginxCheck(h, fmt.Sprint(i), "/api/x")
			if want := map[bool]int{true: 200, false: 403}[i < 10]; first.Status != want {
				t.Fatalf("request %d: %v", i, first)
			}
			for range 3 {
				time.Sleep(500 * time.Millisecond)
				if again := nginxCheck(h, fmt.Sprint(i), "/api/x"); again.Status != first.Status ||
					!maps.EqualFunc(again.Header, first.Header, slices.Equal) {
					t.Errorf("request %d: %v, and was %v", i, again, first)
				}
			}
		}
		if n := len(asked()); n != 12 {
			t.Errorf("12 requests were counted as %d", n)
		}
		// The caddy family is asked once a request; it knows no such thing.
		for range 2 {
			check(h, edgeProxy, forwardedPath, "X-Forwarded-Uri", "/api/x", "X-Request-Id", "caddy")
		}
		if n := len(asked()); n != 2 {
			t.Errorf("counted %d of 2", n)
		}
		// It is off by default.
		h, _, asked = forwardAuthDoor(t, Options{}, tenRules)
		nginxCheck(h, "1", "/api/x")
		nginxCheck(h, "1", "/api/x")
		if n := len(asked()); n != 2 {
			t.Errorf("counted %d of 2", n)
		}
	})
}

// An id that comes again with anything else counts anew: with another request, another client,
// another domain; and after two seconds.
func TestForwardAuthDedupeIsNoWayRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _, asked := forwardAuthDoor(t, Options{Dedupe: true}, manyRules)
		counts := func(what string, want int, ask func()) {
			t.Helper()
			ask()
			if n := len(asked()); n != want {
				t.Errorf("%s: counted %d times, want %d", what, n, want)
			}
		}
		base := func() { nginxCheck(h, "a", "/api/x") }
		counts("first", 1, base)
		counts("again", 0, base)
		for what, headers := range map[string][]string{
			"another cookie": {"Cookie", "user=b"}, "another user": {"Authorization", "Bearer b"}, "another header": {"X-Api-Key", "b"}, "an empty header": {"X-Api-Key", ""},
			"two lines": {"X-Api-Key", "b", "X-Api-Key", "c"}, "other lines": {"X-Api-Key", "b, c"}, "another address": {"X-Forwarded-For", "198.51.100.8"},
			"parts that run together": {"X-Api", "Key1"}, "and apart": {"X-Apikey", "1"},
		} {
			counts(what, 1, func() { nginxCheck(h, "a", "/api/x", headers...) })
			counts(what+" again", 0, func() { nginxCheck(h, "a", "/api/x", headers...) })
		}
		counts("another path", 1, func() { nginxCheck(h, "a", "/api/y") })
		counts("another query", 1, func() { nginxCheck(h, "a", "/api/x?a") })
		counts("another method", 1, func() {
			check(h, edgeProxy, nginxPath, "X-Original-URI", "/api/x", "X-Original-Method", "POST", "X-Forwarded-For",
				"198.51.100.7", "Host", "shop.example", "X-Request-Id", "a")
		})
		counts("another host", 1, func() {
			check(h, edgeProxy, nginxPath, "X-Original-URI", "/api/x", "X-Original-Method", "GET", "X-Forwarded-For",
				"198.51.100.7", "Host", "other.example", "X-Request-Id", "a")
		})
		counts("another domain", 1, func() {
			check(h, edgeProxy, nginxPath+"/other", "X-Original-URI", "/api/x", "X-Original-Method", "GET",
				"X-Forwarded-For", "198.51.100.7", "Host", "shop.example", "X-Request-Id", "a")
		})
		counts("another id", 1, func() { nginxCheck(h, "b", "/api/x") })
		counts("no id", 2, func() { nginxCheck(h, "", "/api/x"); nginxCheck(h, "", "/api/x") })
		counts("an empty id", 2, func() {
			nginxCheck(h, "", "/api/x", "X-Request-Id", "")
			nginxCheck(h, "", "/api/x", "X-Request-Id", "")
		})
		counts("two ids", 2, func() {
			nginxCheck(h, "a", "/api/x", "X-Request-Id", "b")
			nginxCheck(h, "a", "/api/x", "X-Request-Id", "b")
		})
		counts("still the first", 0, base)
		time.Sleep(repeatFor + time.Millisecond)
		counts("too late", 1, base)
		// Not without end either: a client that had its own id believed would gain little.
		counts("again and again", 1+3, func() {
			for range 4 * (1 + repeatTimes) {
				nginxCheck(h, "z", "/api/z")
			}
		})
	})
}

// An answer that the store could not give is not given again.
func TestForwardAuthDedupeWithoutStore(t *testing.T) {
	h, _, _ := forwardAuthOver(t, doortest.FailingStore{Err: doortest.ErrStore}, Options{Dedupe: true}, tenRules)
	f := h.(mounted).forwardAuth
	for range 3 {
		if a := nginxCheck(h, "a", "/api/x"); a.Status != 503 || a.Header.Get("Retry-After") != "1" {
			t.Errorf("%v", a)
		}
	}
	if n := f.repeats.mu.n; n > 1 {
		t.Errorf("%d answers are remembered", n)
	}
}

// Of checks that come at the same time one asks, and the others wait for its answer.
func TestRepeatsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRepeats()
		var asked atomic.Int64
		answers := make(chan repeatAnswer, 10)
		ask := func() repeatAnswer {
			asked.Add(1)
			time.Sleep(time.Minute) // far longer than an answer is remembered
			return repeatAnswer{status: 200, keep: true}
		}
		for range 8 {
			go func() { answers <- d.answer(t.Context(), [32]byte{1}, ask) }()
		}
		gone, cancel := context.WithCancel(t.Context())
		synctest.Wait()
		go func() { answers <- d.answer(gone, [32]byte{1}, ask) }()
		synctest.Wait()
		cancel()
		if a := <-answers; a.status != 503 {
			t.Errorf("who hung up got %v", a)
		}
		for range 8 {
			if a := <-answers; a.status != 200 {
				t.Error(a)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("asked %d times", asked.Load())
		}
		d.answer(t.Context(), [32]byte{1}, ask)
		if time.Sleep(time.Second); asked.Load() != 1 {
			t.Error("the two seconds began before there was an answer")
		}
		// If the first has nothing to tell, each finds out by itself.
		asked.Store(0)
		failed := func() repeatAnswer {
			asked.Add(1)
			time.Sleep(time.Second)
			return repeatAnswer{status: 503}
		}
		for range 3 {
			go func() { answers <- d.answer(t.Context(), [32]byte{2}, failed) }()
		}
		for range 3 {
			<-answers
		}
		if asked.Load() != 3 {
			t.Errorf("asked %d times", asked.Load())
		}
		// A panic leaves nobody waiting.
		func() {
			defer func() { _ = recover() }()
			d.answer(t.Context(), [32]byte{3}, func() repeatAnswer { panic("!") })
		}()
		if a := d.answer(t.Context(), [32]byte{3}, func() repeatAnswer {
			return repeatAnswer{status: 200, keep: true}
		}); a.status != 200 {
			t.Error(a)
		}
	})
}

// However many ids there are, the memory stays bounded, and what is forgotten counts anew.
func TestRepeatsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRepeats()
		key := func(i int) (k [32]byte) {
			binary.LittleEndian.PutUint64(k[:], uint64(i))
			return k
		}
		asked := 0
		ask := func() repeatAnswer {
			asked++
			return repeatAnswer{status: 200, keep: true,
				fields: []headerField{{"Ratelimit", []string{strings.Repeat("a", 100)}}}}
		}
		for i := range 3 * repeatsMost {
			d.answer(t.Context(), key(i), ask)
			if d.mu.n > repeatsMost || len(d.mu.byPrint) != d.mu.n || len(d.mu.queue) > repeatsMost {
				t.Fatalf("after %d: %d, %d in a ring of %d", i, d.mu.n, len(d.mu.byPrint), len(d.mu.queue))
			}
		}
		if asked != 3*repeatsMost {
			t.Error(asked)
		}
		if d.answer(t.Context(), key(3*repeatsMost-1), ask); asked != 3*repeatsMost {
			t.Error("the newest is forgotten")
		}
		if d.answer(t.Context(), key(0), ask); asked != 3*repeatsMost+1 {
			t.Error("the oldest is still there")
		}
		time.Sleep(repeatFor + time.Millisecond)
		if d.answer(t.Context(), key(1), ask); d.mu.n != 1 || len(d.mu.byPrint) != 1 {
			t.Errorf("%d are remembered that are over", d.mu.n)
		}
	})
}

// The memory of one answer, as the bound of all of them says it.
func TestRepeatsMemory(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, manyRules)
	f := New(l, Options{ClientIP: trustEdge, Dedupe: true})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const n = 4000
	r := nginxRequest("0")
	for i := range n {
		r.Header["X-Request-Id"] = []string{fmt.Sprint(i)}
		f.ServeHTTP(&blindWriter{header: http.Header{}}, r)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
	t.Logf("%d bytes each", each)
	if each > 1024 {
		t.Errorf("an answer takes %d bytes", each)
	}
	runtime.KeepAlive(f)
}

// Checks from many connections at once: each request counts once.
func TestForwardAuthDedupeConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // a machine that is busy for seconds changes nothing
		h, _, asked := forwardAuthDoor(t, Options{Dedupe: true}, manyRules)
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() {
				for i := range 200 {
					// Each id is asked about by two workers, three times.
					for range 3 {
						if a := nginxCheck(h, fmt.Sprint(worker/2, i), "/api/x"); a.Status != 200 {
							t.Error(a)
						}
					}
				}
			})
		}
		all.Wait()
		if n := len(asked()); n != 4*200 {
			t.Errorf("800 requests counted as %d", n)
		}
	})
}

func nginxRequest(id string) *http.Request {
	r, err := http.NewRequest("GET", nginxPath, nil)
	if err != nil {
		panic(err)
	}
	r.RemoteAddr, r.Host = edgeProxy, "shop.example"
	r.Header = http.Header{"X-Original-Uri": {"/api/x"}, "X-Original-Method": {"GET"},
		"X-Forwarded-For": {"198.51.100.7"}, "X-Request-Id": {id}}
	return r
}
