package algo

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSoftMargin: 100 with a margin of 10 % admit 110 at once, and mark 10 of them; and so does the
// margin that closes, once.
func TestSoftMargin(t *testing.T) {
	for _, k := range kinds {
		for _, open := range []time.Duration{0, time.Minute} {
			c := k.c
			c.N, c.Soft, c.SoftFor, c.Window = 100, 10, open, time.Hour
			if c.Algorithm == Concurrency {
				if c.Window = 0; open > 0 {
					continue
				}
			}
			if c.Calendar != NoCalendar {
				c.Window = 0
			}
			l := must(t, c)
			want := int64(110)
			if c.Algorithm == LeakyBucket {
				want++ // the one that leaves at once
			}
			var s, m State
			admitted, marked := int64(0), 0
			for i := range 200 {
				if r := l.TakeWith(&s, &m, at(12, 0, 0), Ask{Cost: 1, MaxDelay: -1, Slot: uint64(i + 1)}); r.Allowed {
					if admitted++; r.Soft {
						marked++
					}
				}
			}
			if admitted != want || marked != 10 {
				t.Errorf("%v: %d admitted, %d marked, want %d and 10", l, admitted, marked, want)
			}
			if (m.B != 0) != (open > 0) {
				t.Errorf("%v: the margin's state is %+v", l, m)
			}
		}
	}
}

// marginModel keeps the whole history of a fixed window or a log: what was counted, and when the
// margin was used.
type marginModel struct {
	c      Config
	counts []admission // what is counted, in order
	// when a request went into the margin, or, while that was closed or open, was counted though it
	// was denied
	uses   []int64
	opened int // uses before this one belong to a margin that has opened again
}

type admission struct{ at, units int64 }

func (m *marginModel) used(now int64) (used int64) {
	w := micros(m.c.Window)
	for _, a := range m.counts {
		if a.at <= now && (m.c.Algorithm == SlidingLog && a.at > now-w ||
			m.c.Algorithm == FixedWindow && a.at/w == now/w) {
			used += a.units
		}
	}
	return used
}

// calm returns the first instant from t on at which no more than N is used.
func (m *marginModel) calm(t int64) int64 {
	if m.used(t) <= m.c.N {
		return t
	}
	var changes []int64
	for _, a := range m.counts {
		if m.c.Algorithm == SlidingLog {
			changes = append(changes, a.at+micros(m.c.Window))
		} else {
			changes = append(changes, (a.at/micros(m.c.Window)+1)*micros(m.c.Window))
		}
	}
	slices.Sort(changes)
	for _, at := range changes {
		if at > t && m.used(at) <= m.c.N {
			return at
		}
	}
	panic("used for ever")
}

func (m *marginModel) ask(now, cost int64) (allowed, soft bool) {
	inUse := len(m.uses) > m.opened
	if inUse && now >= m.calm(m.uses[len(m.uses)-1])+micros(m.c.Window) {
		m.opened, inUse = len(m.uses), false
	}
	capacity := m.c.N + m.c.N*int64(m.c.Soft)/100
	if inUse && now >= m.uses[m.opened]+micros(m.c.SoftFor) {
		capacity = m.c.N
	}
	used := m.used(now)
	if cost == 0 {
		return used <= capacity, used <= capacity && used > m.c.N
	}
	allowed = used+cost <= capacity
	soft = allowed && used+cost > m.c.N
	if allowed || m.c.CountDenied {
		units := cost
		if m.c.Algorithm == SlidingLog {
			// A log keeps one unit more than it could admit.
			most := max(m.c.N+m.c.N*int64(m.c.Soft)/100+1, used)
			units = min(units, most)
			for over := used + units - most; over > 0; {
				i := slices.IndexFunc(m.counts,
					func(a admission) bool { return a.at > now-micros(m.c.Window) && a.units > 0 })
				less := min(over, m.counts[i].units)
				m.counts[i].units -= less
				over -= less
			}
		}
		m.counts = append(m.counts, admission{now, units})
	}
	if soft || !allowed && m.c.CountDenied && inUse {
		m.uses = append(m.uses, now)
	}
	return allowed, soft
}

func drawMargin(t *rapid.T, c Config) Config {
	c.N = rapid.SampledFrom([]int64{1, 2, 3, 5, 10}).Draw(t, "N")
	c.Soft = rapid.SampledFrom([]int{100, 150, 300}).Draw(t, "soft")
	c.SoftFor = rapid.SampledFrom([]time.Duration{time.Microsecond, time.Second, 10 * time.Second, 25 * time.Second,
		2 * time.Minute}).Draw(t, "for")
	switch {
	case c.Calendar != NoCalendar:
		c.Location = zone(t, "Europe/Berlin")
		c.SoftFor *= 3600
	default:
		c.Window = rapid.SampledFrom([]time.Duration{10 * time.Second, time.Minute, 999_983 * time.Microsecond}).Draw(t,
			"W")
	}
	if c.Algorithm == SlidingWindow && c.Buckets > 1 {
		c.Window = 10 * time.Second
	}
	if c.Algorithm == TokenBucket || c.Algorithm == LeakyBucket {
		c.Burst = rapid.SampledFrom([]int64{1, 2, 4, 10}).Draw(t, "B")
	} else {
		c.CountDenied = rapid.Bool().Draw(t, "count_denied")
	}
	return c
}

// TestMarginModel holds fixed windows and logs with a margin that closes against their history.
func TestMarginModel(t *testing.T) {
	for _, a := range []Algorithm{FixedWindow, SlidingLog} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawMargin(t, Config{Algorithm: a})
				l, m := compile(t, c), &marginModel{c: c}
				walkMargin(t, l, func(where string, now int64, a Ask, r Result) {
					if allowed, soft := m.ask(now, a.Cost); allowed != r.Allowed || soft != r.Soft {
						t.Fatalf("%s\nthe history says allowed %v, soft %v", where, allowed, soft)
					}
				})
			})
		})
	}
}

// TestMarginProbes looks at what every kind claims with a margin that closes.
func TestMarginProbes(t *testing.T) {
	for _, k := range kinds {
		if k.c.Algorithm == Concurrency {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawMargin(t, k.c)
				// of the margin in use, worked out beside; reopens 0: it is not
				var first, reopens int64
				open := compile(t, c)
				var plain State
				walkMargin(t, open, func(where string, now int64, a Ask, r Result) {
					if now >= reopens {
						reopens = 0
					}
					closed := reopens != 0 && now >= first+micros(c.SoftFor)
					if limit, capacity := numbers(open.Config()); closed && r.SoftLimit != limit ||
						!closed && r.SoftLimit != capacity || closed && r.Soft {
						t.Fatalf("%s\nclosed: %v", where, closed)
					}
					// The first state, alone: what the margin lets through is charged as ever.
					if a.Cost != 0 && (r.Allowed || c.CountDenied) {
						all := c
						all.SoftFor, all.CountDenied = 0, c.CountDenied
						l := compile(t, all)
						if got := l.Take(&plain, now, a); r.Allowed && !got.Allowed {
							t.Fatalf("%s\nmore than the margin admits: %+v", where, got)
						}
					}
					if a.Cost > 0 && (r.Allowed && r.Soft || !r.Allowed && c.CountDenied && reopens != 0) {
						if reopens == 0 {
							first = now
						}
						// used falls to N: the first instant at which a peek is not marked.
						d := r.ResetAfter
						for lo := int64(0); lo < d; {
							mid := lo + (d-lo)/2
							if peek := open.Check(&plain, now+mid, Ask{}); peek.Allowed && !peek.Soft {
								d = mid
							} else {
								lo = mid + 1
							}
						}
						reopens = max(reopens, now+d+micros(open.Config().Window))
					}
				})
			})
		})
	}
}

// walkMargin runs random asks through l and probes every result; each is called for every one.
func walkMargin(t *rapid.T, l *Limit, each func(where string, now int64, a Ask, r Result)) {
	var s, m State
	c := l.Config()
	now, last := base+rapid.Int64Range(0, 2*day).Draw(t, "start"), Result{}
	for range rapid.IntRange(1, 25).Draw(t, "steps") {
		switch rapid.IntRange(0, 3).Draw(t, "step") {
		case 0:
			now = after(now, step(t, l, last, false))
		case 1:
			if m.B != 0 {
				edge := rapid.SampledFrom([]int64{m.A + micros(c.SoftFor), int64(m.B)}).Draw(t, "edge")
				now = max(now, edge+rapid.Int64Range(-1, 1).Draw(t, "around"))
			}
		case 2:
			now += rapid.Int64Range(0, micros(c.SoftFor)).Draw(t, "within for")
		}
		_, capacity := numbers(c)
		a := Ask{Cost: rapid.SampledFrom([]int64{0, 1, 1, 1, 1, 2, 3, c.N, capacity, capacity + 1}).Draw(t, "cost"),
			MaxDelay: -1}
		if c.Algorithm == LeakyBucket && rapid.IntRange(0, 3).Draw(t, "bounded") == 0 {
			a.MaxDelay = rapid.Int64Range(0, micros(c.Window)).Draw(t, "max delay")
		}
		was, wasMargin := cloneState(s), m
		checked := l.CheckWith(&s, &m, now, a)
		if !same(was, s) || !same(wasMargin, m) {
			t.Fatalf("CheckWith wrote")
		}
		r := l.TakeWith(&s, &m, now, a)
		where := fmt.Sprintf("%v at base + %d: %+v gives %+v; margin %+v", l, now-base, a, r, m)
		if checked.Allowed != r.Allowed || checked.Delay != r.Delay {
			t.Fatalf("%s\nCheckWith says %+v", where, checked)
		}
		if a.Cost == 0 || !r.Allowed && !l.CountDenied() {
			if !same(was, s) || !same(wasMargin, m) || checked != r {
				t.Fatalf("%s\nit changed something: %+v, %+v; CheckWith said %+v", where, was, wasMargin, checked)
			}
		}
		if !r.Allowed && a.Cost > 0 {
			probeRetry(t, where, now, r.RetryAfter, func(at int64) bool {
				s, m := cloneState(s), m
				return l.TakeWith(&s, &m, at, a).Allowed
			}, m.A+micros(c.SoftFor), int64(m.B))
		}
		if margin := l.Margin(); margin.Fresh(&m, now) != (margin.Check(&m, now, Ask{}).ResetAfter == 0) {
			t.Fatalf("%s\nfresh?", where)
		} else if m.B != 0 && margin.Fresh(&m, int64(m.B)-1) || !margin.Fresh(&m, int64(m.B)) {
			t.Fatalf("%s\nfresh at the wrong time", where)
		}
		each(where, now, a, r)
		last = r
	}
}

// probeRetry looks whether a retry_after is the smallest, around edges too.
func probeRetry(t *rapid.T, where string, now, retry int64, allowed func(at int64) bool, edges ...int64) {
	t.Helper()
	before := int64(200 * day)
	if retry != Never {
		if retry <= 0 || !allowed(now+retry) {
			t.Fatalf("%s\nnot admitted after retry_after", where)
		}
		before = retry
	}
	looks := []int64{1, before - 1, before - 2, before / 2, before / 3, rapid.Int64Range(0, before-1).Draw(t, "look")}
	for _, e := range edges {
		looks = append(looks, e-now, e-now-1)
	}
	for _, d := range looks {
		if d >= 0 && d < before && allowed(now+d) {
			t.Fatalf("%s\nadmitted after %d", where, d)
		}
	}
}

// TestCheckAnswersAsTake: also where the clock leaps, CheckWith says of a request that is denied
// what TakeWith says, though it does not put the state right.
func TestCheckAnswersAsTake(t *testing.T) {
	for _, k := range kinds {
		if k.c.Algorithm == Concurrency {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawMargin(t, k.c)
				c.CountDenied = false
				l := compile(t, c)
				if rapid.Bool().Draw(t, "scheduled") {
					other := c
					other.N++
					l = scheduled(t, l, nil, Phase{From: clockTime(8, 0), Until: clockTime(20, 0),
						Limit: compile(t, other)}, Phase{From: clockTime(7, 0), Until: clockTime(8, 0)})
				}
				var s, m State
				now := base
				for range rapid.IntRange(1, 20).Draw(t, "steps") {
					w := micros(c.Window) + hour
					now = max(0, now+rapid.Int64Range(-6*w, 6*w).Draw(t,
						"leap")*int64(rapid.IntRange(0, 1).Draw(t, "leaps")))
					a := Ask{Cost: rapid.SampledFrom([]int64{1, 1, 2, c.N, 3 * c.N}).Draw(t, "cost"), MaxDelay: -1}
					was, wasMargin := cloneState(s), m
					checked := l.CheckWith(&s, &m, now, a)
					if !same(was, s) || !same(wasMargin, m) {
						t.Fatal("CheckWith wrote")
					}
					if r := l.TakeWith(&s, &m, now, a); !r.Allowed && checked != r {
						t.Fatalf("%v at base + %d: %+v\nTakeWith says  %+v\nCheckWith says %+v", l, now-base, a, r,
							checked)
					}
				}
			})
		})
	}
}

// TestMarginQueue: while the margin of a queue is closed, turns keep their pace.
func TestMarginQueue(t *testing.T) {
	l := must(t, Config{Algorithm: LeakyBucket, N: 1, Window: time.Second, Burst: 10, Soft: 50,
		SoftFor: 2 * time.Second})
	var s, m State
	var turns []int64
	for now := at(0, 0, 0); now < at(0, 2, 0); now += 100_000 {
		if r := l.TakeWith(&s, &m, now, Ask{Cost: 1, MaxDelay: -1}); r.Allowed {
			turns = append(turns, now+r.Delay)
		}
	}
	for i := 1; i < len(turns); i++ {
		if turns[i]-turns[i-1] != second {
			t.Fatalf("turn %d is %d µs after the one before", i, turns[i]-turns[i-1])
		}
	}
	if len(turns) < 120 {
		t.Errorf("%d turns", len(turns))
	}
}

// TestMarginLeap: a state that the clock left far ahead counts for nothing, and calls that write
// repair it.
func TestMarginLeap(t *testing.T) {
	for _, k := range kinds {
		if k.c.Algorithm == Concurrency {
			continue
		}
		c := k.c
		c.N, c.Soft, c.SoftFor = 4, 50, time.Second
		if c.Calendar == NoCalendar {
			c.Window = time.Minute
		}
		l := must(t, c)
		var s, m State
		then := at(0, 0, 0) + 4000*day
		for range 6 {
			l.TakeWith(&s, &m, then, Ask{Cost: 1, MaxDelay: -1})
		}
		if m.B == 0 || l.Margin().Fresh(&m, then) {
			t.Errorf("%v: %+v", l, m)
			continue
		}
		now := at(0, 0, 0)
		if was := m; !l.Margin().Fresh(&m, now) || m.B != was.B {
			t.Errorf("%v: %+v is not fresh, or Fresh wrote", l, m)
		}
		if mended := m; !l.Margin().Mend(&mended, now) || mended.B != 0 {
			t.Errorf("%v: mended it is %+v", l, mended)
		}
		l.TakeWith(&s, &m, now, Ask{Cost: 1, MaxDelay: -1})
		if m.B != 0 && int64(m.B) > now+100*day {
			t.Errorf("%v: %+v stayed", l, m)
		}
	}
}

func TestMarginConfig(t *testing.T) {
	for _, k := range kinds {
		c := k.c
		c.N, c.Soft, c.SoftFor = 100, 10, time.Minute
		if c.Algorithm != Concurrency && c.Calendar == NoCalendar {
			c.Window = time.Hour
		}
		l, err := New(c)
		if c.Algorithm == Concurrency {
			if err == nil {
				t.Error("slots have a margin that closes")
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		again := must(t, l.Margin().Config())
		if again.Config() != l.Margin().Config() || again.w != l.Margin().w || again.Algorithm() != Margin {
			t.Errorf("%v: the margin is %+v, made again %+v", l, l.Margin().Config(), again.Config())
		}
		if p := l.Params(); p.Admit != l.limit || p.Cap != l.cap {
			t.Errorf("%v: %+v", l, p)
		}
		c.SoftFor = 0
		if l := must(t, c); l.Margin() != nil || l.Params().Admit != l.cap {
			t.Errorf("%v has a margin that closes", l)
		}
	}
	for _, c := range []Config{
		{N: 9, Window: time.Minute, Soft: 10, SoftFor: time.Second},
		{N: 9, Window: time.Minute, SoftFor: time.Second},
		{N: 9, Window: time.Minute, Soft: 100, SoftFor: -time.Second},
		{Algorithm: TokenBucket, N: 100, Burst: 5, Window: time.Minute, Soft: 10, SoftFor: time.Second},
		{Algorithm: LeakyBucket, N: 100, Burst: NoBurst, Window: time.Minute, Soft: 100, SoftFor: time.Second},
		{Algorithm: Margin},
		{Algorithm: Margin, Window: time.Second, SoftFor: time.Second, Timeout: time.Second, N: 1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v): no error", c)
		}
	}
	if _, ok := ParseAlgorithm(Margin.String()); ok {
		t.Error("a rule file can name the margin's algorithm")
	}
}
