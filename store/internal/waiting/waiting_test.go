package waiting

import (
	"testing"
	"time"
)

// TestPulse: a server is waited for as long as it is known to take.
func TestPulse(t *testing.T) {
	var p Detector
	p.Begin(0)
	ms := func(n int64) int64 { return n * int64(time.Millisecond) }
	patience := func(want int64) {
		t.Helper()
		if got := p.patience.Load(); got != ms(want) {
			t.Errorf("patience is %v, want %v", time.Duration(got), time.Duration(ms(want)))
		}
	}
	patience(1000) // nothing is known
	p.Sent(ms(1))
	p.Answered(ms(4), ms(3))
	patience(1000)
	p.Answered(ms(10_000), ms(2)) // the guess is forgotten
	patience(12)
	p.Answered(ms(20_000), ms(50))
	patience(200)
	p.Answered(ms(75_000), ms(1)) // another term
	patience(200)
	p.Answered(ms(140_000), ms(1)) // and another
	patience(4)
	p.Answered(ms(200_001), ms(7))
	p.Answered(ms(10_000_000), ms(1)) // a term ends when there is something to go by in another one
	patience(28)
}

// TestSilence: what counts is for how long questions have been waiting for any answer.
func TestSilence(t *testing.T) {
	var p Detector
	p.Begin(0)
	since := func(now, want int64) {
		t.Helper()
		if got := p.silentSince(now); got != want {
			t.Errorf("at %d silent since %d, want %d", now, got, want)
		}
	}
	since(5, 5) // nobody has asked
	p.Sent(10)
	p.Sent(20)
	since(100, 10)
	p.Alive(50)
	since(100, 50)
	p.Answered(110, 1)
	since(120, 120)
	p.Sent(130)
	since(200, 130)
	p.Aside(120)
	since(200, 120)
	p.Answered(210, 1) // of the other question
	since(220, 210)
	p.AsideOver()
	since(230, 230)
	p.Aside(240)
	since(250, 240)
}

// TestWaiter: it gives up when the server has been silent for too long, not before the least has
// passed nor after the most, and does not count time in which this process did not run.
func TestWaiter(t *testing.T) {
	const ms = int64(time.Millisecond)
	for name, test := range map[string]struct {
		asked, heard, patience int64 // ms
		fired                  int64 // ms, for 20
		due                    int64 // ms
		silent, refused        bool
		least                  int64 // ms; 20 if 0
	}{
		"silent for long":          {asked: -100, patience: 40, fired: 20, due: 20, silent: true},
		"silent, but is often":     {asked: 0, patience: 200, fired: 20, due: 200},
		"answered others":          {asked: 0, heard: 15, patience: 40, fired: 20, due: 55},
		"not for longer than most": {asked: 0, patience: 5000, fired: 20, due: 500},
		"was not asked":            {asked: 19, patience: 40, fired: 20, due: 59},
		"this process did not run": {asked: -100, patience: 40, fired: 90, due: 110, silent: true},
		"for long":                 {asked: -100, patience: 40, fired: 190, due: 270},
		"nor for long":             {asked: -100, patience: 40, fired: 25, due: 30, silent: true},
		"and what it did not hear": {asked: 0, patience: 40, fired: 50, due: 70},
		"nor for seconds":          {asked: 0, patience: 40, fired: 2520, due: 2600},
		"is refused, with time":    {asked: 0, patience: 400, fired: 100, due: 100, silent: true, refused: true, least: 400},
		"is there, with time":      {asked: 0, patience: 40, fired: 100, due: 400, silent: true, least: 400},
		"is refused":               {asked: 0, patience: 400, fired: 20, due: 20, silent: true, refused: true},
		"is refused, and stalled":  {asked: 0, patience: 400, fired: 520, due: 540, silent: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Detector{}
			const base = 1000 * ms
			d.sentAt.Store(base + test.asked*ms)
			if test.heard != 0 {
				d.lastSign.Store(base + test.heard*ms)
			}
			d.patience.Store(test.patience * ms)
			if test.refused {
				d.refusedAt.Store(base)
			}
			least := max(test.least, 20) * ms
			w := Waiter{begun: base, minWait: least, maxWait: 500 * ms, due: base + least,
				wake: base + min(least, int64(refusedWait))}
			w.reschedule(base+test.fired*ms, []*Detector{d})
			if got := (w.due - base) / ms; got != test.due || w.Silent != test.silent {
				t.Errorf("due after %d ms, silent %v; want %d and %v", got, w.Silent, test.due, test.silent)
			}
		})
	}
}

// TestWaiterAcross: a call over several servers needs all of them, so that it gives up with the
// first that is silent or refuses, and not for one that owes nothing.
func TestWaiterAcross(t *testing.T) {
	const ms, base = int64(time.Millisecond), 1000 * int64(time.Millisecond)
	for name, test := range map[string]struct {
		asked, refused [2]int64 // ms after base; 0: not
		fired, due     int64    // ms
		silent         bool
	}{
		"one refuses, one owes nothing":   {refused: [2]int64{0, 1}, asked: [2]int64{0, 1}, fired: 101, due: 101, silent: true},
		"one is silent, one owes nothing": {asked: [2]int64{0, 1}, fired: 400, due: 400, silent: true},
		"one is silent, one answers":      {asked: [2]int64{390, 1}, fired: 400, due: 400, silent: true},
		"both will answer":                {asked: [2]int64{390, 395}, fired: 400, due: 430},
		"nothing was sent yet":            {fired: 400, due: 440},
	} {
		t.Run(name, func(t *testing.T) {
			servers := []*Detector{{}, {}}
			for i, d := range servers {
				d.patience.Store(40 * ms)
				if at := test.asked[i]; at != 0 {
					d.sentAt.Store(base + at*ms)
				}
				if at := test.refused[i]; at != 0 {
					d.refusedAt.Store(base + at*ms)
				}
			}
			w := Waiter{begun: base, minWait: 400 * ms, maxWait: 5000 * ms, due: base + 400*ms,
				wake: base + test.fired*ms}
			w.reschedule(base+test.fired*ms, servers)
			if got := (w.due - base) / ms; got != test.due || w.Silent != test.silent {
				t.Errorf("due after %d ms, silent %v; want %d and %v", got, w.Silent, test.due, test.silent)
			}
		})
	}
}

// TestBusyMachine: where this process stands still again and again, a server that is gone still
// counts as away in the end. One that answers is given time anew after each stall.
func TestBusyMachine(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, stall := range []int64{60 * ms, 150 * ms, 900 * ms} { // that end each wait for the timer
		var d Detector
		d.Begin(0)
		now := int64(1000) * ms
		d.Sent(now)
		// A caller after another waits for a call that is sent again each second.
		ask := func() (silent bool) {
			w := Waiter{begun: now, minWait: 20 * ms, maxWait: 1000 * ms, due: now + 20*ms, wake: now + 20*ms}
			for w.due > now {
				w.wake = min(w.due, now+int64(lookEvery))
				now = w.wake + stall
				w.reschedule(now, []*Detector{&d})
			}
			if d.Resumed(now-stall, now) {
				d.Broken(now, false)
			}
			return w.Silent
		}
		asked := 1
		for !ask() {
			if asked++; asked > 100 {
				t.Fatalf("with stalls of %v the server never counts as silent", time.Duration(stall))
			}
		}
		d.Answered(now+stall, ms)
		if !d.Resumed(now+stall, now+2*stall) {
			t.Error("after an answer stalls are not heeded")
		}
	}
}
