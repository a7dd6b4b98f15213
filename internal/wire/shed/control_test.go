package shed

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const bound = 12 * time.Millisecond

// at is an instant after an arbitrary one.
func at(d time.Duration) time.Time { return time.Unix(1_000_000, 0).Add(d) }

func TestControl(t *testing.T) {
	var c Control
	ms := time.Millisecond
	for _, step := range []struct {
		at, waited time.Duration
		want       bool
	}{
		{0, 13 * ms, false},
		{47 * ms, 500 * ms, false}, // a burst
		{47*ms + 1, 12 * ms, false},
		{48 * ms, 13 * ms, false}, // which was over in between
		{95 * ms, 80 * ms, false},
		{96 * ms, 13 * ms, true},
		{97 * ms, 0, true}, // the line is short since requests are turned away
		{1095 * ms, 0, true},
		{1096 * ms, 0, false},
		{1097 * ms, 500 * ms, false}, // all begins anew
		{1145 * ms, 500 * ms, true},
		{2146 * ms, 0, false},
		{2147 * ms, 13 * ms, false},
		{9000 * ms, 13 * ms, false}, // nobody knows what was in between
		{9190 * ms, 90 * ms, true},
	} {
		if got := c.Read(at(step.at), step.waited, bound); got != step.want || c.Overloaded() != got {
			t.Fatalf("at %v, after %v in line: overloaded is %v", step.at, step.waited, got)
		}
	}
}

// A patient door takes a rush for overload after a tenth of a second, as CoDel does.
func TestInterval(t *testing.T) {
	for bound, want := range map[time.Duration]time.Duration{bound: 4 * bound, 250 * time.Millisecond: longest} {
		if got := interval(bound); got != want {
			t.Errorf("%v for a bound of %v, want %v", got, bound, want)
		}
	}
}

// Whatever the readings: overload needs an interval in which all are above the bound, and which
// they speak for, holds while any is, and ends with the first reading a second after the last of
// them.
func TestControlProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Control
		type reading struct {
			at, waited time.Duration
			above      bool
		}
		var all []reading
		now, overloaded := time.Duration(0), false
		for range rapid.IntRange(1, 200).Draw(t, "readings") {
			now += rapid.SampledFrom([]time.Duration{1, 2 * time.Millisecond, 30 * time.Millisecond, interval(bound),
				longest, 400 * time.Millisecond, calm}).Draw(t, "after")
			waited := rapid.SampledFrom([]time.Duration{-1, 0, bound, bound + 1, time.Second}).Draw(t, "waited")
			all = append(all, reading{now, waited, waited > bound})
			// the model looks back over all readings
			since, last := now, time.Duration(-calm)
			for i := len(all) - 1; i >= 0 && all[i].above; i-- {
				since = all[i].at
				if i == 0 || all[i].at-all[i].waited-all[i-1].at > longest {
					break
				}
			}
			for _, r := range all {
				if r.above {
					last = r.at
				}
			}
			switch {
			case waited > bound && now-since >= interval(bound):
				overloaded = true
			case waited <= bound && now-last >= calm:
				overloaded = false
			}
			if got := c.Read(at(now), waited, bound); got != overloaded {
				t.Fatalf("reading %d: overloaded is %v, want %v", len(all), got, overloaded)
			}
		}
	})
}
