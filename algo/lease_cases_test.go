package algo

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// leasedKinds are the kinds that lend.
var leasedKinds = []struct {
	name string
	c    Config
}{
	{"fixed_window", Config{Algorithm: FixedWindow}},
	{"fixed_window calendar", Config{Algorithm: FixedWindow, Calendar: Day}},
	{"fixed_window first request", Config{Algorithm: FixedWindow, FirstRequest: true}},
	{"sliding_log", Config{Algorithm: SlidingLog}},
	{"sliding_window", Config{Algorithm: SlidingWindow, Buckets: 1}},
	{"sliding_window buckets", Config{Algorithm: SlidingWindow, Buckets: 4}},
	{"token_bucket", Config{Algorithm: TokenBucket}},
}

// drawLeased fills in the numbers of a kind that lends.
func drawLeased(t *rapid.T, c Config) Config {
	c.N = rapid.SampledFrom([]int64{5, 3, 10, 12, 40, 100, 1000}).Draw(t, "N")
	c.Soft = rapid.SampledFrom([]int{0, 0, 50, 300}).Draw(t, "soft")
	c.Lease = rapid.SampledFrom([]int{90, 50, 75, 20}).Draw(t, "lease")
	c.LeaseFor = rapid.SampledFrom([]time.Duration{0, MinLeaseFor, 100 * time.Millisecond, time.Second,
		999_983 * time.Microsecond, MaxLeaseFor}).Draw(t, "for")
	if c.Calendar != NoCalendar {
		c.Location = zone(t, "Europe/Berlin")
	} else {
		c.Window = rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, time.Minute, 40 * time.Microsecond,
			3_999_932 * time.Microsecond}).Draw(t, "W")
	}
	if c.Algorithm == TokenBucket {
		c.Burst = rapid.SampledFrom([]int64{0, 4, 10, 30}).Draw(t, "B")
	}
	return c
}

// TestLeaseGolden is the example of docs/how-it-works/algorithms.md, number by number.
func TestLeaseGolden(t *testing.T) {
	l := must(t, Config{Algorithm: SlidingLog, N: 100, Window: time.Minute, Lease: 10, LeaseFor: 2 * time.Second})
	var s, lease State
	zero := at(12, 0, 0)
	for _, step := range []struct {
		what      string
		at        int64 // s
		ask       int64
		h         Ahead
		allowed   bool
		remaining int64
		retry     int64 // s
		got, ends int64 // ends in s
		out       int64
	}{
		{"A asks for one and wants eight", 0, 1, Ahead{Want: 8}, true, 99, 0, 8, 4, 8},
		{"B wants eight: ten may be out", 1, 1, Ahead{Want: 8}, true, 90, 0, 2, 4, 10},
		{"C wants a single one", 1, 1, Ahead{Want: 1}, true, 87, 0, 0, 4, 10},
		{"87 are left", 1, 88, Ahead{}, false, 87, 59, 0, 4, 10},
		{"D takes them", 1, 87, Ahead{Want: 8}, true, 0, 0, 0, 4, 10},
		{"A tells that it used five, returns one, and needs one", 2, 1, Ahead{Told: [2]Told{{End: 4, Used: 5, Returned: 1}}}, true, 0, 0, 0, 6, 4},
		{"when those of A and B have ended they are used", 4, 1, Ahead{}, false, 0, 56, 0, 8, 0},
		{"a telling of the past is ignored", 5, 0, Ahead{Told: [2]Told{{End: 4, Used: 2}}}, true, 0, 0, 0, 9, 0},
		{"the first of A is gone", 60, 2, Ahead{}, false, 1, 1, 0, 64, 0},
	} {
		now := zero + step.at*second
		for i := range step.h.Told {
			if step.h.Told[i].End != 0 {
				step.h.Told[i].End = zero + step.h.Told[i].End*second
			}
		}
		r := l.TakeAhead(&s, &lease, now, Ask{Cost: step.ask}, &step.h)
		if r.Allowed != step.allowed || r.Remaining != step.remaining || r.RetryAfter != step.retry*second ||
			step.h.Got != step.got || step.h.Out != step.out {
			t.Errorf("%s: %+v, %+v", step.what, r, step.h)
		}
		if r.Allowed && step.h.Until != zero+step.ends*second {
			t.Errorf("%s: until %d s", step.what, (step.h.Until-zero)/second)
		}
	}
}

// TestLeaseShares: holders that want more than may be out get shares by the units they asked for in
// the generation before, also if none of those are out any more.
func TestLeaseShares(t *testing.T) {
	l := must(t, Config{Algorithm: TokenBucket, N: 1000, Window: time.Minute, Lease: 10, LeaseFor: time.Second})
	var s, lease State
	now, wants := at(12, 0, 0), []int64{100, 60, 40}
	// The first to ask does not know of the others.
	for generation, want := range [][]int64{{100, 0, 0}, {50, 30, 20}, {50, 30, 20}} {
		var told [2]Told
		for i, wanted := range wants {
			h := Ahead{Want: wanted, First: true}
			l.TakeAhead(&s, &lease, now, Ask{}, &h)
			if h.Got != want[i] {
				t.Errorf("generation %d: a holder that wants %d gets %d, not %d", generation, wanted, h.Got, want[i])
			}
			told[0] = Told{End: h.Until, Returned: told[0].Returned + h.Got}
		}
		l.Learn(&s, &lease, now, &Ahead{Told: told})
		if n := l.lease.Lent(&lease); n.Out() != 0 {
			t.Fatalf("%+v", n)
		}
		now += second
	}
	now += 2 * second
	h := Ahead{Want: 100, First: true}
	if l.TakeAhead(&s, &lease, now, Ask{}, &h); h.Got != 100 {
		t.Errorf("after a generation without wants: %+v", h)
	}
}

// TestLeaseEnds: units end with the window and with the phase of a schedule, to the µs, and so
// does the last generation before.
func TestLeaseEnds(t *testing.T) {
	window := must(t, Config{Algorithm: FixedWindow, N: 100, Window: time.Minute, Lease: 50, LeaseFor: 4 * time.Second})
	bucket := Config{Algorithm: TokenBucket, N: 100, Window: time.Hour, Lease: 50, LeaseFor: 4 * time.Second}
	night := bucket
	night.N, night.Burst = 10, 10
	phases := scheduled(t, must(t, night), nil,
		Phase{From: clockTime(8, 0), Until: clockTime(20, 0), Limit: must(t, bucket)})
	for _, l := range []*Limit{window, phases} {
		var s, lease State
		end := at(20, 0, 0)
		for _, step := range []struct{ before, ends int64 }{{15, 7}, {12, 7}, {11, 3}, {8, 3}, {7, 3}, {5, 3}, {3, 0},
			{1, 0}} {
			h := Ahead{Want: 2}
			r := l.TakeAhead(&s, &lease, end-step.before*second, Ask{Cost: 1}, &h)
			if !r.Allowed || h.Until != end-step.ends*second || h.Got != 2 {
				t.Errorf("%v, %d s before the end: %+v, %+v; want units until %d s before it", l, step.before, r, h,
					step.ends)
			}
		}
		was := l.At
		in, _ := was(end - 1)
		if n := in.lease.Lent(&lease); n.Older != 4 || n.Newer != 0 || n.End != end {
			t.Errorf("%v: %+v", l, n)
		}
		r := l.TakeWith(&s, &lease, end, Ask{Cost: 1})
		if lease.B != 0 {
			t.Errorf("%v: %+v is left", l, lease)
		}
		if want := map[*Limit]int64{window: 99, phases: 0}[l]; r.Remaining != want || r.Allowed != (want > 0) {
			t.Errorf("%v: %+v", l, r)
		}
	}
	// Nothing is lent beyond the end of time, nor of a limit that is off.
	var s, lease State
	h := Ahead{Want: 10}
	l := must(t, bucket)
	if l.TakeAhead(&s, &lease, maxInt-second, Ask{Cost: 1}, &h); h.Got != 0 || h.Until != 0 || lease.B != 0 {
		t.Errorf("%+v", h)
	}
	off := scheduled(t, nil, nil, Phase{From: clockTime(8, 0), Until: clockTime(20, 0), Limit: l})
	if r := off.TakeAhead(&s, &lease, at(21, 0, 0), Ask{Cost: 1}, &h); !r.Off || h.Got != 0 || lease.B != 0 {
		t.Errorf("%+v, %+v", r, h)
	}
}

// TestLeaseScheduleRetry: a refusal while units are out names an instant of a later phase at which
// the request is admitted, however the units are used.
func TestLeaseScheduleRetry(t *testing.T) {
	for _, k := range leasedKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawLeased(t, k.c)
				if c.Calendar == NoCalendar {
					c.Window = time.Hour
				}
				other := c
				other.N, other.Burst = 2*c.N, 2*c.Burst
				l := scheduled(t, compile(t, c), nil, Phase{From: clockTime(8, 0), Until: clockTime(20, 0),
					Limit: compile(t, other)})
				var s, lease State
				now := at(20, 0, 0) - rapid.Int64Range(1, 200*second).Draw(t, "before")
				h := Ahead{Want: 1000}
				l.TakeAhead(&s, &lease, now, Ask{Cost: 1}, &h)
				now += rapid.Int64Range(0, 2*second).Draw(t, "later")
				in := l.inForce(now)
				l.TakeWith(&s, &lease, now, Ask{Cost: rapid.Int64Range(0, in.cap).Draw(t, "used")})
				a := Ask{Cost: rapid.Int64Range(1, in.cap).Draw(t, "cost")}
				was, wasLease := cloneState(s), lease
				r := l.CheckWith(&s, &lease, now, a)
				if !same(was, s) || !same(wasLease, lease) {
					t.Fatal("CheckWith wrote")
				}
				if r.Allowed || r.RetryAfter == Never {
					if !r.Allowed && a.Cost <= compile(t, c).cap {
						t.Fatalf("never?")
					}
					return
				}
				n := in.lease.Lent(&lease)
				for _, told := range []Ahead{{},
					{Told: [2]Told{{End: n.End, Used: n.Older},
						{End: n.Last, Used: n.Newer}}},
					{Told: [2]Told{{End: n.End, Returned: n.Older}, {End: n.Last, Returned: n.Newer}}}} {
					then, lent := cloneState(s), lease
					l.Learn(&then, &lent, now, &told)
					if got := l.TakeWith(&then, &lent, now+r.RetryAfter, a); !got.Allowed {
						t.Fatalf("%v: %+v gives %+v; then, %+v told, %+v", l, a, r, told, got)
					}
				}
			})
		})
	}
}

// TestLeaseFresh: a record may be forgotten when all that it holds, used at the last instant, would
// not count any more, and not while anything is out.
func TestLeaseFresh(t *testing.T) {
	for _, k := range leasedKinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				l := compile(t, drawLeased(t, k.c))
				var s, lease State
				now := base + rapid.Int64Range(0, 2*day).Draw(t, "start")
				h := Ahead{Want: rapid.Int64Range(2, 100).Draw(t, "want"), First: rapid.Bool().Draw(t, "first")}
				l.TakeAhead(&s, &lease, now, Ask{Cost: 1}, &h)
				if rapid.Bool().Draw(t, "returned") {
					h.Told[0] = Told{End: h.Until, Returned: h.Got}
					l.Learn(&s, &lease, now, &h)
				}
				of := l.Lease()
				if lease.B == 0 != (h.Out == 0 && (!h.First || l.lendable < 2)) {
					t.Fatalf("%+v: %+v", h, lease)
				}
				d := of.Check(&lease, now, Ask{}).ResetAfter
				if of.Fresh(&lease, now) != (d == 0) || !of.Fresh(&lease, now+d) || d > 0 && of.Fresh(&lease, now+d-1) {
					t.Fatalf("fresh at the wrong time: %d", d)
				}
				if h.Out > 0 && (d == 0 || of.Fresh(&lease, h.Until)) {
					t.Fatalf("%d units are out, and the record is forgotten after %d", h.Out, d)
				}
				s = State{} // what was charged is not what this is about
				l.Roll(&s, &lease, now+d)
				if lease.B != 0 || !l.Fresh(&s, now+d) {
					t.Fatalf("%v: %+v and %+v are left after %d", l, s, lease, d)
				}
			})
		})
	}
}

// TestLeaseCarry: under another length of generations everything out ends when the last of it would
// have, and nothing is lost.
func TestLeaseCarry(t *testing.T) {
	c := Config{Algorithm: SlidingLog, N: 100, Window: time.Minute, Lease: 50, LeaseFor: 2 * time.Second}
	old := must(t, c)
	c.LeaseFor = 500 * time.Millisecond
	l := must(t, c)
	var s, lease State
	now := at(12, 0, 0)
	h := Ahead{Want: 10, First: true}
	old.TakeAhead(&s, &lease, now, Ask{Cost: 1}, &h)
	now += 3 * second
	old.TakeAhead(&s, &lease, now, Ask{Cost: 1}, &h)
	l.Lease().Carry(old.Lease(), &lease, now)
	if n := l.Lease().Lent(&lease); n.Older != 20 || n.Newer != 0 || n.End != h.Until {
		t.Errorf("%+v", n)
	}
	if l.Roll(&s, &lease, h.Until-1) || !l.Roll(&s, &lease, h.Until) || lease.B != 0 {
		t.Errorf("%+v", lease)
	}
	if r := l.Check(&s, h.Until, Ask{}); r.Remaining != 78 {
		t.Errorf("%+v", r)
	}
	same := lease
	l.Lease().Carry(must(t, c).Lease(), &same, now)
	if same.A != lease.A || same.B != lease.B {
		t.Errorf("%+v", same)
	}
}

// TestLeaseLeap: a clock that is set back does not leave units out for long.
func TestLeaseLeap(t *testing.T) {
	l := must(t, Config{Algorithm: TokenBucket, N: 100, Window: time.Minute, Lease: 50, LeaseFor: 2 * time.Second})
	var s, lease State
	h := Ahead{Want: 10}
	l.TakeAhead(&s, &lease, at(12, 0, 0), Ask{Cost: 1}, &h)
	now := at(2, 0, 0)
	if r := l.CheckWith(&s, &lease, now, Ask{}); r.Remaining != 89 {
		t.Errorf("%+v", r)
	}
	l.TakeWith(&s, &lease, now, Ask{Cost: 1})
	if n := l.Lease().Lent(&lease); n.Newer != 10 || n.End != now+2*MaxLeaseFor.Microseconds() {
		t.Errorf("%+v", n)
	}
	now += 2*MaxLeaseFor.Microseconds() + 2*second
	if r := l.TakeWith(&s, &lease, now, Ask{Cost: 1}); lease.B != 0 || !r.Allowed {
		t.Errorf("%+v, %+v", r, lease)
	}
}

// TestLeaseLeftBehind: a record that ended long before the state was charged, which it does where
// some nodes do not lend, takes nothing of the state away, and neither does one with an impossible
// end or impossible counts.
func TestLeaseLeftBehind(t *testing.T) {
	for _, k := range leasedKinds {
		c := k.c
		c.N, c.Lease, c.LeaseFor = 100, 50, time.Second
		if c.Calendar == NoCalendar {
			c.Window = time.Minute
		}
		l := must(t, c)
		now := at(12, 0, 0)
		for _, n := range []Lent{
			{Older: 5, Newer: 3, End: now - 10*day}, {Older: 5, Newer: 3, End: now - 30*minute}, {Newer: 3, End: now - 2*minute},
			{Older: 5, End: 1}, {Older: 5}, {Older: 5, Newer: 5, End: -1}, {Older: 900_000_000, Newer: 90_000_000, End: now - minute}, {Older: lentMask, Newer: lentMask, End: 1},
		} {
			var s State
			l.Take(&s, now, Ask{Cost: 60})
			lease := n.Record(1<<32 - 1)
			now := now + 1
			r := l.TakeWith(&s, &lease, now, Ask{})
			if r.Remaining > 40 || r.Remaining < 30 && n.Older < 100 || lease.B != 0 {
				t.Errorf("%v, %+v: %+v, %+v", l, n, r, lease)
			}
			if len(s.Ext) > 6*(2*MaxLogN+60) {
				t.Errorf("%v, %+v: a state of %d bytes", l, n, len(s.Ext))
			}
			// It is over when all that counts is.
			if now += 2 * day; !l.Fresh(&s, now) {
				t.Errorf("%v, %+v: %+v is left", l, n, l.Check(&s, now, Ask{}))
			}
		}
	}
}

func TestLeaseConfig(t *testing.T) {
	for _, k := range leasedKinds {
		c := k.c
		c.N, c.Lease = 1000, 5
		if c.Calendar == NoCalendar {
			c.Window = time.Minute
		}
		l := must(t, c)
		again := must(t, l.Lease().Config())
		if again.Config() != l.Lease().Config() || again.w != l.Lease().w || again.Algorithm() != Lease ||
			l.lendable != 50 {
			t.Errorf("%v: what is lent is kept as %+v, made again %+v", l, l.Lease().Config(), again.Config())
		}
		if want := map[Calendar]int64{NoCalendar: 1_500_000, Day: 15_000_000}[c.Calendar]; l.Lease().w != want {
			t.Errorf("%v: generations of %d µs", l, l.Lease().w)
		}
		if !strings.Contains(l.String(), "leased 5%") {
			t.Error(l)
		}
		half, err := l.Scale(1, 2)
		if err != nil || half.lendable != 25 || half.Lease().w != l.Lease().w {
			t.Errorf("%v: %v, %v", l, half, err)
		}
		c.Lease = 0
		if must(t, c).Lease() != nil {
			t.Errorf("%v lends", l)
		}
		plain, h := must(t, c), Ahead{Want: 10}
		var s, lease State
		if r := plain.TakeAhead(&s, &lease, base, Ask{Cost: 1}, &h); !r.Allowed || h.Got != 0 || lease.B != 0 {
			t.Errorf("%+v, %+v", r, h)
		}
	}
	for _, c := range []Config{
		{N: 9, Window: time.Minute, Lease: -1},
		{N: 9, Window: time.Minute, Lease: MaxLease + 1},
		{N: 9, Window: time.Minute, LeaseFor: time.Second},
		{N: 9, Window: time.Minute, Lease: 5, LeaseFor: MinLeaseFor - 1},
		{N: 9, Window: time.Minute, Lease: 5, LeaseFor: MaxLeaseFor + time.Microsecond},
		{N: 9, Window: time.Minute, Lease: 5, LeaseFor: time.Second + 1},
		{N: 9, Window: time.Minute, Lease: 5, CountDenied: true},
		{N: 9, Window: time.Minute, Lease: 5, Soft: 50, SoftFor: time.Minute},
		{Algorithm: SlidingLog, N: 9, Window: time.Minute, Lease: 5, CountDenied: true},
		{Algorithm: LeakyBucket, N: 9, Window: time.Minute, Lease: 5},
		{Algorithm: TokenBucket, N: 9, Window: time.Minute, Lease: 5, RefillInterval: true},
		{Algorithm: Concurrency, N: 9, Lease: 5},
		{Algorithm: Lease},
		{Algorithm: Lease, Window: time.Second, Timeout: time.Second, N: 1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v): no error", c)
		}
	}
	if _, ok := ParseAlgorithm(Lease.String()); ok {
		t.Error("a rule file can name the algorithm of what is lent")
	}
	if _, err := Scheduled(must(t, Config{N: 9, Window: time.Minute, Lease: 5}), []Phase{{From: 1, Until: 2, Limit: must(t, Config{N: 9, Window: time.Minute, Lease: 6})}}, nil); err == nil {
		t.Error("the phases of a schedule lend differently")
	}
}

// TestLeaseCountDenied: what a fixed window denies is counted, also while units are out, and the
// units are used all the same.
func TestLeaseCountDenied(t *testing.T) {
	l := must(t, Config{Algorithm: FixedWindow, N: 10, Window: time.Minute, Lease: 50, CountDenied: true,
		LeaseFor: time.Second})
	var s, lease State
	now, h := at(12, 0, 0), Ahead{Want: 5}
	l.TakeAhead(&s, &lease, now, Ask{Cost: 1}, &h)
	if r := l.TakeWith(&s, &lease, now, Ask{Cost: 5}); h.Got != 5 || r.Allowed || r.Remaining != 0 ||
		r.RetryAfter != minute {
		t.Errorf("%+v, %+v", r, h)
	}
	l.Learn(&s, &lease, now, &Ahead{Told: [2]Told{{End: h.Until, Used: 3, Returned: 2}}})
	if r := l.TakeWith(&s, &lease, now, Ask{Cost: 1}); !r.Allowed || r.Remaining != 0 || s.B != 10 || lease.B != 0 {
		t.Errorf("%+v, %+v, %+v", r, s, lease)
	}
}

// TestLeaseAllocs: charging a state that is long enough, lending from it and reporting to it
// allocates nothing.
func TestLeaseAllocs(t *testing.T) {
	for _, k := range leasedKinds {
		c := k.c
		c.N, c.Lease, c.LeaseFor = 1000, 50, MinLeaseFor
		if c.Calendar == NoCalendar {
			c.Window = time.Second
		}
		l := must(t, c)
		var s, lease State
		now, h, told := at(12, 0, 0), Ahead{}, Told{}
		step := func() {
			h = Ahead{Told: [2]Told{told}, Want: 20, First: true}
			l.TakeAhead(&s, &lease, now, Ask{Cost: 1}, &h)
			told = Told{End: h.Until, Used: h.Got / 2}
			now += 7_001
		}
		for range 1000 {
			step()
		}
		if n := testing.AllocsPerRun(1000, step); n != 0 {
			t.Errorf("%v: %v allocations", l, n)
		}
	}
}

// TestLentAt: the units out at an instant are read without a change, also after generations have
// ended.
func TestLentAt(t *testing.T) {
	l := must(t, Config{Algorithm: TokenBucket, N: 100, Window: time.Minute, Lease: 50, LeaseFor: 2 * time.Second})
	var s, lease State
	now := at(12, 0, 0)
	for range 2 {
		l.TakeAhead(&s, &lease, now, Ask{Cost: 1}, &Ahead{Want: 10, First: true})
		now += 2 * second
	}
	was := lease
	for _, want := range []Lent{
		{Older: 10, Newer: 10, End: now, Last: now + 2*second},
		{Older: 10, End: now + 2*second, Last: now + 4*second},
		{},
	} {
		at := max(want.End-1, 0)
		if want.End == 0 {
			at = now + 2*second
		}
		if got := l.LentAt(&lease, at); got != want || lease.A != was.A || lease.B != was.B {
			t.Errorf("at %d: %+v, want %+v", at-now, got, want)
		}
	}
	if l.LentAt(nil, now) != (Lent{}) || must(t, Config{N: 1, Window: time.Minute}).LentAt(&lease, now) != (Lent{}) {
		t.Error("something is out where nothing is lent")
	}
}
