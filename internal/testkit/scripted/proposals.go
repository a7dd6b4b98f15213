package scripted

import (
	"fmt"
	"math"
	"time"
)

// Eager is a search that a few signed-in clients use more than they may, some far more than others,
// for as long as the script lasts. Two rules see the same requests.
func Eager(lasts time.Duration) *Script {
	return &Script{Judged: "search", lasts: lasts,
		Rules: "limits:\n" + sixEach("search", "/search") + sixEach("search-too", "/search"),
		play:  func(w *World, _ bool) { w.eager() }}
}

// sixEach is a rule that admits 6 requests a minute of each client to a path.
func sixEach(name, path string) string {
	return fmt.Sprintf("  - name: %s\n    when: { path: %s }\n    per: [user|ip]\n    allow: 6/min\n", name, path)
}

// eager lets clients search: each minute some, of whom one in fifty asks for more than 6 at once.
func (w *World) eager() {
	minutes := int((w.End - Beginning) / 60e6)
	for minute := range minutes {
		for range 10 + w.rng.IntN(6) {
			requests := 1 + w.rng.IntN(4)
			if w.rng.IntN(50) == 0 {
				requests = min(int(6*math.Pow(1-w.rng.Float64(), -0.5)), 25) // few ask for much more
			}
			user := fmt.Sprint("u", w.rng.IntN(400))
			at := time.Duration(minute)*time.Minute + time.Duration(w.rng.IntN(60_000))*time.Millisecond
			w.at(at, func() { w.burstOn("/search", "192.0.2.1", user, requests, true, 200) })
		}
	}
}

// Ring is a form that so many addresses fill in, all of them alike, each as often as it can. Nobody
// signs in for it. Polite ones wait as they are told, and all are answered well. With good, clients
// who sign in use the form as well, and some of them ask for 9 at a time.
func Ring(addresses int, polite, good bool, lasts time.Duration) *Script {
	return &Script{Judged: "signup", Rules: "limits:\n" + sixEach("signup", "/signup"), lasts: lasts,
		play: func(w *World, _ bool) {
			minutes := int((w.End - Beginning) / 60e6)
			for minute := 0; minute < minutes; minute += 10 {
				for i := range addresses {
					at := time.Duration(minute)*time.Minute + time.Duration(w.rng.IntN(600_000))*time.Millisecond
					ip := fmt.Sprintf("198.51.%d.%d", i/250, i%250+1)
					w.at(at, func() { w.burstOn("/signup", ip, "", 21, polite, 200) })
				}
			}
			if !good {
				return
			}
			users := 600 * max(addresses/40, 1)
			for i := range users * minutes / 60 {
				user, requests := fmt.Sprint("u", i%users), 1+w.rng.IntN(4)
				w.at(w.sometime(), func() { w.burstOn("/signup", "192.0.2.1", user, requests, true, 200) })
			}
			for i := range 5 * minutes / 60 {
				w.at(w.sometime(), func() { w.burstOn("/signup", "192.0.2.1", fmt.Sprint("eager", i), 9, true, 200) })
			}
		}}
}
