package record

import (
	"context"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// world is a limiter in virtual time with a recorder behind it.
type world struct {
	t        testing.TB
	now      int64
	limiter  *weir.Limiter
	recorder *Recorder
	staged   int
}

const begin = 1_780_000_000_000_000 // a full minute

func load(t testing.TB, text string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(text)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newWorld(t testing.TB, rules string, o Options) *world {
	t.Helper()
	w := &world{t: t, now: begin}
	clock := func() int64 { return w.now }
	if o.PerSecond == 0 {
		o.PerSecond = 1 << 30
	}
	o.Clock = clock
	var err error
	if w.recorder, err = NewRecorder(o); err != nil {
		t.Fatal(err)
	}
	w.recorder.SetSeed(7) // the same clients in each run
	s, err := memory.New(memory.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if w.limiter, err = weir.New(s, weir.WithRules(load(t, rules)), weir.WithClock(clock),
		weir.WithHooks(w.recorder.Hooks())); err != nil {
		t.Fatal(err)
	}
	return w
}

// ask decides one request at the instant of the world.
func (w *world) ask(r *weir.Request) *weir.Decision {
	w.t.Helper()
	d := new(weir.Decision)
	w.askInto(r, d)
	return d
}

func (w *world) askInto(r *weir.Request, d *weir.Decision) {
	if err := w.limiter.Decide(context.Background(), r, d); err != nil {
		w.t.Fatal(err)
	}
	if w.staged++; w.staged%64 == 0 {
		w.recorder.drain()
	}
}
