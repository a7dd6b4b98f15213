package algo

import "time"

// calendarSpan returns the calendar unit of loc that holds now. A unit begins at the first instant
// at which the local date is its first day or later, so that there is exactly one window at each
// instant even where a clock change skips midnight, repeats it, or skips a whole day.
func calendarSpan(unit Calendar, loc *time.Location, now int64) span {
	y, m, d := time.UnixMicro(now).In(loc).Date()
	first := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	switch unit {
	case Week:
		first = first.AddDate(0, 0, -(int(first.Weekday())+6)%7)
	case Month:
		first = first.AddDate(0, 0, 1-d)
	case Year:
		first = time.Date(y, time.January, 1, 0, 0, 0, 0, time.UTC)
	}
	second := following(unit, first)
	v := span{end: dateStart(second, loc)}
	if v.end <= now { // the clock was put back over midnight
		first, second = second, following(unit, second)
		v.end = dateStart(second, loc)
	}
	v.start = dateStart(first, loc)
	for v.next = v.end; v.next <= v.end; { // a day that was skipped is no window
		second = following(unit, second)
		v.next = dateStart(second, loc)
	}
	return v
}

func following(unit Calendar, date time.Time) time.Time {
	switch unit {
	case Day:
		return date.AddDate(0, 0, 1)
	case Week:
		return date.AddDate(0, 0, 7)
	case Month:
		return date.AddDate(0, 1, 0)
	default:
		return date.AddDate(1, 0, 0)
	}
}

// dateStart returns the first instant, in µs, at which loc's date is the date of midnight (in UTC)
// or a later one.
func dateStart(midnight time.Time, loc *time.Location) int64 {
	u := midnight.Unix()
	t := time.Unix(u-26*3600, 0).In(loc) // no zone is further from UTC
	for {
		_, offset := t.Zone()
		start := max(u-int64(offset), t.Unix())
		_, end := t.ZoneBounds()
		if end.IsZero() {
			return start * 1e6
		}
		if !end.After(t) {
			// on 31 December of leap years beyond the table ZoneBounds may end a period too early
			end = t.Add(time.Hour)
		}
		if start < end.Unix() {
			return start * 1e6
		}
		t = end
	}
}
