package sim

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/internal/accesslog"
	"github.com/weir-rl/weir/internal/insight"
)

// A world is clients that a script moves in virtual time, behind a real limiter. Unlike those of a
// log they hear of their refusals. What the world knows of them is the truth that Judge is told.
type world struct {
	t         testing.TB
	rng       *rand.Rand
	replay    replay
	rule      string // the judged one
	now       int64  // µs
	end       int64
	queue     events
	clients   map[uint64]*truth // by hash of the judged rule's key
	minutes   []insight.Minute
	keys      map[uint64]int // admitted in this minute, by key
	saturated func(minute int) bool
}

// truth is what became of one client of the judged rule.
type truth struct {
	episodes insight.Episodes
	until    int64 // told to wait until then; 0 for nothing
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

// beginning is when each world begins: at the full hour, so that minutes are whole.
const beginning = 1_700_006_400_000_000

func newWorld(t testing.TB, seed uint64, rules, judged string, lasts time.Duration) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 13)), rule: judged, now: beginning, end: beginning + lasts.Microseconds(),
		clients: map[uint64]*truth{}, keys: map[uint64]int{}, saturated: func(int) bool { return false }}
	w.replay = replay{clients: newTally(clientBound), paths: newTally(pathBound)}
	w.replay.requests = w.replay.timeline.column()
	set := load(t, rules)
	if err := w.replay.addSet(0, RuleSet{Name: "rules", Domain: set.Domains()[0], Set: set, Texts: map[string]string{"rules.yaml": rules}}); err != nil {
		t.Fatal(err)
	}
	return w
}

// at does something at an instant after the beginning.
func (w *world) at(after time.Duration, do func()) {
	heap.Push(&w.queue, event{beginning + after.Microseconds(), do})
}

// in does something later.
func (w *world) in(d time.Duration, do func()) { w.at(time.Duration(w.now-beginning)*1000+d, do) }

// sometime returns a random time before the end.
func (w *world) sometime() time.Duration {
	return time.Duration(w.rng.Int64N(w.end-beginning)) * time.Microsecond
}

// some returns d, give or take half of it.
func (w *world) some(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.5 + w.rng.Float64()))
}

// send sends one request; user "" is nobody who signed in. It returns whether the request was
// admitted, and if not, when to come back.
func (w *world) send(ip, user, path string, status int) (allowed bool, retry time.Duration) {
	e := accesslog.Entry{Time: w.now, Fields: []accesslog.Field{{Name: "ip", Value: []byte(ip)}, {Name: "method", Value: []byte("GET")},
		{Name: "path", Value: []byte(path)}, {Name: "status", Value: fmt.Append(nil, status)}}}
	if user != "" {
		e.Fields = append(e.Fields, accesslog.Field{Name: "user", Value: []byte(user)})
	}
	if err := w.replay.step(&e); err != nil {
		w.t.Fatal(err)
	}
	d := &w.replay.sets[0].decision
	m := w.minute()
	refused := false
	for i := range d.Limits {
		if d.Limits[i].Window.Rule.Name != w.rule {
			continue
		}
		if i == 0 || d.Limits[i-1].Window.Rule.Name != w.rule {
			m.Met++
		}
		refused = refused || d.Refuses(&d.Limits[i])
	}
	for i := range d.Limits {
		if d.Limits[i].Window.Rule.Name != w.rule {
			continue
		}
		hash := xxhash.Sum64(d.Matches.Hits[i].Key)
		c := w.clients[hash]
		if c == nil {
			c = &truth{}
			w.clients[hash] = c
		}
		if c.until > 0 {
			if w.now >= c.until {
				c.episodes.Obeyed++
			} else {
				c.episodes.Early++
			}
			c.until = 0
		}
		if refused {
			m.Refused++
			c.until = w.now + d.RetryAfter
		}
		w.keys[hash] += 0
		if d.Allowed {
			m.Admitted++
			w.keys[hash]++
		}
		break
	}
	after, _ := d.Retry()
	return d.Allowed, after
}

// minute returns the minute that is now.
func (w *world) minute() *insight.Minute {
	t := w.now / 60e6 * 60
	if n := len(w.minutes); n == 0 || w.minutes[n-1].T != t {
		w.endMinute()
		w.minutes = append(w.minutes, insight.Minute{T: t, Saturated: w.saturated(int(t-beginning/1e6) / 60)})
	}
	return &w.minutes[len(w.minutes)-1]
}

func (w *world) endMinute() {
	if len(w.minutes) == 0 {
		return
	}
	m := &w.minutes[len(w.minutes)-1]
	m.Keys = float64(len(w.keys))
	var counts []int
	for _, n := range w.keys {
		counts = append(counts, n)
	}
	slices.Sort(counts)
	top := max(len(counts)/100, 1)
	sum := 0
	for _, n := range counts[max(len(counts)-top, 0):] {
		sum += n
	}
	m.TopKeys, m.TopShare = float64(top), float64(sum)/float64(max(m.Admitted, 1))
	clear(w.keys)
}

// run lets the world go on until its end, and returns the facts of the judged rule.
func (w *world) run() *insight.Facts {
	for len(w.queue) > 0 {
		e := heap.Pop(&w.queue).(event)
		if e.at >= w.end {
			continue
		}
		w.now = e.at
		e.do()
	}
	w.endMinute()
	x := w.replay.sets[0]
	defer x.engine.Close()
	w.replay.from, w.replay.to = beginning, w.end
	for r, tally := range x.tallies {
		if r.Name != w.rule {
			continue
		}
		f := tally.finish(&w.replay, x.Texts[r.Pos.File])
		f.Replay, f.Minutes = false, w.minutes
		for hash, c := range w.clients {
			f.Episodes.Obeyed += c.episodes.Obeyed
			f.Episodes.Early += c.episodes.Early
			if c.until > 0 {
				f.Episodes.GaveUp++
			}
			for _, sample := range [][]insight.KeyFacts{f.Sample, f.RefusedSample} {
				for i := range sample {
					if sample[i].Hash == hash {
						sample[i].Episodes = c.episodes
					}
				}
			}
		}
		return f
	}
	w.t.Fatalf("there is no rule %s", w.rule)
	return nil
}

// visits lets a client come at some times, with a few requests each, which stay far below 20 a
// minute.
func (w *world) visits(ip, user string, times, requests int) {
	for range times {
		w.at(w.sometime(), func() { w.browse(ip, user, requests) })
	}
}

func (w *world) browse(ip, user string, requests int) {
	w.send(ip, user, "/", 200)
	if requests > 1 {
		w.in(w.some(15*time.Second), func() { w.browse(ip, user, requests-1) })
	}
}

// burst sends requests a second apart; when it is refused a patient client waits as it is told to,
// another tries again at once.
func (w *world) burst(ip, user string, requests int, patient bool, status int) {
	w.burstOn("/", ip, user, requests, patient, status)
}

func (w *world) burstOn(path, ip, user string, requests int, patient bool, status int) {
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

const perUser = "limits:\n  - name: each\n    per: [user|ip]\n    allow: 20/min\n"

const perIP = "limits:\n  - name: each\n    per: [ip]\n    allow: 20/min\n"

// scripts are traffics with the verdict that each deserves, and half of each, that does not.
var scripts = []struct {
	verdict string
	rules   string
	judged  string
	lasts   time.Duration
	// script lets clients come. At half the threshold, quiet must be the verdict.
	script func(w *world, half bool)
	quiet  string
}{
	{insight.Broken, "limits:\n  - name: each\n    if: 'query.plan != \"free\"'\n    per: [ip]\n    allow: 20/min\n", "each", 24 * time.Hour, func(w *world, half bool) {
		// Those without the parameter make the expression fail: 2 % or 0.5 % of the requests.
		every := 50
		if half {
			every = 200
		}
		for i := range 4000 {
			path := "/?plan=paid"
			if i%every == 0 {
				path = "/"
			}
			w.at(w.sometime(), func() { w.send(address(i%400), "", path, 200) })
		}
		w.at(time.Hour, func() { w.burstOn("/?plan=paid", address(1000), "", 15, true, 200) })
	}, insight.Reserve},
	{insight.LooseCrowd, perUser, "each", 150 * time.Minute, func(w *world, half bool) {
		// 25 clients a minute; then 125 or 35, while the service is saturated.
		crowd := 125
		if half {
			crowd = 35
		}
		w.saturated = func(minute int) bool { return minute >= 100 && minute < 105 }
		for minute := range 150 {
			n := 23 + w.rng.IntN(5)
			if w.saturated(minute) {
				n = crowd
			}
			for i := range n {
				at := time.Duration(minute)*time.Minute + time.Duration(w.rng.IntN(40))*time.Second
				w.at(at, func() { w.browse("192.0.2.1", fmt.Sprintf("u%d-%d", minute%20, i), 1) })
			}
		}
		w.at(time.Hour, func() { w.burst("192.0.2.1", "eager", 15, true, 200) })
	}, insight.Reserve},
	{insight.LooseFew, "limits:\n  - name: each\n    per: [user|ip]\n    allow: 2000/min\n", "each", 150 * time.Minute, func(w *world, half bool) {
		// 25 clients a minute, and one with 75 or 10 requests while the service is saturated.
		few := 75
		if half {
			few = 10
		}
		w.saturated = func(minute int) bool { return minute >= 100 && minute < 105 }
		for minute := range 150 {
			for i := range 23 + w.rng.IntN(5) {
				at := time.Duration(minute)*time.Minute + time.Duration(w.rng.IntN(40))*time.Second
				w.at(at, func() { w.browse("192.0.2.1", fmt.Sprintf("u%d-%d", minute%20, i), 1) })
			}
			for range few {
				if w.saturated(minute) {
					w.at(time.Duration(minute)*time.Minute+time.Duration(w.rng.IntN(60_000))*time.Millisecond, func() { w.send("192.0.2.1", "eager", "/", 200) })
				}
			}
		}
	}, insight.TooEarly},
	{insight.Strict, perUser, "each", 24 * time.Hour, func(w *world, half bool) {
		// Signed-in clients, of whom 6 or 1 of 1,500 ask for more than the limit; and scrapers, who
		// get no good answers.
		eager := 6
		if half {
			eager = 1
		}
		for i := range 1500 {
			w.visits("192.0.2.1", fmt.Sprint("u", i), 1, 2)
		}
		for i := range eager {
			w.at(w.sometime()/2, func() { w.burst("192.0.2.1", fmt.Sprint("eager", i), 28+w.rng.IntN(6), true, 200) })
		}
		for i := range 3 {
			w.at(w.sometime()/2, func() { w.burst(address(i), "", 60, true, 404) })
		}
	}, insight.Works},
	{insight.MaybeStrict, perIP, "each", 24 * time.Hour, func(w *world, half bool) {
		// Nobody signs in; 2 % or 0.5 % of the addresses are refused.
		eager := 20
		if half {
			eager = 5
		}
		for i := range 1000 - eager {
			w.visits(address(i), "", 1, 2)
		}
		for i := range eager {
			// They go on at once or wait, in turn: neither speaks for all of them.
			w.at(w.sometime()/2, func() { w.burst(address(2000+i), "", 30+w.rng.IntN(10), i%2 == 0, 403) })
		}
	}, insight.Works},
	{insight.Ignored, perUser, "each", 24 * time.Hour, func(w *world, half bool) {
		// Of twenty robots one or ten wait as they are told.
		patient := 1
		if half {
			patient = 10
		}
		for i := range 1500 {
			w.visits("192.0.2.1", fmt.Sprint("u", i), 1, 2)
		}
		for i := range 20 {
			w.at(w.sometime()/2, func() { w.burst(address(i), "", 60, i < patient, 200) })
		}
	}, insight.Works},
	{insight.AddsNothing, "limits:\n  - name: wide\n    when: { query.kind: \"*\" }\n    per: [user|ip]\n    allow: 20/min\n  - name: narrow\n    when: { path: /search }\n    per: [user|ip]\n    allow: 20/min\n", "narrow", 24 * time.Hour, func(w *world, half bool) {
		// Each search is of a kind, which another rule limits as well; or half of them are of none.
		for i := range 1500 {
			w.at(w.sometime(), func() { w.send("192.0.2.1", fmt.Sprint("u", i), "/search?kind=a", 200) })
		}
		for i := range 12 {
			path := "/search?kind=a"
			if half && i%2 == 0 {
				path = "/search"
			}
			w.at(w.sometime()/2, func() { w.burstOn(path, address(i), "", 36, true, 200) })
		}
	}, insight.Works},
	{insight.NeverMet, "limits:\n  - name: legacy\n    when: { path: /legacy }\n    per: [ip]\n    allow: 20/min\n  - name: each\n    per: [ip]\n    allow: 20/min\n", "legacy", 25 * time.Hour, func(w *world, half bool) {
		n := 1200
		if half {
			n = 500
		}
		for i := range n {
			w.visits(address(i), "", 1, 1)
		}
	}, insight.TooEarly},
	{insight.NeverBinding, "limits:\n  - name: each\n    per: [ip]\n    allow: 100/min\n", "each", 24 * time.Hour, func(w *world, half bool) {
		n := 2600
		if half {
			n = 1200
		}
		for i := range n {
			w.visits(address(i), "", 1, 5)
		}
	}, insight.TooEarly},
	{insight.Reserve, perIP, "each", 24 * time.Hour, func(w *world, half bool) {
		requests := 15
		if half {
			requests = 3
		}
		for i := range 1500 {
			w.visits(address(i), "", 1, 1)
		}
		w.at(time.Hour, func() { w.burst(address(3000), "", requests, true, 200) })
	}, insight.TooEarly},
	{insight.Works, perIP, "each", 24 * time.Hour, func(w *world, half bool) {
		requests := 35
		if half {
			requests = 15
		}
		for i := range 1500 {
			w.visits(address(i), "", 1, 1)
		}
		w.at(time.Hour, func() { w.burst(address(3000), "", requests, false, 200) })
	}, insight.Reserve},
	{insight.TooEarly, perIP, "each", 24 * time.Hour, func(w *world, half bool) {
		n := 400
		if half {
			n = 1100
		}
		for i := range n {
			w.visits(address(i), "", 1, 1)
		}
		w.at(time.Hour, func() { w.burst(address(3000), "", 15, true, 200) })
	}, insight.Reserve},
}

// Each verdict is given where it is deserved and alone, and not at half of what it takes, in each
// of 100 worlds.
func TestVerdictsOfScriptedTraffic(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() || raceDetector { // which makes it slow, and finds nothing in one goroutine
		seeds = 10
	}
	for _, s := range scripts {
		t.Run(s.verdict, func(t *testing.T) {
			t.Parallel()
			for _, half := range []bool{false, true} {
				want := s.verdict
				if half {
					want = s.quiet
				}
				if want == "" {
					continue
				}
				for seed := range seeds {
					w := newWorld(t, seed, s.rules, s.judged, s.lasts)
					s.script(w, half)
					f := w.run()
					list := insight.Judge(f, insight.Thresholds{})
					alarming := 0
					for _, v := range list {
						if insight.Alarming(v.Verdict) {
							alarming++
						}
					}
					if len(list) == 0 || list[0].Verdict != want || alarming > 1 || !insight.Alarming(want) && alarming > 0 {
						t.Fatalf("seed %d, half %t: want %s, got %+v", seed, half, want, list)
					}
					if seed == 0 {
						t.Logf("half %t: %s %+v", half, list[0].Sentence, list[0].Proposal)
					}
				}
			}
		})
	}
}
