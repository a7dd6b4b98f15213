package scripted

import (
	"fmt"
	"time"
)

const perUser = "limits:\n  - name: each\n    per: [user|ip]\n    allow: 20/min\n"

const perIP = "limits:\n  - name: each\n    per: [ip]\n    allow: 20/min\n"

// Script is traffic with the verdict that it deserves.
type Script struct {
	// Verdict is the right verdict on the rule Judged of the rule file Rules.
	Verdict, Rules, Judged string
	lasts                  time.Duration
	play                   func(w *World, half bool)
	// Quiet is the verdict at half of the traffic that Verdict takes, with "/low" if it is not
	// sure.
	Quiet string
}

// Scripts has one for each verdict.
var Scripts = []Script{
	{"broken", "limits:\n  - name: each\n    if: 'query.plan != \"free\"'\n    per: [ip]\n    allow: 20/min\n", "each",
		24 * time.Hour, func(w *World, half bool) {
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
		}, "reserve"},
	{"loose_crowd", perUser, "each", 150 * time.Minute, func(w *World, half bool) {
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
	}, "reserve"},
	{"loose_few", "limits:\n  - name: each\n    per: [user|ip]\n    allow: 2000/min\n", "each", 150 * time.Minute,
		func(w *World, half bool) {
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
						w.at(time.Duration(minute)*time.Minute+time.Duration(w.rng.IntN(60_000))*time.Millisecond,
							func() { w.send("192.0.2.1", "eager", "/", 200) })
					}
				}
			}
		}, "reserve/low"},
	{"strict", perUser, "each", 24 * time.Hour, func(w *World, half bool) {
		// Of 1,500 signed-in clients 6 or 1 ask for more than the limit. Scrapers get no good
		// answers.
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
	}, "works"},
	{"maybe_strict", perIP, "each", 24 * time.Hour, func(w *World, half bool) {
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
	}, "works"},
	{"ignored", perUser, "each", 24 * time.Hour, func(w *World, half bool) {
		// Of twenty robots one or ten obey Retry-After; the others knock, for a minute.
		patient := 1
		if half {
			patient = 10
		}
		for i := range 1500 {
			w.visits("192.0.2.1", fmt.Sprint("u", i), 1, 6)
		}
		for i := range 20 {
			requests := 600
			if i < patient {
				requests = 60
			}
			w.at(w.sometime()/2, func() { w.burst(address(i), "", requests, i < patient, 200) })
		}
	}, "works"},
	{"adds_nothing",
		"limits:\n  - name: wide\n    when: { query.kind: \"*\" }\n    per: [user|ip]\n    allow: 20/min\n  - name: narrow\n    when: { path: /search }\n    per: [user|ip]\n    allow: 20/min\n", "narrow", 24 * time.Hour, func(w *World, half bool) {
			// Each search is of a kind, which another rule limits as well; or half of them are of
			// none.
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
		}, "works"},
	{"never_met",
		"limits:\n  - name: legacy\n    when: { path: /legacy }\n    per: [ip]\n    allow: 20/min\n  - name: each\n    per: [ip]\n    allow: 20/min\n", "legacy", 25 * time.Hour, func(w *World, half bool) {
			n := 1200
			if half {
				n = 500
			}
			for i := range n {
				w.visits(address(i), "", 1, 1)
			}
		}, "too_early"},
	{"never_binding", "limits:\n  - name: each\n    per: [ip]\n    allow: 100/min\n", "each", 24 * time.Hour,
		func(w *World, half bool) {
			n := 2600
			if half {
				n = 1200
			}
			for i := range n {
				w.visits(address(i), "", 1, 5)
			}
		}, "reserve/low"},
	{"reserve", perIP, "each", 24 * time.Hour, func(w *World, half bool) {
		requests := 15
		if half {
			requests = 3
		}
		for i := range 1500 {
			w.visits(address(i), "", 1, 1)
		}
		w.at(time.Hour, func() { w.burst(address(3000), "", requests, true, 200) })
	}, "reserve/low"},
	{"works", perIP, "each", 24 * time.Hour, func(w *World, half bool) {
		requests := 35
		if half {
			requests = 15
		}
		for i := range 1500 {
			w.visits(address(i), "", 1, 1)
		}
		w.at(time.Hour, func() { w.burst(address(3000), "", requests, false, 200) })
	}, "reserve"},
	{"too_early", perIP, "each", 24 * time.Hour, func(w *World, half bool) {
		// 19 requests, or enough to say something.
		n := 4
		if half {
			n = 400
		}
		for i := range n {
			w.visits(address(i), "", 1, 1)
		}
		w.at(time.Hour, func() { w.burst(address(3000), "", 15, true, 200) })
	}, "reserve/low"},
}
