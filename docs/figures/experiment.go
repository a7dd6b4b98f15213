package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/proxy"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// The experiment of docs/guides/overload.md: a server with a few workers, and a queue before them
// that costs time to keep, behind the proxy; first at ease, then under three times the load that it
// can do. Its clients give up after a second, and the server works on for them all the same, as
// most do.
const (
	workers    = 8
	service    = 100 * time.Millisecond
	contention = 0.005 // each request that waits makes all others longer by this share
	capacity   = workers / (float64(service) / float64(time.Second))
	patience   = time.Second
	easeShare  = 0.4
	overShare  = 3
)

// The parts of the load.
var parts = [...]struct {
	name  string
	share float64
}{{"sheddable", 0.45}, {"default", 0.45}, {"critical", 0.1}}

const experimentRules = `
limits:
  - {name: critical, when: {path: /critical}, allow: 1000000/s, priority: critical}
  - {name: default, when: {path: /default}, allow: 1000000/s}
  - {name: sheddable, when: {path: /sheddable}, allow: 1000000/s, priority: sheddable}
`

// request is the outcome of one request.
type request struct {
	at time.Duration
	// after at it was sent: more than little if this machine has other things to do
	late time.Duration
	part int           // of parts
	took time.Duration // until it was answered or given up
	ok   bool          // answered with 200
}

// reading is the state of the limiter at a time.
type reading struct {
	at              time.Duration
	limit, inFlight int
}

// upstream is the server.
type upstream struct {
	slots   chan struct{}
	waiting atomic.Int64
}

// ServeHTTP implements http.Handler.
func (u *upstream) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	u.waiting.Add(1)
	u.slots <- struct{}{}
	waiting := u.waiting.Add(-1)
	time.Sleep(service + time.Duration(contention*float64(waiting)*float64(service)))
	<-u.slots
	_, _ = io.WriteString(w, "done\n")
}

// experiment runs the load through the proxy, with adaptive concurrency or without, and returns all
// that happened.
func experiment(ctx context.Context, adaptive bool, ease,
	over time.Duration) (all []request, readings []reading, err error) {
	var closing []func()
	defer func() {
		for _, f := range slices.Backward(closing) {
			f()
		}
	}()
	serve := func(h http.Handler) (string, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		stopped := make(chan struct{})
		go func() { _ = s.Serve(l); close(stopped) }() // ends with Close
		closing = append(closing, func() { _ = s.Close(); <-stopped })
		return l.Addr().String(), nil
	}
	behind, err := serve(&upstream{slots: make(chan struct{}, workers)})
	if err != nil {
		return nil, nil, err
	}
	set, _, err := file.Load([]file.Source{{Name: "experiment.yaml", Data: []byte(experimentRules)}}, file.Options{})
	if err != nil {
		return nil, nil, err
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		return nil, nil, err
	}
	closing = append(closing, func() { _ = store.Close() })
	limiter, err := weir.New(store, weir.WithRules(set))
	if err != nil {
		return nil, nil, err
	}
	options := proxy.Options{Upstream: &url.URL{Scheme: "http", Host: behind}}
	if adaptive {
		if options.Overload, err = overload.New(overload.Options{}); err != nil {
			return nil, nil, err
		}
	}
	door, err := proxy.New(limiter, options)
	if err != nil {
		return nil, nil, err
	}
	front, err := serve(door)
	if err != nil {
		return nil, nil, err
	}

	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	client := &http.Client{Transport: transport, Timeout: patience}
	closing = append(closing, transport.CloseIdleConnections)
	var (
		mu       sync.Mutex
		sending  sync.WaitGroup
		start    = time.Now()
		random   = rand.New(rand.NewPCG(1, 2))
		deadline = ease + over
	)
	send := func(at time.Duration, part int) {
		r := request{at: at, part: part, late: time.Since(start) - at}
		response, err := client.Get("http://" + front + "/" + parts[part].name)
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			r.ok = err == nil && response.StatusCode == http.StatusOK
		}
		r.took = time.Since(start) - at
		mu.Lock()
		all = append(all, r)
		mu.Unlock()
	}
	if adaptive {
		ticker := time.NewTicker(bucket)
		sending.Go(func() {
			defer ticker.Stop()
			for range ticker.C {
				at, s := time.Since(start), options.Overload.Stats()
				if at >= deadline {
					return
				}
				mu.Lock()
				readings = append(readings, reading{at, s.Limit, s.InFlight})
				mu.Unlock()
			}
		})
	}
	// Arrivals do not wait for answers: each comes at its time.
	for at := time.Duration(0); ; {
		rate := capacity * easeShare
		if at >= ease {
			rate = capacity * overShare
		}
		at += time.Duration(random.ExpFloat64() / rate * float64(time.Second))
		if at >= deadline || ctx.Err() != nil {
			break
		}
		part, pick := 0, random.Float64()
		for pick -= parts[part].share; pick > 0 && part < len(parts)-1; pick -= parts[part].share {
			part++
		}
		time.Sleep(at - time.Since(start))
		sending.Go(func() { send(at, part) })
	}
	sending.Wait()
	return all, readings, ctx.Err()
}

// between returns the requests that came from a to b.
func between(all []request, a, b time.Duration) []request {
	return slices.DeleteFunc(slices.Clone(all), func(r request) bool { return r.at < a || r.at >= b })
}

// quantile of the time of those that were served or given up; requests refused at once do not
// count.
func quantile(all []request, q float64) time.Duration {
	var took []time.Duration
	for _, r := range all {
		if r.ok || r.took >= patience {
			took = append(took, r.took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, int(q*float64(len(took))))]
}

// served is the share of the requests that were served, of a part of the load or of all (below 0).
func served(all []request, part int) (share float64, total int) {
	ok := 0
	for _, r := range all {
		if part < 0 || r.part == part {
			total++
			if r.ok {
				ok++
			}
		}
	}
	return float64(ok) / float64(max(total, 1)), total
}
