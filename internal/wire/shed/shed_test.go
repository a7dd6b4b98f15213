package shed

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// jam is a probe that is read as late as a test says.
type jam struct {
	*sleeper
	late, waits atomic.Int64
}

func (j *jam) wait(d time.Duration) error {
	j.waits.Add(1)
	return j.sleeper.wait(d + time.Duration(j.late.Load()))
}

// jammed runs a test with a line whose probe is a jam, in virtual time.
func jammed(t *testing.T, test func(t *testing.T, l *Line, j *jam)) {
	synctest.Test(t, func(t *testing.T) {
		j := &jam{sleeper: newSleeper(func() {})}
		test(t, newLine(j), j)
	})
}

// run runs the line until the test ends.
func run(t *testing.T, l *Line) {
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := l.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); ended.Wait() })
}

// ask asks every millisecond for as long as d, and returns how many were late.
func ask(d *Door, long time.Duration) (late int) {
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if d.Late(1) {
			late++
		}
	}
	return late
}

func TestLate(t *testing.T) {
	jammed(t, func(t *testing.T, l *Line, j *jam) {
		d, patient := l.Door("http", bound, Error), l.Door("proxy", time.Second, Error)
		run(t, l)
		if n := ask(d, time.Second); n > 0 {
			t.Errorf("%d are late without a line", n)
		}
		j.late.Store(int64(35 * time.Millisecond))
		ask(d, 30*time.Millisecond)
		j.late.Store(0)
		if n := ask(d, time.Second); n > 0 {
			t.Errorf("%d are late after a burst", n)
		}
		j.late.Store(int64(30 * time.Millisecond))
		ask(d, 300*time.Millisecond)
		if n := ask(d, 100*time.Millisecond); n != 100 {
			t.Errorf("%d of 100 are late after 30 ms in line", n)
		}
		j.late.Store(int64(5 * time.Millisecond))
		ask(d, 50*time.Millisecond)
		if n := ask(d, 100*time.Millisecond); n > 0 {
			t.Errorf("%d are late after 5 ms in line", n)
		}
		// Under overload a line counts at once, also while the probe is not read.
		j.late.Store(int64(time.Hour))
		ask(d, 20*time.Millisecond)
		if n := ask(d, 100*time.Millisecond); n < 99 {
			t.Errorf("%d of 100 are late while the probe is overdue", n)
		}
		if patient.Late(1) {
			t.Error("a door that bears a second turns requests away after 0.1")
		}
		if w := l.Waited(); w < 100*time.Millisecond {
			t.Errorf("the line is %v long", w)
		}
	})
}

// A server without requests does nothing, and overload ends also without any.
func TestRest(t *testing.T) {
	jammed(t, func(t *testing.T, l *Line, j *jam) {
		d := l.Door("http", bound, Error)
		run(t, l)
		time.Sleep(time.Hour)
		if n := j.waits.Load(); n > 0 {
			t.Errorf("the probe looked %d times in an hour without a request", n)
		}
		ask(d, time.Minute)
		if n := j.waits.Load(); n > 2*60*int64(time.Second/relaxed) {
			t.Errorf("the probe looked %d times in a minute without a line", n)
		}
		j.late.Store(int64(30 * time.Millisecond))
		ask(d, time.Second)
		if !d.Late(1) {
			t.Fatal("there is no overload")
		}
		j.late.Store(0)
		time.Sleep(time.Hour)
		before := j.waits.Load()
		time.Sleep(time.Hour)
		if n := j.waits.Load() - before; n > 0 || d.overloaded.Load() {
			t.Errorf("the probe looked %d times an hour after overload", n)
		}
		if l.Waited() != 0 {
			t.Errorf("the line is %v long", l.Waited())
		}
	})
}

// starved is a probe that is read late whenever the processor was given up for it: others have it.
type starved struct{ *sleeper }

func (s starved) wait(d time.Duration) error {
	if d > time.Microsecond {
		d += 30 * time.Millisecond
	}
	return s.sleeper.wait(d)
}

// A server that has little to do turns nobody away, though other programs let it wait.
func TestStarved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(starved{newSleeper(func() {})})
		d := l.Door("http", bound, Error)
		run(t, l)
		if n := ask(d, 10*time.Second); n > 0 || d.overloaded.Load() {
			t.Errorf("%d are late", n)
		}
	})
}

// A process that stood still, for as long as ever, has no overload after that: an overdue probe
// says so only where somebody could have read it.
func TestStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(newSleeper(func() {}))
		d := l.Door("http", bound, Error)
		l.least, l.overdue = bound, time.AfterFunc(time.Hour, func() {})
		defer l.overdue.Stop()
		l.begin(tense)
		for n := range 5 {
			time.Sleep(10 * time.Second)
			if l.lookOverdue(); d.Late(100) {
				t.Fatalf("there is overload after %d looks", n+1)
			}
		}
		if l.lookOverdue(); !d.Late(1) {
			t.Error("a probe that was looked at for an interval says nothing")
		}
	})
}

// broken is a jam that fails at some time.
type broken struct {
	*jam
	fails atomic.Bool
}

func (b *broken) wait(d time.Duration) error {
	if err := b.jam.wait(d); err != nil || !b.fails.Load() {
		return err
	}
	return errClosed
}

// When the line is not measured any more, nobody is turned away.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &broken{jam: &jam{sleeper: newSleeper(func() {})}}
		b.late.Store(int64(30 * time.Millisecond))
		l := newLine(b)
		d := l.Door("http", bound, Error)
		ended := make(chan error)
		go func() { ended <- l.Run(t.Context()) }()
		ask(d, time.Second)
		if !d.Late(1) {
			t.Fatal("there is no overload")
		}
		b.fails.Store(true)
		if err := <-ended; err == nil {
			t.Error("there is no error")
		}
		if n := ask(d, time.Second); n > 0 || l.Waited() != 0 {
			t.Errorf("%d are late; the line is %v long", n, l.Waited())
		}
	})
}

// Few requests make no line: if each waits, it is for something else, however long that takes.
func TestFew(t *testing.T) {
	jammed(t, func(t *testing.T, l *Line, j *jam) {
		d := l.Door("http", bound, Error)
		run(t, l)
		for _, late := range []time.Duration{30 * time.Millisecond, 400 * time.Millisecond} {
			j.late.Store(int64(late))
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if d.Late(1) {
					t.Fatalf("100 a second are too many, after %v in line", late)
				}
			}
			for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				d.Late(16) // a batch
			}
			if !d.Late(16) {
				t.Errorf("1,600 a second are not too many, after %v in line", late)
			}
			j.late.Store(0)
			ask(d, 2*time.Second)
		}
	})
}

func TestNoDoor(t *testing.T) {
	var none *Line
	l := newLine(newSleeper(func() {}))
	for _, d := range []*Door{none.Door("http", bound, Error), l.Door("http", 0, Error)} {
		if d != nil || d.Late(1) || d.Bound() != 0 {
			t.Error("a door without a bound turns requests away")
		}
	}
	if err := none.Run(t.Context()); err != nil || len(none.Stats().Turned) > 0 {
		t.Error("a nil line does something")
	}
	d := l.Door("http", bound, Deny)
	d.Turned(3)
	if s := l.Stats(); s.Turned["http"] != 3 || d.Answer() != Deny {
		t.Errorf("%+v", s)
	}
}

func TestCheck(t *testing.T) {
	for _, a := range []Answer{Error, Deny, Allow} {
		if err := a.Check(); err != nil {
			t.Error(err)
		}
	}
	if err := Answer("drop").Check(); err == nil {
		t.Error(`"drop" is an answer`)
	}
}

// The real probe is not read before it is due, and sees goroutines that are ready to run.
func TestProbe(t *testing.T) {
	for _, test := range []struct {
		name string
		make func() (probe, error)
	}{
		{"of this system", newProbe},
		{"sleeper", func() (probe, error) { return newSleeper(runtime.Gosched), nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := test.make()
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				start := time.Now()
				if err := p.wait(3 * time.Millisecond); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took < 3*time.Millisecond {
					t.Errorf("it is read after %v, before it is due", took)
				}
			}
			closed := make(chan error)
			go func() { closed <- p.wait(time.Hour) }()
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-closed; err == nil {
				t.Error("a closed probe is read without an error")
			}
		})
	}
}

// While goroutines that never wait take all processors, the line is as long as that lasts.
func TestProbeSeesWork(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	d := l.Door("http", time.Millisecond, Error)
	run(t, l)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	defer func() { close(stop); busy.Wait() }()
	for range 1000 * runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				d.Late(1)
				for end := time.Now().Add(time.Millisecond / 10); time.Now().Before(end); {
				}
				runtime.Gosched()
			}
		})
	}
	for !d.Late(1) { // the test's own bound ends it if that never comes
		runtime.Gosched()
	}
}
