package algo

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"pgregory.net/rapid"
)

func weekdays(days ...time.Weekday) (d Days) {
	for _, day := range days {
		d |= 1 << day
	}
	return d
}

func clockTime(hour, minute int) time.Duration {
	return time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute
}

// perHour is a limit of its own.
func perHour(t fataler, n int64) *Limit {
	return compile(t, Config{Algorithm: FixedWindow, N: n, Window: time.Hour})
}

func scheduled(t fataler, otherwise *Limit, loc *time.Location, phases ...Phase) *Limit {
	t.Helper()
	l, err := Scheduled(otherwise, phases, loc)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return l
}

func instant(t fataler, s string) int64 {
	t.Helper()
	tm, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return tm.UnixMicro()
}

// TestScheduleClockChanges: a phase holds while the local clock reads a time in it, and At tells
// until when.
func TestScheduleClockChanges(t *testing.T) {
	const sunday = time.Sunday
	type at struct {
		instant string // a change to holds comes here, and not before
		holds   bool
	}
	for _, tc := range []struct {
		name  string
		zone  string
		phase Phase
		from  string // from here on
		at    []at   // all changes
		to    string
	}{
		{
			"forward over the beginning", "Europe/Berlin", Phase{From: clockTime(2, 30), Until: clockTime(4, 0)}, "2026-03-28T12:00:00Z",
			[]at{{"2026-03-29T01:00:00Z", true}, {"2026-03-29T02:00:00Z", false}}, "2026-03-29T12:00:00Z",
		},
		{
			"forward over the end", "Europe/Berlin", Phase{From: clockTime(1, 0), Until: clockTime(2, 30)}, "2026-03-28T12:00:00Z",
			[]at{{"2026-03-29T00:00:00Z", true}, {"2026-03-29T01:00:00Z", false}}, "2026-03-29T12:00:00Z",
		},
		{
			"forward over all of it", "Europe/Berlin", Phase{Days: weekdays(sunday), From: clockTime(2, 15), Until: clockTime(2, 45)}, "2026-03-23T12:00:00Z",
			[]at{{"2026-04-05T00:15:00Z", true}, {"2026-04-05T00:45:00Z", false}}, "2026-04-06T12:00:00Z",
		},
		{
			"back, twice through it", "Europe/Berlin", Phase{Days: weekdays(sunday), From: clockTime(2, 15), Until: clockTime(2, 45)}, "2026-10-24T12:00:00Z",
			[]at{{"2026-10-25T00:15:00Z", true}, {"2026-10-25T00:45:00Z", false}, {"2026-10-25T01:15:00Z", true},
				{"2026-10-25T01:45:00Z", false}}, "2026-10-25T12:00:00Z",
		},
		{
			"back, over the beginning", "Europe/Berlin", Phase{From: clockTime(2, 30), Until: clockTime(8, 0)}, "2026-10-24T12:00:00Z",
			[]at{{"2026-10-25T00:30:00Z", true}, {"2026-10-25T01:00:00Z", false}, {"2026-10-25T01:30:00Z", true},
				{"2026-10-25T07:00:00Z", false}}, "2026-10-25T12:00:00Z",
		},
		{
			"a night of 23 hours", "America/New_York", Phase{Days: weekdays(time.Saturday), From: clockTime(22, 0), Until: clockTime(6, 0)}, "2026-03-07T12:00:00Z",
			[]at{{"2026-03-08T03:00:00Z", true}, {"2026-03-08T10:00:00Z", false}}, "2026-03-09T12:00:00Z",
		},
		{
			"a night of 25 hours", "America/New_York", Phase{Days: weekdays(time.Saturday), From: clockTime(22, 0), Until: clockTime(6, 0)}, "2026-10-31T12:00:00Z",
			[]at{{"2026-11-01T02:00:00Z", true}, {"2026-11-01T11:00:00Z", false}}, "2026-11-02T12:00:00Z",
		},
		{
			"half an hour back", "Australia/Lord_Howe", Phase{Days: weekdays(sunday), From: clockTime(1, 45), Until: clockTime(3, 0)}, "2026-04-04T00:00:00Z",
			[]at{{"2026-04-04T14:45:00Z", true}, {"2026-04-04T15:00:00Z", false}, {"2026-04-04T15:15:00Z", true},
				{"2026-04-04T16:30:00Z", false}}, "2026-04-05T12:00:00Z",
		},
		{
			"half an hour forward", "Australia/Lord_Howe", Phase{Days: weekdays(sunday), From: clockTime(2, 10), Until: clockTime(2, 50)}, "2026-10-03T00:00:00Z",
			[]at{{"2026-10-03T15:30:00Z", true}, {"2026-10-03T15:50:00Z", false}}, "2026-10-04T12:00:00Z",
		},
		{
			// There was no 30 December 2011, a Friday, in Apia.
			"a day that is skipped", "Pacific/Apia", Phase{Days: weekdays(time.Friday), From: 0, Until: clockTime(24, 0)}, "2011-12-25T00:00:00Z",
			[]at{{"2012-01-05T10:00:00Z", true}, {"2012-01-06T10:00:00Z", false}}, "2012-01-08T00:00:00Z",
		},
		{
			"from a day to one after that is skipped", "Pacific/Apia", Phase{Days: weekdays(time.Thursday), From: clockTime(20, 0), Until: clockTime(4, 0)}, "2011-12-29T12:00:00Z",
			// Thursday until midnight; the next that the clock reads is Saturday, 0:00.
			[]at{{"2011-12-30T06:00:00Z", true}, {"2011-12-30T10:00:00Z", false}}, "2012-01-02T00:00:00Z",
		},
		{
			"an offset of a quarter of an hour", "Asia/Kathmandu", Phase{From: clockTime(8, 0), Until: clockTime(20, 0)}, "2026-01-01T00:00:00Z",
			[]at{{"2026-01-01T02:15:00Z", true}, {"2026-01-01T14:15:00Z", false}}, "2026-01-02T00:00:00Z",
		},
		{
			"beyond the table, the last day of a leap year", "Europe/Berlin", Phase{From: clockTime(8, 0), Until: clockTime(20, 0)}, "2096-12-31T00:00:00Z",
			[]at{{"2096-12-31T07:00:00Z", true}, {"2096-12-31T19:00:00Z", false}, {"2097-01-01T07:00:00Z", true},
				{"2097-01-01T19:00:00Z", false}}, "2097-01-02T00:00:00Z",
		},
		{
			"all day from eight to eight", "UTC", Phase{Days: weekdays(time.Monday), From: clockTime(8, 0), Until: clockTime(8, 0)}, "2026-01-04T00:00:00Z",
			[]at{{"2026-01-05T08:00:00Z", true}, {"2026-01-06T08:00:00Z", false}}, "2026-01-10T00:00:00Z",
		},
		{
			"over the end of the week", "UTC", Phase{Days: weekdays(time.Saturday), From: clockTime(22, 0), Until: clockTime(2, 0)}, "2026-01-03T00:00:00Z",
			[]at{{"2026-01-03T22:00:00Z", true}, {"2026-01-04T02:00:00Z", false}}, "2026-01-05T00:00:00Z",
		},
	} {
		t.Run(tc.zone+"/"+tc.name, func(t *testing.T) {
			in, out := perHour(t, 5), perHour(t, 9)
			tc.phase.Limit = in
			l := scheduled(t, out, zone(t, tc.zone), tc.phase)
			// Along the intervals that At gives, however they are cut.
			var got []at
			last := out
			for now, end := instant(t, tc.from), instant(t, tc.to); now < end; {
				limit, until := l.At(now)
				if until <= now {
					t.Fatalf("at %v certain until %v", time.UnixMicro(now).UTC(), time.UnixMicro(until).UTC())
				}
				if limit != last {
					got = append(got, at{time.UnixMicro(now).UTC().Format(time.RFC3339Nano), limit == in})
				}
				last = limit
				for _, within := range []int64{now + 1, now + (until-now)/2, until - 1} {
					// By another schedule, which remembers nothing.
					if same, _ := scheduled(t, out, zone(t, tc.zone), tc.phase).At(within); same != limit {
						t.Fatalf("certain from %v to %v, but not at %v", time.UnixMicro(now).UTC(),
							time.UnixMicro(until).UTC(), time.UnixMicro(within).UTC())
					}
				}
				now = until
			}
			if fmt.Sprint(got) != fmt.Sprint(tc.at) {
				t.Errorf("changes %v, want %v", got, tc.at)
			}
		})
	}
}

// naiveAt reads the local clock, and goes through the phases.
func naiveAt(otherwise *Limit, phases []Phase, loc *time.Location, now int64) *Limit {
	local := time.UnixMicro(now).In(loc)
	tod := time.Duration(local.Hour())*time.Hour + time.Duration(local.Minute())*time.Minute +
		time.Duration(local.Second())*time.Second + time.Duration(local.Nanosecond())
	on := func(p Phase, day time.Weekday) bool { return p.Days == 0 || p.Days&(1<<day) != 0 }
	for _, p := range phases {
		begins, goesOn := on(p, local.Weekday()) && tod >= p.From, on(p, (local.Weekday()+6)%7) && tod < p.Until
		if p.From < p.Until && begins && tod < p.Until || p.From >= p.Until && (begins || goesOn) {
			return p.Limit
		}
	}
	return otherwise
}

var scheduleZones = append([]string{"Pacific/Apia", "America/St_Johns", "Asia/Kolkata", "Africa/Casablanca",
	"Pacific/Kiritimati", "Antarctica/Troll"}, zones...)

func drawPhases(t *rapid.T, limits []*Limit) (phases []Phase) {
	for range rapid.IntRange(1, 4).Draw(t, "phases") {
		times := []time.Duration{0, clockTime(24, 0), clockTime(2, 0), clockTime(2, 30), clockTime(8, 0),
			clockTime(20, 0), clockTime(0, 1), clockTime(23, 59)}
		phases = append(phases, Phase{
			Days:  Days(rapid.SampledFrom([]int{0, 0, 1, 62, 65, 127, 8}).Draw(t, "days")),
			From:  rapid.SampledFrom(times).Draw(t, "from"),
			Until: rapid.SampledFrom(times).Draw(t, "until"),
			Limit: rapid.SampledFrom(limits).Draw(t, "limit"),
		})
	}
	return phases
}

// TestScheduleByTheMinute holds schedules against what the local clock reads at each minute.
func TestScheduleByTheMinute(t *testing.T) {
	one, two, three := perHour(t, 1), perHour(t, 2), perHour(t, 3)
	rapid.Check(t, func(t *rapid.T) {
		loc := zone(t, rapid.SampledFrom(scheduleZones).Draw(t, "zone"))
		phases := drawPhases(t, []*Limit{one, two, nil})
		otherwise := rapid.SampledFrom([]*Limit{three, three, nil, two}).Draw(t, "otherwise")
		l, err := Scheduled(otherwise, phases, loc)
		if err != nil {
			t.Skip("no limit at any time")
		}
		// Anywhere, or near a change of the clocks.
		start := rapid.Int64Range(0, 230*365*day/minute).Draw(t, "start") * minute
		if _, to := time.UnixMicro(start).In(loc).ZoneBounds(); !to.IsZero() &&
			rapid.IntRange(0, 2).Draw(t, "near a change") > 0 {
			start = max(0, to.UnixMicro()-rapid.Int64Range(0, 2*day/minute).Draw(t, "before")*minute)
		}
		var until int64
		var in *Limit
		for now := start; now < start+3*day; now += minute {
			want := naiveAt(otherwise, phases, loc, now)
			if now >= until {
				if in, until = l.At(now); until <= now {
					t.Fatalf("at %v certain until %v", time.UnixMicro(now).In(loc), time.UnixMicro(until).In(loc))
				}
			}
			if in != want {
				t.Fatalf("at %v %v, want %v", time.UnixMicro(now).In(loc), in, want)
			}
		}
	})
}

// TestScheduleProbes: what a limit with a schedule claims holds, across its phases.
func TestScheduleProbes(t *testing.T) {
	effort.Fewer(t, 10)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawMargin(t, k.c)
				switch {
				case c.Algorithm == Concurrency:
					c.Timeout, c.Window, c.SoftFor, c.CountDenied = rapid.SampledFrom(
						[]time.Duration{time.Minute, 10 * time.Hour}).Draw(t, "time-out"), 0, 0, false
				case c.Calendar == NoCalendar:
					c.Window = rapid.SampledFrom([]time.Duration{time.Hour, 10 * time.Minute,
						100 * 24 * time.Hour}).Draw(t, "W")
					c.SoftFor *= 100
				default:
					c.Calendar = rapid.SampledFrom([]Calendar{Day, Month, Year}).Draw(t, "calendar")
				}
				if rapid.Bool().Draw(t, "no margin") {
					c.Soft, c.SoftFor = 0, 0
				}
				limits := []*Limit{compile(t, c), nil}
				for range 2 {
					other := change(t, c)
					if margin(other.size(), other.Soft) == 0 {
						other.SoftFor = 0
					}
					limits = append(limits, compile(t, other))
				}
				loc := zone(t, rapid.SampledFrom([]string{"UTC", "Europe/Berlin", "Pacific/Apia"}).Draw(t, "zone"))
				otherwise := rapid.SampledFrom(limits).Draw(t, "otherwise")
				phases := drawPhases(t, limits)
				l, err := Scheduled(otherwise, phases, loc)
				if err != nil {
					t.Skip("no limit at any time")
				}
				margin, holds := l.Margin(), map[*Limit]bool{}
				for at := int64(0); at < 7*day; at += minute {
					holds[naiveAt(otherwise, phases, time.UTC, at)] = true
				}
				var s, m State
				var last Result
				now := instant(t, "2026-03-28T12:00:00Z") + rapid.Int64Range(0, 30*hour).Draw(t, "start")
				if loc.String() == "Pacific/Apia" {
					now = instant(t, "2011-12-29T12:00:00Z")
				}
				for i := range rapid.IntRange(1, 15).Draw(t, "steps") {
					switch in, until := l.At(now); rapid.IntRange(0, 3).Draw(t, "step") {
					case 0:
						if in != nil {
							now = after(now, step(t, in, last, false))
						}
					case 1:
						now = until
					case 2:
						now += rapid.Int64Range(0, 2*hour).Draw(t, "µs")
					}
					in, _ := l.At(now)
					a := Ask{Cost: rapid.SampledFrom([]int64{0, 1, 1, 2, 3, c.N, 3 * c.N, 10_000}).Draw(t, "cost"),
						MaxDelay: -1, Slot: uint64(i + 1)}
					was, wasMargin := cloneState(s), m
					checked := l.CheckWith(&s, &m, now, a)
					r := l.TakeWith(&s, &m, now, a)
					where := fmt.Sprintf("%v, at %v under %v: %+v gives %+v; margin %+v", l,
						time.UnixMicro(now).In(loc), in, a, r, m)
					if checked.Allowed != r.Allowed || checked.Off != r.Off || checked.Off && checked != r {
						t.Fatalf("%s\nCheck says %+v", where, checked)
					}
					if naive := naiveAt(otherwise, phases, loc, now); naive != in || r.Off != (in == nil) {
						t.Fatalf("%s\nwant %v", where, naive)
					}
					if r.Off {
						if !same(was, s) || !same(wasMargin, m) || r != (Result{Allowed: true, Off: true}) {
							t.Fatalf("%s\nsomething was counted", where)
						}
						continue
					}
					clone := cloneState(was)
					cloneMargin := wasMargin
					plain := in.TakeWith(&clone, &cloneMargin, now, a)
					plain.RetryAfter, plain.ResetAfter = r.RetryAfter, r.ResetAfter
					if plain != r || !same(clone, s) || !same(cloneMargin, m) {
						t.Fatalf("%s\nthe limit in force gives %+v", where, plain)
					}
					if !r.Allowed && a.Cost > 0 {
						edges := []int64{int64(m.B), m.A + micros(c.SoftFor)}
						for at, n := now, 0; n < 20; n++ {
							_, at = l.At(at)
							edges = append(edges, at)
						}
						probeRetry(t, where, now, r.RetryAfter, func(at int64) bool {
							s, m := cloneState(s), m
							return l.TakeWith(&s, &m, at, a).Allowed
						}, edges...)
					}
					// Fresh is fresh under every limit that may come, and stays so.
					fresh := l.Fresh(&s, now)
					if fresh != (r.ResetAfter == 0) {
						t.Fatalf("%s\nfresh: %v", where, fresh)
					}
					if r.ResetAfter > 0 {
						if !l.Fresh(&s, now+r.ResetAfter) || l.Fresh(&s, now+r.ResetAfter-1) {
							t.Fatalf("%s\nfresh at another time", where)
						}
						for _, of := range limits {
							var zero State
							if of == nil {
								continue
							}
							then := now + r.ResetAfter
							for _, cost := range []int64{1, of.cap} {
								a := Ask{Cost: cost, MaxDelay: -1, Slot: 1 << 50}
								got, want := of.Check(&s, then, a), of.Check(&zero, then, a)
								if of.n == 0 {
									got.ResetAfter = want.ResetAfter
								}
								if holds[of] && got != want {
									t.Fatalf("%s\nfresh under %v? %+v, on a fresh state %+v", where, of, got, want)
								}
							}
						}
					}
					if margin == nil && m.B != 0 {
						t.Fatalf("%s\na margin, but no limit for its state", where)
					}
					if margin != nil && margin.Fresh(&m, now) {
						for _, of := range limits {
							if of != nil && of.margin != nil && holds[of] && !of.margin.Fresh(&m, now) {
								t.Fatalf("%s\nthe margin is said to be fresh too early", where)
							}
						}
					}
					last = r
				}
			})
		})
	}
}

// TestScheduleRetry: a refusal names the time at which another phase admits the request, however
// far away that is.
func TestScheduleRetry(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	closed, open, more := perHour(t, 0), perHour(t, 5), perHour(t, 50)
	night := Phase{From: clockTime(22, 0), Until: clockTime(6, 0), Limit: closed}
	for _, tc := range []struct {
		name string
		l    *Limit
		at   string
		cost int64
		want time.Duration // below 0: never
	}{
		{"closed at night", scheduled(t, open, berlin, night), "2026-01-01T22:00:00Z", 1, 7 * time.Hour},
		{"closed at night, an hour short", scheduled(t, open, berlin, night), "2026-03-28T22:00:00Z", 1, 6 * time.Hour},
		{"closed at night, too much for the day", scheduled(t, open, berlin, night), "2026-01-01T22:00:00Z", 6, -1},
		{"no limit on Sundays", scheduled(t, open, nil, Phase{Days: weekdays(time.Sunday)}), "2026-01-01T00:00:00Z", 6, 3 * 24 * time.Hour},
		{"more on Sundays", scheduled(t, open, nil, Phase{Days: weekdays(time.Sunday), Limit: more}), "2026-01-01T00:00:00Z", 6, 3 * 24 * time.Hour},
		{"more on Sundays, but what comes first hides it", scheduled(t, open, nil, Phase{Limit: open}, Phase{Days: weekdays(time.Sunday), Limit: more}), "2026-01-01T00:00:00Z", 6, -1},
		{"a time that the clocks skip this week", scheduled(t, open, berlin, Phase{Days: weekdays(time.Sunday), From: clockTime(2, 15), Until: clockTime(2, 45), Limit: more}),
			"2026-03-29T00:00:00Z", 6, 7*24*time.Hour + 15*time.Minute},
		{"a phase that begins while it is skipped", scheduled(t, open, berlin, Phase{Days: weekdays(time.Sunday), From: clockTime(2, 15), Until: clockTime(5, 0), Limit: more}),
			"2026-03-29T00:00:00Z", 6, time.Hour},
	} {
		var s State
		now := instant(t, tc.at)
		want := int64(Never)
		if tc.want >= 0 {
			want = micros(tc.want)
		}
		if r := tc.l.Check(&s, now, Ask{Cost: tc.cost}); r.Allowed || r.RetryAfter != want {
			t.Errorf("%s: %+v, want a retry_after of %v", tc.name, r, tc.want)
		}
	}

	// A year's quota is used up in spring: the next is there on the first business day of the next
	// year.
	year := func(n int64) *Limit { return must(t, Config{Algorithm: FixedWindow, N: n, Calendar: Year}) }
	l := scheduled(t, year(0), nil, Phase{Days: weekdays(1, 2, 3, 4, 5), From: clockTime(8, 0), Until: clockTime(20, 0),
		Limit: year(100)})
	var s State
	now := instant(t, "2026-03-02T10:00:00Z")
	if r := l.Take(&s, now, Ask{Cost: 100}); !r.Allowed {
		t.Fatal(r)
	}
	if r, want := l.Take(&s, now, Ask{Cost: 1}), instant(t, "2027-01-01T08:00:00Z")-now; r.RetryAfter != want {
		t.Errorf("%+v, want a retry_after of %d", r, want)
	}
	if n := testing.AllocsPerRun(100, func() { l.Take(&s, now, Ask{Cost: 1}) }); n != 0 {
		t.Errorf("%v allocations to look ahead", n)
	}
	if n := testing.AllocsPerRun(100, func() { l.Check(&s, now, Ask{Cost: 1}) }); n != 0 {
		t.Errorf("%v allocations to look ahead of a check", n)
	}
}

// TestScheduleBucket: a bucket is fresh when it is so at every rate that fills it.
func TestScheduleBucket(t *testing.T) {
	bucket := func(n int64) *Limit {
		return must(t, Config{Algorithm: TokenBucket, N: n, Burst: 60, Window: time.Hour})
	}
	fast, slow, stopped := bucket(3600), bucket(60), bucket(0)
	l := scheduled(t, fast, nil, Phase{From: clockTime(20, 0), Until: clockTime(8, 0), Limit: slow},
		Phase{From: clockTime(8, 0), Until: clockTime(9, 0), Limit: stopped})
	for _, hour := range []int64{8, 12, 22} {
		var s State
		fast.Take(&s, at(hour, 0, 0), Ask{Cost: 30})
		if r := l.Take(&s, at(hour, 0, 0), Ask{}); r.ResetAfter != 30*minute {
			t.Errorf("at %d: %+v", hour, r)
		}
		if l.Fresh(&s, at(hour, 29, 59)) || !l.Fresh(&s, at(hour, 30, 0)) {
			t.Errorf("at %d: fresh at the wrong time", hour)
		}
	}
	still := scheduled(t, stopped, nil, Phase{From: clockTime(8, 0), Until: clockTime(9, 0), Limit: stopped})
	var s State
	fast.Take(&s, at(12, 0, 0), Ask{Cost: 30})
	if r := still.Take(&s, at(12, 0, 0), Ask{}); r.ResetAfter != Never || still.Fresh(&s, at(23, 0, 0)) {
		t.Errorf("%+v of a bucket that nothing fills", r)
	}
}

func TestScheduledRefuses(t *testing.T) {
	one := perHour(t, 1)
	nested := scheduled(t, one, nil, Phase{Limit: one})
	for _, tc := range []struct {
		otherwise *Limit
		phase     Phase
	}{
		{nil, Phase{}},
		{one, Phase{From: -1, Limit: one}},
		{one, Phase{Until: oneDay + time.Minute, Limit: one}},
		{one, Phase{From: time.Nanosecond, Limit: one}},
		{one, Phase{Days: 1 << 7, Limit: one}},
		{one, Phase{Limit: nested}},
		{nested, Phase{}},
		{nested, Phase{Limit: one}},
		{one, Phase{Limit: must(t, Config{Algorithm: FixedWindow, N: 1, Window: time.Minute})}},
		{one, Phase{Limit: must(t, Config{Algorithm: SlidingLog, N: 1, Window: time.Hour})}},
		{one, Phase{Limit: must(t, Config{Algorithm: FixedWindow, N: 1, Window: time.Hour, CountDenied: true})}},
		{must(t, Config{Algorithm: FixedWindow, N: 1, Calendar: Day}), Phase{Limit: must(t, Config{Algorithm: FixedWindow, N: 1, Calendar: Day, Location: zone(t, "Europe/Berlin")})}},
	} {
		if _, err := Scheduled(tc.otherwise, []Phase{tc.phase}, nil); err == nil {
			t.Errorf("Scheduled(%v, %+v): no error", tc.otherwise, tc.phase)
		}
	}
	if _, err := Scheduled(one, make([]Phase, MaxPhases+1), nil); err == nil {
		t.Error("a schedule of any length")
	}
	if otherwise, phases, loc := nested.Schedule(); otherwise != one || len(phases) != 1 || loc != time.UTC ||
		!nested.Scheduled() {
		t.Error("Schedule returns something else")
	}
	if otherwise, phases, _ := one.Schedule(); otherwise != one || phases != nil || one.Scheduled() {
		t.Error("a schedule of a limit that has none")
	}
	if in, until := one.At(0); in != one || until != maxInt {
		t.Error("a limit without a schedule is not always in force")
	}
}

func BenchmarkScheduled(b *testing.B) {
	open, closed := must(b, Config{Algorithm: TokenBucket, N: 1000, Window: time.Second}),
		must(b, Config{Algorithm: TokenBucket, N: 1, Window: time.Second})
	l, err := Scheduled(closed,
		[]Phase{{Days: weekdays(1, 2, 3, 4, 5), From: clockTime(8, 0), Until: clockTime(20, 0), Limit: open}}, zone(b,
			"Europe/Berlin"))
	if err != nil {
		b.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		cost int64
	}{{"admitted", 1}, {"denied for good", 10_000}} {
		b.Run(tc.name, func(b *testing.B) {
			var s State
			var r Result
			now := at(12, 0, 0)
			for i := range b.N {
				l.TakeInto(&r, &s, now+int64(i)%1000, &Ask{Cost: tc.cost})
			}
		})
	}
}
