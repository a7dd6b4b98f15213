package httplimit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// Whatever servers say and however callers give up: each request comes to an end in time, is sent
// at most as often as it may, no answer stays open but the one that is returned, and nothing is
// left behind of who has gone.
func TestRetryProperties(t *testing.T) {
	draw := rapid.Custom(func(r *rapid.T) scripted {
		a := scripted{status: rapid.SampledFrom([]int{200, 200, 429, 503, 500}).Draw(r, "status"),
			header: http.Header{},
			took:   time.Duration(rapid.IntRange(0, 2000).Draw(r, "took")) * time.Millisecond,
			fails:  rapid.IntRange(0, 9).Draw(r, "fails") == 0}
		if rapid.Bool().Draw(r, "limits") {
			a.header.Set("RateLimit", fmt.Sprintf(`"%s";r=%d;t=%d`,
				rapid.SampledFrom([]string{"a", "b"}).Draw(r, "name"), rapid.IntRange(0, 3).Draw(r,
					"left"), rapid.IntRange(0, 20).Draw(r, "reset")))
			a.header.Set("RateLimit-Policy", fmt.Sprintf(`"a";q=%d;w=10, "b";q=1;w=100`,
				rapid.IntRange(0, 20).Draw(r, "quota")))
		}
		if rapid.Bool().Draw(r, "asks") {
			a.header.Set("Retry-After", fmt.Sprint(rapid.IntRange(0, 30).Draw(r, "after")))
		}
		return a
	})
	const requests = 12
	rapid.Check(t, func(r *rapid.T) {
		script := rapid.SliceOfN(draw, 1, 30).Draw(r, "script")
		pauses := rapid.SliceOfN(rapid.IntRange(0, 1000), requests, requests).Draw(r, "pauses")
		patience := rapid.SliceOfN(rapid.IntRange(1, 60), requests, requests).Draw(r, "patience")
		problem := ""
		synctest.Test(t, func(*testing.T) { problem = playScript(script, pauses, patience) })
		if problem != "" {
			r.Fatal(problem)
		}
	})
}

// scripted is an answer of a server.
type scripted struct {
	header http.Header
	status int
	took   time.Duration
	fails  bool
}

// playScript sends a request after each pause, in milliseconds, that its caller waits for some
// seconds, to a server that gives the answers in turn. It returns what was wrong.
func playScript(script []scripted, pauses, patience []int) string {
	var open, next int
	sent := map[string]int{}
	var problems []string
	var mu sync.Mutex
	rt, err := NewRetryTransport(roundTrips(func(req *http.Request) (*http.Response, error) {
		defer req.Body.Close()
		mu.Lock()
		sent[req.URL.Path]++
		a := script[next%len(script)]
		next++
		mu.Unlock()
		if err := sleep(req.Context(), a.took, nil); err != nil {
			return nil, err
		}
		if a.fails {
			return nil, io.ErrUnexpectedEOF
		}
		mu.Lock()
		defer mu.Unlock()
		open++
		closed := sync.OnceFunc(func() { mu.Lock(); open--; mu.Unlock() })
		return &http.Response{StatusCode: a.status, Header: a.header.Clone(),
			Body: &onceClosed{strings.NewReader("x"), closed}, ContentLength: 1}, nil
	}), RetryOptions{MaxWait: 40 * time.Second})
	if err != nil {
		return err.Error()
	}
	var wg sync.WaitGroup
	for i, pause := range pauses {
		time.Sleep(time.Duration(pause) * time.Millisecond)
		wg.Go(func() {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(patience[i])*time.Second)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "PUT", fmt.Sprintf("http://api.example/%d", i),
				strings.NewReader("body"))
			if err == nil {
				var resp *http.Response
				if resp, err = rt.RoundTrip(req); err == nil {
					_ = resp.Body.Close()
				}
			}
			took := time.Since(begin)
			mu.Lock()
			defer mu.Unlock()
			if took > time.Duration(patience[i])*time.Second || took > 40*time.Second+4*2*time.Second {
				problems = append(problems, fmt.Sprintf("it took %v with a patience of %d s", took, patience[i]))
			}
			if _, waited := errors.AsType[*WaitError](err); err != nil && !waited &&
				!errors.Is(err, context.DeadlineExceeded) && err != io.ErrUnexpectedEOF {
				problems = append(problems, err.Error())
			}
		})
	}
	wg.Wait()
	for path, n := range sent {
		if n > 4 {
			problems = append(problems, fmt.Sprintf("%s was sent %d times", path, n))
		}
	}
	p := rt.peers["api.example"]
	if open != 0 || p.mu.flight != 0 || p.users != 0 {
		problems = append(problems, fmt.Sprintf("%d answers are open, %d requests under way, %d look at the server",
			open, p.mu.flight, p.users))
	}
	for _, l := range p.mu.limits {
		if l.waiting != 0 {
			problems = append(problems, fmt.Sprintf("%d wait for %q", l.waiting, l.Name))
		}
	}
	return strings.Join(problems, "; ")
}

type onceClosed struct {
	io.Reader
	close func()
}

func (c *onceClosed) Close() error { c.close(); return nil }

// The cost of both clients, beside what they send a request by.
func BenchmarkRoundTrippers(b *testing.B) {
	answer := &http.Response{StatusCode: 200, Body: http.NoBody,
		Header: header("RateLimit", `"a";r=99;t=60`, "RateLimit-Policy", `"a";q=100;w=60`)}
	base := roundTrips(func(*http.Request) (*http.Response, error) { return answer, nil })
	retry, err := NewRetryTransport(base, RetryOptions{})
	if err != nil {
		b.Fatal(err)
	}
	limited := newLimited(b, newLimiter(b, nil, `limits: [{name: a, when: {host: api.example}, allow: 1000000000/s}]`),
		base, LimitOptions{})
	for name, rt := range map[string]http.RoundTripper{"retry": retry, "limit": limited} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := outgoing(b, "http://api.example/x")
			for b.Loop() {
				if _, err := rt.RoundTrip(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
