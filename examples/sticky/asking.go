//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// asking are the users, and the answers they got.
type asking struct {
	o      *options
	url    string
	start  time.Time // of the first window
	client *http.Client

	mu      sync.Mutex
	windows []*window
}

// window holds the answers of one window.
type window struct {
	admitted        []int64 // by user
	refused, failed int64
	waits           []time.Duration
}

// breath is how long before the turn of a window nobody asks, so that each answer is of one window.
const breath = 250 * time.Millisecond

func newAsking(o *options, front string) *asking {
	a := &asking{o: o, url: "http://" + front + "/", client: &http.Client{
		Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: o.users},
	}}
	for range (o.duration + o.window - 1) / o.window {
		a.windows = append(a.windows, &window{admitted: make([]int64, o.users)})
	}
	now := time.Now().Add(500 * time.Millisecond)
	a.start = time.Unix(0, (now.UnixNano()/int64(o.window)+1)*int64(o.window))
	return a
}

// run lets all users ask until the end.
func (a *asking) run(ctx context.Context) {
	defer a.client.CloseIdleConnections()
	pause := time.Duration(float64(time.Second) / a.o.rate)
	var running sync.WaitGroup
	for user := range a.o.users {
		running.Go(func() {
			for at := pause * time.Duration(user) / time.Duration(a.o.users); at < a.o.duration; at += pause {
				if a.o.window-at%a.o.window < breath {
					continue
				}
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Until(a.start.Add(at))):
				}
				if late := time.Since(a.start.Add(at)); late > time.Second {
					continue // a request before it has taken so long
				}
				a.ask(ctx, user)
			}
		})
	}
	running.Wait()
}

func (a *asking) ask(ctx context.Context, user int) {
	begun := time.Now()
	status := 0
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, http.NoBody)
	if err == nil {
		request.Header.Set("X-User", "user-"+strconv.Itoa(user))
		var response *http.Response
		if response, err = a.client.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			status = response.StatusCode
		}
	}
	waited := time.Since(begun)
	a.mu.Lock()
	defer a.mu.Unlock()
	w := a.windows[min(int(begun.Sub(a.start)/a.o.window), len(a.windows)-1)]
	switch status {
	case http.StatusOK:
		w.admitted[user]++
	case http.StatusTooManyRequests:
		w.refused++
	default:
		w.failed++
	}
	w.waits = append(w.waits, waited)
}

// report prints a line for each window.
func (a *asking) report(out io.Writer) {
	fmt.Fprintf(out, "%6s  %8s %8s  %8s %6s %5s  %9s %9s\n", "window", "admitted", "refused", "too many", "users",
		"most", "no answer", "slowest")
	for i, w := range a.windows {
		var sum, over, users, most int64
		for _, n := range w.admitted {
			sum += n
			most = max(most, n)
			if n > a.o.limit {
				over += n - a.o.limit
				users++
			}
		}
		slowest := time.Duration(0)
		if len(w.waits) > 0 {
			slowest = slices.Max(w.waits)
		}
		fmt.Fprintf(out, "%6d  %8d %8d  %8d %6d %5d  %9d %9v%s\n", i+1, sum, w.refused, over, users, most, w.failed,
			slowest.Round(time.Millisecond), a.note(i))
	}
	fmt.Fprintf(out, "\ntoo many: admitted beyond %d of a user in a window; users: of how many; most: of one user\n",
		a.o.limit)
}

// note says what happened in a window.
func (a *asking) note(i int) string {
	from, to := time.Duration(i)*a.o.window, time.Duration(i+1)*a.o.window
	in := func(at time.Duration) bool { return at > 0 && at >= from && at < to }
	text := ""
	if in(a.o.dies) {
		text += map[bool]string{false: "  a node dies", true: "  a node hangs"}[a.o.hangs]
	}
	if in(a.o.back) {
		text += "  it is back"
	}
	return text
}
