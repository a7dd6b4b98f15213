package algo

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestCalendarSpans compares with a walk, minute by minute, over days with clock changes of every
// kind: ordinary ones, a midnight that is skipped or comes twice, a date that comes again for an
// hour, and a day that never was.
func TestCalendarSpans(t *testing.T) {
	for _, tc := range []struct{ zone, from, to string }{
		{"UTC", "2026-01-30T00:00:00Z", "2026-02-02T00:00:00Z"},
		{"Europe/Berlin", "2026-03-28T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"Europe/Berlin", "2026-10-24T00:00:00Z", "2026-10-27T00:00:00Z"},
		{"America/New_York", "2026-10-31T00:00:00Z", "2026-11-03T00:00:00Z"},
		{"America/Sao_Paulo", "2018-11-02T00:00:00Z", "2018-11-06T00:00:00Z"}, // no midnight
		// 23:00 to 24:00 twice
		{"America/Sao_Paulo", "2019-02-15T00:00:00Z", "2019-02-19T00:00:00Z"},
		// back over midnight at 00:01
		{"America/St_Johns", "2010-11-05T00:00:00Z", "2010-11-09T00:00:00Z"},
		{"America/Havana", "2026-10-30T00:00:00Z", "2026-11-03T00:00:00Z"}, // midnight twice
		{"Africa/Cairo", "2026-10-28T00:00:00Z", "2026-11-01T00:00:00Z"},
		{"Asia/Beirut", "2026-03-27T00:00:00Z", "2026-03-31T00:00:00Z"},
		{"Pacific/Apia", "2011-12-28T00:00:00Z", "2012-01-02T00:00:00Z"}, // no 30 December
		{"Australia/Lord_Howe", "2026-04-03T00:00:00Z", "2026-04-07T00:00:00Z"},
		{"Asia/Kathmandu", "1985-12-30T00:00:00Z", "1986-01-03T00:00:00Z"},
		{"Europe/Berlin", "2124-12-29T00:00:00Z", "2125-01-02T00:00:00Z"},
	} {
		loc := zone(t, tc.zone)
		from, _ := time.Parse(time.RFC3339, tc.from)
		to, _ := time.Parse(time.RFC3339, tc.to)
		for _, unit := range []Calendar{Day, Week, Month, Year} {
			name := func(at time.Time) int {
				at = at.In(loc)
				switch unit {
				case Day:
					return at.Year()*1000 + at.YearDay()
				case Week:
					y, w := at.ISOWeek()
					return y*100 + w
				case Month:
					return at.Year()*100 + int(at.Month())
				default:
					return at.Year()
				}
			}
			newest, began := name(from), int64(0)
			for m := from; m.Before(to); m = m.Add(time.Minute) {
				now := m.UnixMicro()
				if n := name(m); n > newest {
					newest, began = n, now
				}
				v := calendarSpan(unit, loc, now)
				if v.start > now || v.end <= now || v.next <= v.end {
					t.Fatalf("%s, %v at %v: %+v", tc.zone, unit, m.In(loc), v)
				}
				if began != 0 && v.start != began || began == 0 && v.start > from.UnixMicro() {
					t.Fatalf("%s, %v at %v: the window began at %v, want %v", tc.zone, unit, m.In(loc),
						time.UnixMicro(v.start).In(loc), time.UnixMicro(began).In(loc))
				}
				if after := calendarSpan(unit, loc, v.end); after.start != v.end || after.end != v.next {
					t.Fatalf("%s, %v at %v: %+v, then %+v", tc.zone, unit, m.In(loc), v, after)
				}
				if again := calendarSpan(unit, loc, v.end-1); again != v {
					t.Fatalf("%s, %v at %v: %+v, at its end %+v", tc.zone, unit, m.In(loc), v, again)
				}
			}
		}
	}
}

func TestCalendarDays(t *testing.T) {
	loc := zone(t, "Europe/Berlin")
	l := must(t, Config{Algorithm: FixedWindow, N: 1, Calendar: Day, Location: loc})
	for _, tc := range []struct {
		date  string
		hours int64
	}{{"2026-03-28", 24}, {"2026-03-29", 23}, {"2026-10-25", 25}, {"2026-10-26", 24}} {
		midnight, _ := time.ParseInLocation(time.DateOnly, tc.date, loc)
		var s State
		now := midnight.UnixMicro()
		if r := l.Take(&s, now, Ask{Cost: 1}); r.ResetAfter != tc.hours*hour {
			t.Errorf("%s: reset_after is %v", tc.date, r.ResetAfter)
		}
		if r := l.Take(&s, now+5*hour, Ask{Cost: 1}); r.RetryAfter != (tc.hours-5)*hour {
			t.Errorf("%s: retry_after is %v", tc.date, r.RetryAfter)
		}
	}
	week := must(t, Config{Algorithm: FixedWindow, N: 1, Calendar: Week})
	if week.Config().Window != 7*24*time.Hour || week.Config().Location != time.UTC {
		t.Errorf("%+v", week.Config())
	}
	monday := time.Date(2026, 10, 26, 0, 0, 0, 0, time.UTC)
	for d := range 7 {
		var s State
		now := monday.AddDate(0, 0, d).UnixMicro()
		if r := week.Take(&s, now, Ask{Cost: 1}); r.ResetAfter != int64(7-d)*day {
			t.Errorf("day %d of the week: reset_after is %v", d, r.ResetAfter)
		}
	}
}

// TestCalendarFuture asks every zone at random instants, a few centuries around.
func TestCalendarFuture(t *testing.T) {
	all := []string{"UTC", "Europe/London", "Asia/Tehran", "Africa/Casablanca", "Pacific/Kiritimati",
		"Pacific/Pago_Pago", "America/Nuuk", "Antarctica/Troll", "Asia/Gaza"}
	rapid.Check(t, func(t *rapid.T) {
		loc := zone(t, rapid.SampledFrom(all).Draw(t, "zone"))
		unit := rapid.SampledFrom([]Calendar{Day, Week, Month, Year}).Draw(t, "unit")
		now := rapid.Int64Range(0, 300*365*day).Draw(t, "now")
		v := calendarSpan(unit, loc, now)
		if v.start > now || v.end <= now || v.next <= v.end {
			t.Fatalf("%+v", v)
		}
		long := micros(nominal[unit])
		if n := v.end - v.start; n < long*9/10 || n > long*11/10 {
			t.Fatalf("a %v of %v", unit, time.Duration(n)*time.Microsecond)
		}
		if after := calendarSpan(unit, loc, v.end); after.start != v.end || after.end != v.next {
			t.Fatalf("%+v, then %+v", v, after)
		}
	})
}

// TestCalendarShared: one limit decides for many keys at once, each at its own time.
func TestCalendarShared(t *testing.T) {
	loc := zone(t, "Europe/Berlin")
	l := must(t, Config{Algorithm: FixedWindow, N: 1 << 20, Calendar: Day, Location: loc})
	var wg sync.WaitGroup
	for g := range int64(8) {
		wg.Go(func() {
			var s State
			now := at(0, 0, 0) + g*day/3
			for i := range int64(2000) {
				now += hour / 2
				r := l.Take(&s, now, Ask{Cost: 1})
				v := calendarSpan(Day, loc, now)
				if !r.Allowed || r.ResetAfter != v.end-now {
					t.Errorf("request %d at %d: %+v, want reset_after %d", i, now, r, v.end-now)
					return
				}
			}
		})
	}
	wg.Wait()
}
