package httplimit

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/overload"
)

// spares are requests that are spare, for a test.
type spares struct {
	gate *Gate
	cut  []string // names, in the order in which they were cut
}

// add makes the n-th request of an address spare.
func (s *spares) add(address string, n int) {
	d := &Dawdling{gate: s.gate, cut: func() { s.cut = append(s.cut, fmt.Sprint(address, "#", n)) }}
	d.of = []placesOf{{share: share{address: netip.MustParseAddr(address)}, places: 8}}
	s.gate.abandoned.mu.Lock()
	defer s.gate.abandoned.mu.Unlock()
	d.addSpare()
}

// Whoever finds no place has one spare request cut, the oldest of the address that has most.
func TestMakeRoomCutsOne(t *testing.T) {
	guard, err := overload.New(overload.Options{Fixed: 1})
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGate(newLimiter(t, new(clock), `limits: [{name: none, when: {path: /never}, allow: 1/min}]`),
		Options{Overload: guard})
	if err != nil {
		t.Fatal(err)
	}
	s := &spares{gate: g}
	s.add("192.0.2.1", 1)
	for n := range 3 {
		s.add("192.0.2.2", n+1)
	}
	ask := func() bool {
		p := g.Enter(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		if p != nil {
			t.Cleanup(p.Leave)
		}
		return p != nil
	}
	if !ask() || !slices.Equal(s.cut, []string{"192.0.2.2#1"}) {
		t.Errorf("who takes the last place has %q cut", s.cut)
	}
	if ask() || !slices.Equal(s.cut, []string{"192.0.2.2#1", "192.0.2.2#2"}) {
		t.Errorf("who finds none has %q cut", s.cut)
	}
	if n := g.Abandoned().Spare; n != 2 {
		t.Errorf("%d are left", n)
	}
}

// A sheddable request that finds no room has a spare one cut, though others would find some.
func TestMakeRoomForSheddable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const places = 8
		guard, err := overload.New(overload.Options{Fixed: places})
		if err != nil {
			t.Fatal(err)
		}
		g, err := NewGate(newLimiter(t, new(clock),
			`limits: [{name: later, when: {path: /later}, allow: unlimited, priority: sheddable}]`),
			Options{Overload: guard})
		if err != nil {
			t.Fatal(err)
		}
		for range 50 { // of requests that are not sheddable, so that room is kept for these
			var now []overload.Permit
			for range places / 2 {
				p, _ := guard.Acquire(overload.Default)
				now = append(now, p)
			}
			time.Sleep(100 * time.Millisecond)
			for i := range now {
				now[i].Done()
			}
		}
		room := guard.Stats().Room
		if room[0] >= room[1] {
			t.Fatalf("the room is %v", room)
		}
		for range room[0] {
			p, _ := guard.Acquire(overload.Default)
			defer p.Done()
		}
		s := &spares{gate: g}
		s.add("192.0.2.1", 1)
		ask := func(path string) (entered bool) {
			p := g.Enter(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
			if p != nil {
				p.Leave()
			}
			return p != nil
		}
		if !guard.WouldAdmit(overload.Default) || guard.WouldAdmit(overload.Sheddable) {
			t.Fatalf("%+v", guard.Stats())
		}
		if ask("/later") || len(s.cut) != 1 {
			t.Errorf("for a sheddable request %q are cut", s.cut)
		}
	})
}
