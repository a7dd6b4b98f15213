package simulation

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
)

// bench is a server of which a test takes slots.
type bench struct {
	*testing.T
	w *world
}

// take takes a slot of one key, of a limit that has n, and reports whether there was one.
func (b *bench) take(n int) bool {
	b.Helper()
	rules := fmt.Sprintf("domain: sim\nlimits:\n  - { name: slots, per: [user], allow: %d concurrent, timeout: 5s }\n",
		n)
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		b.Fatal(err)
	}
	c := set.Rules()[0].Windows[0].Counter
	charges := []store.Charge{{Counter: c, Key: []byte("k"), Limit: c.Limit, Mode: rule.Enforce,
		Ask: algo.Ask{Cost: 1}}}
	results := make([]algo.Result, 1)
	if _, err := b.w.server.take(nil, nil, charges, nil, results); err != nil {
		b.Fatal(err)
	}
	return results[0].Allowed
}

// lose lets the server lose its slots, which the judge is not told.
func (b *bench) lose() {
	b.Helper()
	if err := errors.Join(b.w.server.mem.Close(), b.w.server.begin()); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) back(how memoryOf) {
	b.Helper()
	if err := b.w.server.back(how); err != nil {
		b.Fatal(err)
	}
}

// TestSlots: the judge holds slots for as long as the server must, and no longer.
func TestSlots(t *testing.T) {
	for _, c := range []struct {
		name string
		does func(b *bench)
		free bool   // another one gets the slot then
		want string // what is wrong with that; "" for nothing
	}{
		{"full", func(b *bench) {}, false, ""},
		{"lost", (*bench).lose, true, "2 slots are held, of 1"},
		{"halted", func(b *bench) { b.w.server.stop(); b.back(keeps) }, false, ""},
		{"halted and lost", func(b *bench) { b.w.server.stop(); b.back(keeps); b.lose() }, true, "2 slots are held, of 1"},
		{"began anew", func(b *bench) { b.w.server.stop(); b.back(reads) }, true, ""},
		{"forgot", func(b *bench) { b.w.server.stop(); b.back(forgets) }, true, ""},
		{"forgot when two halts meet", func(b *bench) {
			b.w.server.stop()
			b.w.server.stop()
			b.back(keeps)
			b.back(forgets)
		}, true, ""},
		{"over", func(b *bench) { time.Sleep(5 * time.Second) }, true, ""},
		{"lost just before", func(b *bench) { time.Sleep(4990 * time.Millisecond); b.lose() }, true, "2 slots are held, of 1"},
		{"clock set back", func(b *bench) { b.w.server.clock.step(-time.Minute) }, false, ""},
		{"clock set back and lost", func(b *bench) { b.w.server.clock.step(-time.Minute); b.lose() }, true, "2 slots are held, of 1"},
		{"clock set ahead", func(b *bench) { b.w.server.clock.step(time.Minute) }, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBench(t, func(b *bench) {
				if !b.take(1) {
					b.Fatal("the first is refused")
				}
				c.does(b)
				if b.take(1) != c.free {
					b.Errorf("another one gets the slot: %v, want %v", !c.free, c.free)
				}
				b.expect(c.want)
			})
		})
	}
}

// TestFewerSlots: who comes when a limit has been lowered is held against what it is now.
func TestFewerSlots(t *testing.T) {
	inBench(t, func(b *bench) {
		b.take(2)
		b.take(2)
		if b.take(1) {
			b.Error("one of one slot is taken, while two are held")
		}
		b.expect("")
		b.lose()
		b.take(1)
		b.expect("3 slots are held, of 1")
	})
}

// TestFreedSlots: a slot that is held is given back, once, and one that is not held never.
func TestFreedSlots(t *testing.T) {
	for _, c := range []struct {
		name  string
		there bool // it was taken
		freed bool // the server says that it is free now
		want  string
	}{
		{"held", true, true, ""},
		{"held, and not freed", true, false, "cannot be given back"},
		{"not held", false, false, ""},
		{"not held, and freed", false, true, "are given back that are not held"},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBench(t, func(b *bench) {
				a := account{"slots", "k"}
				b.take(1)
				slot := slices.Collect(maps.Keys(b.w.of(a).slots))[0]
				if !c.there {
					slot++
				}
				b.w.slotFreed(a, slot, c.freed, b.w.server.began)
				b.expect(c.want)
			})
		})
	}
}

// TestHaltsMeet: a server is away until all halts are over.
func TestHaltsMeet(t *testing.T) {
	inBench(t, func(b *bench) {
		b.w.network = make([]weather, 1)
		b.w.server.stop()
		b.w.server.stop()
		b.back(keeps)
		if _, ok := b.w.reach(0); ok {
			b.Error("the server is back while a halt is in force")
		}
		b.back(forgets)
		if _, ok := b.w.reach(0); !ok {
			b.Error("the server is away when all halts are over")
		}
	})
}

func inBench(t *testing.T, do func(b *bench)) {
	t.Helper()
	path := t.TempDir() + "/snapshot"
	synctest.Test(t, func(t *testing.T) {
		w := &world{begun: time.Now(), plan: &plan{nodes: 1, snapshots: true}, accounts: map[account]*books{}}
		var err error
		if w.server, err = newServer(w, path); err != nil {
			t.Fatal(err)
		}
		do(&bench{t, w})
		if err := w.server.mem.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func (b *bench) expect(want string) {
	b.Helper()
	problems := b.w.problems
	if want == "" && len(problems) > 0 || want != "" && (len(problems) != 1 || !strings.Contains(problems[0], want)) {
		b.Errorf("found %q, want %q", problems, want)
	}
}
