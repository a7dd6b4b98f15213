// Package scripted makes traffic of which the truth is known: clients that a script moves in
// virtual time. Unlike the clients of a log they see their refusals. Begin with Scripts; tests put
// a limiter behind a World, and check whether a rule gets the verdict that the script deserves.
package scripted

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"time"
)

// Request is one that a client sends.
type Request struct {
	At     int64 // µs
	IP     string
	User   string // "" is nobody who signed in
	Path   string // with the query
	Status int    // with which it is answered, if it is admitted
}

// World is where clients live. Not safe for concurrent use.
type World struct {
	// Send decides a request, and says when to come back if it was not admitted.
	Send func(r *Request) (allowed bool, retry time.Duration)
	// End is when the world ends, in µs.
	End int64

	rng       *rand.Rand
	now       int64 // µs
	queue     events
	saturated func(minute int) bool
}

type event struct {
	at int64
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, k int) bool { return e[i].at < e[k].at }
func (e events) Swap(i, k int)      { e[i], e[k] = e[k], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// Beginning is when each world begins, in µs: at the full hour, so that minutes are whole.
const Beginning = 1_700_006_400_000_000

// NewWorld returns the world in which a script happens. Half makes the script's subject about half
// as much as the verdict takes.
func (s *Script) NewWorld(seed uint64, half bool) *World {
	w := &World{
		End: Beginning + s.lasts.Microseconds(), rng: rand.New(rand.NewPCG(seed, 13)), now: Beginning,
		saturated: func(int) bool { return false },
	}
	s.play(w, half)
	return w
}

// Run lets the world go on until its end.
func (w *World) Run() {
	for len(w.queue) > 0 {
		e := heap.Pop(&w.queue).(event)
		if e.at >= w.End {
			continue
		}
		w.now = e.at
		e.do()
	}
}

// Saturated reports whether the service is, at an instant in µs.
func (w *World) Saturated(at int64) bool { return w.saturated(int((at - Beginning) / 60e6)) }

// at does something at an instant after the beginning.
func (w *World) at(after time.Duration, do func()) {
	heap.Push(&w.queue, event{Beginning + after.Microseconds(), do})
}

// in does something later.
func (w *World) in(d time.Duration, do func()) {
	w.at(time.Duration(w.now-Beginning)*time.Microsecond+d, do)
}

// sometime returns a random time before the end.
func (w *World) sometime() time.Duration {
	return time.Duration(w.rng.Int64N(w.End-Beginning)) * time.Microsecond
}

// some returns d, give or take half of it.
func (w *World) some(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.5 + w.rng.Float64()))
}

func (w *World) send(ip, user, path string, status int) (allowed bool, retry time.Duration) {
	return w.Send(&Request{At: w.now, IP: ip, User: user, Path: path, Status: status})
}

// visits lets a client come at some times, with a few requests each, which stay far below 20 a
// minute.
func (w *World) visits(ip, user string, times, requests int) {
	for range times {
		w.at(w.sometime(), func() { w.browse(ip, user, requests) })
	}
}

func (w *World) browse(ip, user string, requests int) {
	w.send(ip, user, "/", 200)
	if requests > 1 {
		w.in(w.some(15*time.Second), func() { w.browse(ip, user, requests-1) })
	}
}

// burst sends requests a second apart; when it is refused, a patient client waits as the answer
// asks, another tries again at once.
func (w *World) burst(ip, user string, requests int, patient bool, status int) {
	w.burstOn("/", ip, user, requests, patient, status)
}

func (w *World) burstOn(path, ip, user string, requests int, patient bool, status int) {
	if requests == 0 {
		return
	}
	wait := time.Second
	if allowed, retry := w.send(ip, user, path, status); !allowed {
		if wait = w.some(100 * time.Millisecond); patient {
			wait += retry
		}
	}
	w.in(wait, func() { w.burstOn(path, ip, user, requests-1, patient, status) })
}

func address(n int) string { return fmt.Sprintf("192.0.%d.%d", n/250, n%250+1) }
