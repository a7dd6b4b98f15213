package httplimit

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/store/memory"
)

// heard describes in words the answer that a hook heard of.
func heard(r *weir.Request, d *weir.Decision, a weir.Answer) string {
	var names []string
	for i := range d.Limits {
		names = append(names, fmt.Sprintf("%s:%d", d.Limits[i].Window.Name, d.Limits[i].Remaining))
	}
	path, _ := r.Attributes.Attribute("path")
	return fmt.Sprintf("%s %s %s: %d", r.Door, path, strings.Join(names, " "), a.Status)
}

// hearing is a limiter that reports answers.
func hearing(t testing.TB, yaml string) (l *weir.Limiter, told chan string) {
	t.Helper()
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	told = make(chan string, 100)
	l, err = weir.New(store, weir.WithRules(load(t, yaml)),
		weir.WithHooks(weir.Hooks{Answered: func(r *weir.Request, d *weir.Decision, a weir.Answer) {
			told <- heard(r, d, a)
		}}))
	if err != nil {
		t.Fatal(err)
	}
	return l, told
}

// The hooks hear once of each request that was passed on, when its answer has ended, and of no
// other.
func TestAnswered(t *testing.T) {
	rules := `limits: [{name: a, allow: 9/year, algorithm: fixed_window}, {name: closed, when: {path: /closed}, allow: 0/min}]`
	for path, tt := range map[string]struct {
		handler http.HandlerFunc
		want    int
	}{
		"/silent":   {func(http.ResponseWriter, *http.Request) {}, 200},
		"/text":     {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, 200},
		"/missing":  {http.NotFound, 404},
		"/moved":    {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/", http.StatusFound) }, 302},
		"/hints":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); w.WriteHeader(204) }, 204},
		"/twice":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(206); panic(http.ErrAbortHandler) }, 206},
		"/panic":    {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 500},
		"/flushed":  {func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, 200},
		"/hijacked": {hijack, 101},
		"/gone":     {nil, 0},
		"/failing":  {nil, 0},
	} {
		for _, watched := range []bool{false, true} {
			t.Run(fmt.Sprint(path, watched), func(t *testing.T) {
				l, told := hearing(t, rules)
				o := Options{}
				if watched { // for other observers of answers
					a, err := overload.New(overload.Options{Fixed: 5})
					if err != nil {
						t.Fatal(err)
					}
					o.Overload = a
				}
				ctx, hangUp := context.WithCancel(t.Context())
				defer hangUp()
				h := tt.handler
				if h == nil {
					h = func(w http.ResponseWriter, r *http.Request) {
						hangUp()
						<-r.Context().Done()
						if path == "/failing" {
							http.Error(w, "broken off", http.StatusInternalServerError)
						}
					}
				}
				s := httptest.NewServer(newMiddleware(t, l, o, h))
				defer s.Close()
				c := s.Client()
				c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
				get := func(ctx context.Context, path string) {
					r, err := http.NewRequestWithContext(ctx, "POST", s.URL+path, nil) // GET might be sent again
					if err != nil {
						t.Fatal(err)
					}
					if resp, err := c.Do(r); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
				}
				get(t.Context(), "/closed") // refused, so that nobody hears of it
				get(ctx, path)
				want := fmt.Sprintf("middleware %s a:8: %d", path, tt.want)
				if got := patience.Receive(t, "an answer", told); got != want {
					t.Errorf("heard %q, want %q", got, want)
				}
				s.Close() // waits for the handlers
				if len(told) > 0 {
					t.Errorf("heard %q besides", <-told)
				}
			})
		}
	}
}

func hijack(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// A request that was admitted, and then turned away because of overload, was not answered by the
// handler.
func TestAnsweredOverload(t *testing.T) {
	l, told := hearing(t, `limits: [{name: a, allow: 9/year}]`)
	a, err := overload.New(overload.Options{Fixed: 1})
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler
	h = newMiddleware(t, l, Options{Overload: a}, func(w http.ResponseWriter, r *http.Request) {
		if w := get(h, "/inner"); w.Code != http.StatusServiceUnavailable {
			t.Errorf("the second is answered %d", w.Code)
		}
	})
	get(h, "/outer")
	if got := <-told; !strings.HasPrefix(got, "middleware /outer") || len(told) > 0 {
		t.Errorf("heard %q, and %d more", got, len(told))
	}
}

// A handler that holds on to its writer beyond the request does not reach another request by it.
func TestAnsweredWriterIsKept(t *testing.T) {
	l, _ := hearing(t, `limits: [{name: a, allow: 9/year}]`)
	var kept []http.ResponseWriter
	h := newMiddleware(t, l, Options{}, func(w http.ResponseWriter, r *http.Request) {
		if kept = append(kept, w); len(kept) == 2 {
			kept[0].Header().Set("X-First", "1")
		}
	})
	get(h, "/1")
	if w := get(h, "/2"); w.Header().Get("X-First") != "" {
		t.Error("the first request's writer is the second one's")
	}
}
