package main

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/examples/regions/regionplot"
)

// attack asks in each region so many times a second, and counts the admissions.
type attack struct {
	start  time.Time // of the first window
	window time.Duration
	end    time.Time

	asked, failed atomic.Int64
	mu            []sync.Mutex
	admitted      [][]time.Time // by region, when the answers came
	unsure        atomic.Int64  // admitted while the window turned, so that it is not known in which
}

// breath is how long before the turn of a window nobody asks, so that each answer is of one window.
const breath = 250 * time.Millisecond

const clients = 16 // of each region

// run attacks a region until the end.
func (a *attack) run(ctx context.Context, at int, r *region, perSecond float64) {
	if perSecond <= 0 {
		return
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	pause := time.Duration(float64(clients) / perSecond * float64(time.Second))
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			n := r.nodes[i%len(r.nodes)]
			for next := a.start.Add(pause * time.Duration(i) / clients); next.Before(a.end); next = next.Add(pause) {
				if a.window-next.Sub(a.start)%a.window < breath {
					continue
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Until(next)):
				}
				if time.Since(next) > time.Second {
					continue // behind: this machine is busy
				}
				a.one(ctx, at, n, client)
			}
		})
	}
	running.Wait()
}

func (a *attack) one(ctx context.Context, at int, n *node, client *http.Client) {
	asked := time.Now()
	allowed, err := n.ask(ctx, client)
	answered := time.Now()
	a.asked.Add(1)
	switch {
	case err != nil:
		a.failed.Add(1)
	case !allowed:
	case a.windowOf(asked) != a.windowOf(answered):
		a.unsure.Add(1)
	default:
		a.mu[at].Lock()
		a.admitted[at] = append(a.admitted[at], answered)
		a.mu[at].Unlock()
	}
}

func (a *attack) windowOf(at time.Time) int { return int(at.Sub(a.start) / a.window) }

// at returns the count of admissions until an instant, in the window that the instant is in.
func (a *attack) at(now time.Time) (s regionplot.Sample) {
	s.At = now.Sub(a.start)
	begin := a.start.Add(time.Duration(a.windowOf(now)) * a.window)
	for i := range a.admitted {
		a.mu[i].Lock()
		n := int64(0)
		for _, at := range a.admitted[i] {
			if !at.Before(begin) && !at.After(now) {
				n++
			}
		}
		a.mu[i].Unlock()
		s.Admitted = append(s.Admitted, n)
	}
	return s
}
