package redis

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestOnce: of two calls with one identity the one that comes first is made. The other one gets its
// reply, if it asks for it.
func TestOnce(t *testing.T) {
	redistest.NeedsFunctions(t)
	server := redistest.Start(t)
	s, err := Open(Options{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := s.partitions[0]
	l, keys := newLane(), p.reservationKeys()
	memory := p.memory.Load()
	if memory == 0 {
		t.Fatal("the memory of the functions has no name, or the store has not learned it")
	}
	hold := func(number int64, memory uint32, again bool, id string) any {
		l.number = number
		head := string(l.appendIdentity(nil, memory, again))
		reply, err := server.Try("FCALL", lua().hold, "2", keys[0], keys[1], head, id, "note", "1000000000", "100")
		if err != nil && strings.HasPrefix(err.Error(), lostCode) {
			return "lost"
		} else if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	for i, c := range []struct {
		number int64
		memory uint32
		again  bool
		id     string
		want   any
	}{
		{1, memory, false, "a", int64(1)},
		{1, memory, true, "a", int64(1)},     // the answer was lost
		{1, memory, true, "a", int64(1)},     // and once more
		{1, memory, false, "a", "lost"},      // the first one comes late
		{2, memory, true, "b", int64(1)},     // the second one comes first
		{2, memory, false, "b", "lost"},      // the first one comes late
		{2, memory, true, "b", int64(1)},     // the answer was lost
		{1, memory, true, "a", "lost"},       // nobody waits for it any more
		{3, memory, false, "b", int64(0)},    // a call of its own
		{3, memory + 1, true, "b", int64(0)}, // made here, whatever the node has heard of
		{4, memory + 1, true, "c", "lost"},   // made there, perhaps
		{4, 0, true, "c", "lost"},            // the node has heard of no memory yet
		{5, 0, false, "c", int64(1)},
	} {
		if got := hold(c.number, c.memory, c.again, c.id); got != c.want {
			t.Errorf("call %d: %v, want %v", i, got, c.want)
		}
	}
}

// TestForgottenLane: where there are many lanes, those that nobody uses are forgotten. A call that
// comes again in one of these may have been made.
func TestForgottenLane(t *testing.T) {
	redistest.NeedsFunctions(t)
	server := redistest.Start(t)
	s, err := Open(Options{URL: server.URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := s.partitions[0]
	keys := p.reservationKeys()
	claim := func(l *lane, again bool, second int64) error {
		head := l.appendIdentity(nil, p.memory.Load(), again)
		instant := strconv.FormatInt((1_700_000_000+second)*1e6, 10)
		_, err := server.Try("FCALL", lua().claim, "2", keys[0], keys[1], string(head)+instant, "nobody")
		return err
	}
	used := newLane()
	others := make([]*lane, 4096)
	for i := range others {
		others[i] = newLane()
	}
	for _, l := range append(others, used) {
		l.number = 1
		if err := claim(l, false, 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 { // twice nobody has used them
		others[0].number++
		if err := claim(others[0], false, int64(11*(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	used.number = 2
	if err := claim(used, true, 40); err == nil || !strings.HasPrefix(err.Error(), lostCode) {
		t.Errorf("a call that may have been made is made: %v", err)
	}
	if err := claim(used, false, 40); err != nil {
		t.Errorf("a call that was not sent before: %v", err)
	}
	fresh := newLane()
	fresh.number = 1
	if err := claim(fresh, true, 40); err != nil {
		t.Errorf("the first call of a lane, sent again: %v", err)
	}
}

// TestMasterMissing: a replica that answers for a moment is about to become the master; one that
// goes on is not worth waiting for.
func TestMasterMissing(t *testing.T) {
	var m master
	const begun, last = int64(1e9), int64(takesOver)
	for _, turn := range []struct {
		after int64
		want  bool
	}{{0, false}, {last - 1, false}, {last, true}, {2 * last, true}} {
		if got := m.missing(begun + turn.after); got != turn.want {
			t.Errorf("after %v: %v, want %v", time.Duration(turn.after), got, turn.want)
		}
	}
	m.answered()
	if m.missing(begun + 3*last) {
		t.Error("the master has answered meanwhile")
	}
}
