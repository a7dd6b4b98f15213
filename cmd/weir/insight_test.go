package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/overload"
)

// The service is saturated while its capacity is in flight, when it sheds, and while a signal that
// is measured says so, whether rules use that or not.
func TestSaturation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files := fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")}}
		signals, err := load.New(load.Options{Root: files, Watch: []string{load.Memory}})
		if err != nil {
			t.Fatal(err)
		}
		limiter, err := overload.New(overload.Options{Fixed: 2})
		if err != nil {
			t.Fatal(err)
		}
		s := &saturation{signals: signals, overload: limiter, capacity: func() int { return limiter.Stats().Limit }}
		check := func(when, want string) {
			t.Helper()
			if signal, saturated := s.now(); signal != want || saturated != (want != "") {
				t.Errorf("%s: %q, %v; want %q", when, signal, saturated, want)
			}
		}
		check("idle", "")
		a, _ := limiter.Acquire(overload.Default)
		check("half of the capacity", "")
		b, _ := limiter.Acquire(overload.Default)
		check("all of it", load.InFlight)
		if _, ok := limiter.Acquire(overload.Default); ok {
			t.Fatal("a third one was admitted")
		}
		check("one was shed", "shed")
		a.Done()
		b.Done()
		check("none since", "")

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { signals.Run(ctx); close(done) }()
		time.Sleep(5 * time.Second)
		check("memory to spare", "")
		cancel()
		<-done
		files["proc/meminfo"] = &fstest.MapFile{Data: []byte("MemTotal: 1000 kB\nMemAvailable: 50 kB\n")}
		ctx, cancel = context.WithCancel(t.Context())
		done = make(chan struct{})
		go func() { signals.Run(ctx); close(done) }()
		time.Sleep(20 * time.Second)
		check("memory used up", load.Memory)
		signals.SetUsed(nil)
		check("rules that use no signal came into force", load.Memory)
		cancel()
		<-done

		// Without an overload limit the capacity comes from the settings.
		s = &saturation{capacity: func() int { return 20 }}
		if s.signals, err = load.New(load.Options{Root: files}); err != nil {
			t.Fatal(err)
		}
		signals = s.signals
		for range 18 {
			signals.Enter()
		}
		check("18 of 20", "")
		signals.Enter()
		check("19 of 20", load.InFlight)
		s.capacity = func() int { return 0 }
		check("an unknown capacity", "")
	})
}

// Who may not see rule files sees why they are not in force, and no line of them.
func TestBrokenQuotesNothing(t *testing.T) {
	folder := inFolder(t, "limits: [{name: all, allow: 100/day}]\n")
	tokens := filepath.Join(t.TempDir(), "tokens")
	writeRules(t, tokens, "of-a-viewer role=viewer\nof-support role=support\nof-an-admin\n")
	p := startServer(t, "serve", "--rules="+folder, "--auth-tokens-file="+tokens)
	admin := "http://" + p.addr("admin") // it runs
	writeRules(t, filepath.Join(folder, "broken.yaml"), "domain: broken\nlimits: [{name: all, alow: 5/day, when: {user: the-secret-customer}}]\n")
	// The verdict broken says the first of these.
	for _, token := range []string{"of-a-viewer", "of-support", "of-an-admin"} {
		eventually(t, "/api/v1/rules tells what is broken", func() bool {
			r, err := http.NewRequestWithContext(t.Context(), "GET", admin+"/api/v1/rules", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			a, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Body.Close()
			body, err := io.ReadAll(a.Body)
			if err != nil || a.StatusCode != 200 {
				t.Fatal(a.Status, err)
			}
			if strings.Contains(string(body), "the-secret-customer") {
				t.Errorf("%s: %s", token, body)
				return true
			}
			return strings.Contains(string(body), "broken.yaml:2:") && strings.Contains(string(body), "alow")
		})
	}
	p.end()
}

// A server that only proxies knows how long its decisions take. It times each by a chance of 1 in
// 16, so it is asked until one was timed.
func TestP99OfProxy(t *testing.T) {
	upstream := httptest.NewServer(http.NotFoundHandler())
	defer upstream.Close()
	p := startServer(t, "proxy", "--rules="+inFolder(t, "limits: [{name: all, allow: 100/day}]\n"), "--listen-proxy=127.0.0.1:0", "--upstream="+upstream.URL)
	eventually(t, "the time of decisions shows", func() bool {
		get(t, "http://"+p.addr("proxy")+"/")
		_, _, body := get(t, "http://"+p.addr("admin")+"/api/v1/insight")
		var a struct{ P99 float64 }
		if err := json.Unmarshal([]byte(body), &a); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		return a.P99 > 0
	})
	p.end()
}
