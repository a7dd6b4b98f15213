package load

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// TestPrometheus asks a real HTTP server, by the clock.
func TestPrometheus(t *testing.T) {
	var (
		mu     sync.Mutex
		answer = `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"job":"a"},"value":[1700000000.1,"62.5"]},{"metric":{},"value":[1,"9"]}]}}`
		status = http.StatusOK
	)
	set := func(s int, a string) {
		mu.Lock()
		defer mu.Unlock()
		status, answer = s, a
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if r.URL.Path != "/prom/api/v1/query" || r.URL.Query().Get("query") != "avg(busy) * 100" || user != "weir" ||
			password != "secret" {
			t.Errorf("asked for %s as %s:%s", r.URL, user, password)
		}
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	slow := &unanswered{} // on a busy machine
	r, err := New(Options{
		Root:    fstest.MapFS{},
		Client:  &http.Client{Transport: slow},
		Queries: map[string]Query{"busy": {URL: strings.Replace(server.URL, "http://", "http://weir:secret@", 1) + "/prom/", Query: "avg(busy) * 100", Every: 100 * time.Millisecond}},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	until := func(what string, done func(Info) bool) {
		t.Helper()
		patience.Until(t, "the signal comes from "+what, func() bool { return done(info(t, r, "busy")) })
	}
	r.SetUsed([]string{"busy"})
	until("a vector", func(i Info) bool {
		return i.Raw == 62.5 && i.Value == 63 && !i.Stale && i.Errors <= slow.n.Load() && i.Kind == Queried
	})
	set(http.StatusOK, `{"status":"success","data":{"resultType":"scalar","result":[1700000000,"250"]}}`)
	until("a scalar, which is cut at 100", func(i Info) bool { return i.Raw == 100 })
	set(http.StatusBadRequest, `{"status":"error","errorType":"bad_data","error":"parse error\nat 3"}`)
	until("a bad query", func(i Info) bool {
		return i.Errors > 1 && i.Error == "400 Bad Request: the query failed: parse error?at 3" && !i.Stale
	})
	set(http.StatusBadGateway, "<html>")
	until("another server",
		func(i Info) bool { return i.Error == "502 Bad Gateway: the answer does not come from a Prometheus" })
	set(http.StatusOK, strings.Repeat("x", mostAnswer+5))
	until("a flood", func(i Info) bool { return strings.Contains(i.Error, "larger") })
	server.CloseClientConnections()
	server.Close()
	until("nobody",
		func(i Info) bool { return strings.Contains(i.Error, "refused") && !strings.Contains(i.Error, "secret") })
}

// unanswered counts the requests to which there is no answer.
type unanswered struct{ n atomic.Uint64 }

func (u *unanswered) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		u.n.Add(1)
	}
	return answer, err
}

// TestSlowPrometheus: one that hangs keeps nothing else from moving, and is asked again.
func TestSlowPrometheus(t *testing.T) {
	asked := make(chan struct{}, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer server.Close()
	r, err := New(Options{Root: fstest.MapFS{},
		Queries: map[string]Query{"slow": {URL: server.URL, Query: "1",
			Every: 200 * time.Millisecond}}, Capacity: func() int { return 10 }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	r.SetUsed([]string{"slow", InFlight})
	<-asked
	<-asked
	if i := info(t, r, "slow"); i.Errors == 0 || !strings.Contains(i.Error, "did not answer within") || !i.Stale {
		t.Errorf("%+v", i)
	}
	if _, ok := r.Signal(InFlight); !ok {
		t.Error("in_flight stands still")
	}
}

func TestBadQueries(t *testing.T) {
	for name, q := range map[string]Query{
		"cpu":    {URL: "http://x", Query: "1"},
		"a b":    {URL: "http://x", Query: "1"},
		"none":   {Query: "1"},
		"file":   {URL: "file:///etc/passwd", Query: "1"},
		"query":  {URL: "http://x?a=b", Query: "1"},
		"empty":  {URL: "http://x", Query: " "},
		"often":  {URL: "http://x", Query: "1", Every: time.Millisecond},
		"seldom": {URL: "http://x", Query: "1", Every: 2 * time.Hour},
	} {
		if _, err := New(Options{Queries: map[string]Query{name: q}}); err == nil ||
			!strings.HasPrefix(err.Error(), "signals") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswers(t *testing.T) {
	for body, want := range map[string]string{
		``: "does not come from a Prometheus", `[]`: "does not come from a Prometheus", `{}`: "does not come from a Prometheus",
		`{"status":"success"}`: "gives a ;",
		`{"status":"success","data":{"resultType":"matrix","result":[]}}`:                        "gives a matrix",
		`{"status":"success","data":{"resultType":"vector","result":[]}}`:                        "no result just now",
		`{"status":"success","data":{"resultType":"vector","result":[{}]}}`:                      "no sample",
		`{"status":"success","data":{"resultType":"vector","result":5}}`:                         "no sample",
		`{"status":"success","data":{"resultType":"vector","result":[{"value":[1,5]}]}}`:         "no sample",
		`{"status":"success","data":{"resultType":"scalar","result":[1,"NaN"]}}`:                 "no percentage",
		`{"status":"success","data":{"resultType":"scalar","result":[1,"+Inf"]}}`:                "no percentage",
		`{"status":"success","data":{"resultType":"scalar","result":[1,"\u0007"]}}`:              "result is ?",
		`{"status":"error","error":"` + strings.Repeat("e", 500) + `"}`:                          "e…",
		`{"status":"success","data":{"resultType":"vector","result":[{"histogram":[1,{}]}]}}`:    "no sample",
		`{"status":"success","data":{"resultType":"vector","result":[{"value":["1e9","-3.5"]}]}`: "does not come from a Prometheus",
	} {
		if v, err := parseAnswer([]byte(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", body, v, err)
		}
	}
}
