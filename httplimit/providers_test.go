package httplimit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/httplimit/internal/limitfields"
)

// recorded is the answer of a provider to a request that it refused, from testdata/providers.
type recorded struct {
	file, provider, waits string
	text                  []byte
}

func recordings(t *testing.T) (list []recorded) {
	t.Helper()
	files, err := filepath.Glob(filepath.FromSlash("testdata/providers/*.http"))
	if err != nil || len(files) == 0 {
		t.Fatal("no answers are recorded", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r := recorded{file: strings.TrimSuffix(filepath.Base(file), ".http")}
		for {
			line, rest, _ := bytes.Cut(data, []byte("\n"))
			note, ok := strings.CutPrefix(string(line), "# ")
			if !ok {
				break
			}
			switch name, value, _ := strings.Cut(note, ": "); name {
			case "provider":
				r.provider = value
			case "waits":
				r.waits = value
			}
			data = rest
		}
		if r.text = data; r.provider == "" || r.waits == "" {
			t.Fatalf("%s says no provider, or not for how long it waits", file)
		}
		list = append(list, r)
	}
	return list
}

// answer parses what was recorded. Its lines end in LF alone, which ReadResponse takes.
func (r recorded) answer(t *testing.T) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(r.text)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get("Date") == "" { // then ours counts
		resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
	return resp
}

// body is what the caller is to get of the answer.
func (r recorded) body() string {
	_, body, _ := strings.Cut(string(r.text), "\n\n")
	return body
}

// Each provider's refusal is obeyed: the request goes again when it says so, and neither does
// another request to it go before that. A refusal that is returned has its body whole.
func TestRetryProviders(t *testing.T) {
	for _, rec := range recordings(t) {
		t.Run(rec.file, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent []time.Time
				base := roundTrips(func(r *http.Request) (*http.Response, error) {
					if sent = append(sent, time.Now()); len(sent) == 1 {
						return rec.answer(t), nil
					}
					return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
				})
				rt := newRetry(t, base, RetryOptions{MaxWait: 10 * time.Minute})
				begin := time.Now()
				resp, err := rt.RoundTrip(outgoing(t, "http://api.example/"))
				if err != nil {
					t.Fatal(err)
				}
				want, err := time.ParseDuration(rec.waits)
				switch {
				case rec.waits == "never" || rec.waits == "no refusal":
					body, err := io.ReadAll(resp.Body)
					if len(sent) != 1 || resp.StatusCode < 400 || string(body) != rec.body() || err != nil {
						t.Errorf("status %d after %d attempts, %v, with the body %q", resp.StatusCode, len(sent), err,
							body)
					}
					return
				case rec.waits == "backoff":
				case err != nil:
					t.Fatal(err)
				}
				if len(sent) != 2 || resp.StatusCode != 200 {
					t.Fatalf("status %d after %d attempts", resp.StatusCode, len(sent))
				}
				most := want + max(want/4, 200*time.Millisecond)
				if d := sent[1].Sub(begin); d < want || d > most {
					t.Errorf("sent again after %v; want %v to %v", d, want, most)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				if strings.Trim(rec.waits, "0123456789.hms") != "" {
					return
				}
				want, _ := time.ParseDuration(rec.waits)
				sent := 0
				base := roundTrips(func(r *http.Request) (*http.Response, error) {
					sent++
					return rec.answer(t), nil
				})
				// It may wait for less than it is asked to.
				rt := newRetry(t, base, RetryOptions{MaxWait: want * 9 / 10})
				begin := time.Now()
				resp, err := rt.RoundTrip(outgoing(t, "http://api.example/"))
				if err != nil {
					t.Fatal(err)
				}
				if body, err := io.ReadAll(resp.Body); sent != 1 || string(body) != rec.body() || err != nil {
					t.Errorf("%d attempts, %v, with the body %q", sent, err, body)
				}
				var wait *WaitError
				if _, err := rt.RoundTrip(outgoing(t, "http://api.example/")); !errors.As(err, &wait) ||
					time.Since(begin) != 0 || sent != 1 {
					t.Errorf("another request: %v after %v; %d were sent", err, time.Since(begin), sent)
				}
			})
		})
	}
}

// The table of providers in the docs has those whose answers are recorded, and no others.
func TestProvidersInDocs(t *testing.T) {
	page, err := os.ReadFile(filepath.FromSlash("../docs/guides/middleware.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "| provider |")
	if !ok {
		t.Fatal("docs/guides/middleware.md has no table of providers")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var told, want []string
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(table, -1) {
		if m[1] != "---" {
			told = append(told, m[1])
		}
	}
	for _, r := range recordings(t) {
		want = append(want, r.provider)
	}
	slices.Sort(told)
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(told, want) {
		t.Errorf("the table has %q, recorded are answers of %q", told, want)
	}
}

// What an answer that was not refused tells holds before the next request is sent: of 60 requests a
// minute one comes back each second.
func TestRetryNamedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{t: t, list: []http.Header{
			header("X-RateLimit-Limit-Requests", "60", "X-RateLimit-Remaining-Requests", "0",
				"X-RateLimit-Reset-Requests", "1m0s",
				"X-RateLimit-Limit-Tokens", "150000", "X-RateLimit-Remaining-Tokens", "149984", "X-RateLimit-Reset-Tokens", "6ms"),
			ok}}
		rt := newRetry(t, a, RetryOptions{})
		for range 2 {
			if _, err := rt.RoundTrip(outgoing(t, "http://api.example/")); err != nil {
				t.Fatal(err)
			}
		}
		if d := a.times[1].Sub(a.times[0]); d < time.Second || d > 2*time.Second {
			t.Errorf("the second went after %v", d)
		}
	})
}

// lazyBody is a body that comes by parts, and ends with err.
type lazyBody struct {
	parts  []string
	pause  time.Duration
	err    error
	closed chan struct{}
}

func (b *lazyBody) Read(p []byte) (int, error) {
	select {
	case <-time.After(b.pause):
	case <-b.closed:
		return 0, http.ErrBodyReadAfterClose
	}
	if len(b.parts) == 0 {
		return 0, b.err
	}
	n := copy(p, b.parts[0])
	if b.parts[0] = b.parts[0][n:]; b.parts[0] == "" {
		b.parts = b.parts[1:]
	}
	return n, nil
}

func (b *lazyBody) Close() error { close(b.closed); return nil }

// A body in which a time may stand is the caller's all the same: whole, with its error, however
// long it is and however late it comes, and the caller may leave it.
func TestRetryPeeks(t *testing.T) {
	const told = `{"error":{"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"5s"}]}}`
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		parts []string
		pause time.Duration
		end   error
		waits time.Duration
	}{
		"in parts":          {[]string{told[:30], told[30:]}, 10 * time.Millisecond, io.EOF, 5 * time.Second},
		"too long":          {[]string{`{"x":"` + strings.Repeat("x", limitfields.MaxPeeked) + `",`, told[1:]}, 0, io.EOF, 0},
		"as long as it may": {[]string{told, strings.Repeat(" ", limitfields.MaxPeeked-len(told))}, 0, io.EOF, 5 * time.Second},
		"a byte longer":     {[]string{told, strings.Repeat(" ", limitfields.MaxPeeked-len(told)+1)}, 0, io.EOF, 0},
		"late":              {[]string{told[:30], told[30:]}, 700 * time.Millisecond, io.EOF, 0},
		"broken":            {[]string{told}, 0, broken, 0},
		"empty":             {nil, 0, io.EOF, 0},
		"no JSON":           {[]string{"<html>Too many requests</html>"}, 0, io.EOF, 0},
		"other types":       {[]string{`{"error":"slow down","message":7,"__type":[],"retryAfterSeconds":{}}`}, 0, io.EOF, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body := &lazyBody{parts: slices.Clone(c.parts), pause: c.pause, err: c.end, closed: make(chan struct{})}
				rt := newRetry(t, roundTrips(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 429, Header: http.Header{}, Body: body, ContentLength: -1}, nil
				}), RetryOptions{MaxAttempts: 1})
				begin := time.Now()
				resp, err := rt.RoundTrip(outgoing(t, "http://a/"))
				if err != nil || time.Since(begin) > limitfields.PeekTime {
					t.Fatalf("after %v: %v", time.Since(begin), err)
				}
				p := rt.peers["a"]
				if until := max(0, p.mu.until.Sub(begin)); until < c.waits || until > c.waits+limitfields.PeekTime {
					t.Errorf("it is left alone for %v, want %v", until, c.waits)
				}
				got, err := io.ReadAll(resp.Body)
				if string(got) != strings.Join(c.parts, "") || err != nil && err != c.end ||
					err == nil && c.end != io.EOF {
					t.Errorf("%d bytes, %v; want %d, %v", len(got), err, len(strings.Join(c.parts, "")), c.end)
				}
				if err := resp.Body.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
	t.Run("left", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			body := &lazyBody{parts: []string{told}, pause: time.Hour, err: io.EOF, closed: make(chan struct{})}
			rt := newRetry(t, roundTrips(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 503, Header: http.Header{}, Body: body, ContentLength: -1}, nil
			}), RetryOptions{MaxAttempts: 1})
			resp, err := rt.RoundTrip(outgoing(t, "http://a/"))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close() // ends the goroutine that reads, or synctest fails
		})
	})
}

// Over a real connection, compressed and in chunks as net/http sends and reads them.
func TestRetryPeeksOverTCP(t *testing.T) {
	long := `{"error":{"message":"` + strings.Repeat("long ", 100_000) + `"}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		text := `{"error":{"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"90s"}]}}`
		if r.URL.Path == "/long" {
			text = long
		}
		_, _ = io.WriteString(w, text[:40])
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, text[40:])
	}))
	defer server.Close()
	for path, want := range map[string]string{"/": "", "/long": long} {
		client := http.Client{Transport: newRetry(t, server.Client().Transport, RetryOptions{MaxAttempts: 1})}
		resp, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if _ = resp.Body.Close(); err != nil || resp.StatusCode != 429 || want != "" && string(body) != want ||
			!strings.HasSuffix(string(body), "}}") {
			t.Errorf("%s: %d, %d bytes, %v", path, resp.StatusCode, len(body), err)
		}
		_, err = client.Get(server.URL + path)
		var wait *WaitError
		if asked := errors.As(err, &wait); asked != (path == "/") {
			t.Errorf("%s: the next: %v", path, fmt.Sprint(err))
		}
	}
}
