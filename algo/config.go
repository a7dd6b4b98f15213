package algo

import (
	"errors"
	"fmt"
	"time"
)

// units of time that a limit may count in, in µs, finest first. A limit takes the first in which
// its numbers fit.
var units = [...]int64{1, 1_000, 1_000_000, 60_000_000}

var unitNames = [...]string{"microseconds", "milliseconds", "seconds", "minutes"}

// nominal lengths of the calendar units.
var nominal = [...]time.Duration{Day: 24 * time.Hour, Week: 7 * 24 * time.Hour, Month: 30 * 24 * time.Hour,
	Year: 365 * 24 * time.Hour}

var calendarNames = [...]string{"none", "day", "week", "month", "year"}

// String returns the name of the unit, such as "month".
func (c Calendar) String() string {
	if int(c) < len(calendarNames) {
		return calendarNames[c]
	}
	return fmt.Sprintf("calendar(%d)", uint8(c))
}

const defaultTimeout = 30 * time.Second

func (c *Config) check() error {
	a := c.Algorithm
	if a == Margin {
		return c.checkMargin()
	}
	if a == Lease {
		return c.checkLease()
	}
	if int(a) >= len(algorithmNames) {
		return fmt.Errorf("there is no algorithm %d", uint8(a))
	}
	switch {
	case a == FixedWindow && (c.N < 0 || c.N > MaxFixedN):
		return fmt.Errorf("the number of requests is %d; it must be from 0 to %d", c.N, int64(MaxFixedN))
	case a != FixedWindow && (c.N < 0 || c.N > MaxN):
		return fmt.Errorf("the number of requests is %d; it must be from 0 to %d, or for fixed_window to %d", c.N, MaxN,
			int64(MaxFixedN))
	case a == SlidingLog && c.N > MaxLogN:
		return fmt.Errorf(
			"sliding_log remembers every request: lower the number of requests from %d to at most %d, or use sliding_window", c.N, MaxLogN)
	case c.Soft < 0 || c.Soft > MaxSoft:
		return fmt.Errorf("the soft margin is %d%%; it must be from 0%% to %d%%", c.Soft, MaxSoft)
	case a == FixedWindow && c.N > lowered(MaxFixedN, c.Soft):
		return fmt.Errorf(
			"%d requests with a soft margin of %d%% are more than the %d that can be counted: lower the number of requests to at most %d",
			c.N, c.Soft, int64(MaxFixedN), lowered(MaxFixedN, c.Soft))
	case c.Burst != 0 && !a.HasBurst():
		return fmt.Errorf("a burst does not fit %v, only token_bucket and leaky_bucket", a)
	case c.Burst < NoBurst || c.Burst > MaxN:
		return fmt.Errorf("the burst is %d; it must be from 0 to %d", c.Burst, MaxN)
	case c.Buckets != 0 && a != SlidingWindow:
		return fmt.Errorf("buckets do not fit %v, only sliding_window", a)
	case c.Buckets < 0 || c.Buckets > MaxK:
		return fmt.Errorf("the number of buckets is %d; it must be from 1 to %d", c.Buckets, MaxK)
	case c.Calendar > Year:
		return fmt.Errorf("there is no calendar unit %d", uint8(c.Calendar))
	case c.Calendar != NoCalendar && a != FixedWindow:
		return fmt.Errorf("calendar units do not fit %v, only fixed_window", a)
	case c.FirstRequest && a != FixedWindow:
		return fmt.Errorf("windows from the first request do not fit %v, only fixed_window", a)
	case c.FirstRequest && c.Calendar != NoCalendar:
		return errors.New("a window is either of the calendar or from the first request, not both")
	case c.RefillInterval && a != TokenBucket:
		return fmt.Errorf("refill at intervals does not fit %v, only token_bucket", a)
	case c.CountDenied && a != FixedWindow && a != SlidingLog && a != SlidingWindow:
		return fmt.Errorf("counting denied requests does not fit %v, only fixed_window, sliding_log and sliding_window",
			a)
	case c.SoftFor != 0 && a == Concurrency:
		return errors.New("a soft margin that closes does not fit concurrency, which has no window to stay within")
	case c.SoftFor != 0 && c.Soft == 0:
		return errors.New("the soft margin is to close, but there is none")
	case c.SoftFor != 0 && margin(c.size(), c.Soft) == 0:
		return fmt.Errorf(
			"the soft margin is to close, but %d%% of %d rounds to nothing: raise the percentage, or leave out the time", c.Soft, c.size())
	case c.Timeout != 0 && a != Concurrency:
		return fmt.Errorf("a time-out does not fit %v, only concurrency", a)
	}
	if err := c.checkLeasing(); err != nil {
		return err
	}
	if c.SoftFor != 0 {
		if err := checkSpan("time for which the soft margin stays open", c.SoftFor); err != nil {
			return err
		}
	}
	if a == Concurrency {
		if c.Window != 0 {
			return errors.New("concurrency has no window: give the number that may be in flight alone")
		}
		if c.Timeout == 0 {
			return nil
		}
		return checkSpan("time-out", c.Timeout)
	}
	if c.Calendar != NoCalendar && c.Window == 0 {
		return nil
	}
	if err := checkSpan("window", c.Window); err != nil {
		return err
	}
	if k := time.Duration(c.Buckets); k > 1 && c.Window%(k*time.Microsecond) != 0 {
		return fmt.Errorf("%d buckets do not divide the window of %v into whole microseconds", c.Buckets, c.Window)
	}
	return nil
}

// Capacity returns the most units that a key gets at once, soft margin not counted (Result.Limit),
// of a configuration that is filled in.
func (c *Config) Capacity() int64 {
	switch {
	case c.Algorithm.Delays():
		return max(0, c.Burst) + 1
	case c.Algorithm.HasBurst():
		return max(0, c.Burst)
	}
	return c.N
}

// mostN is the largest N that a limit may have that is otherwise as c says.
func (c *Config) mostN() int64 {
	switch {
	case c.Algorithm == SlidingLog:
		return MaxLogN
	case c.Algorithm == FixedWindow && c.Lease == 0:
		return lowered(MaxFixedN, c.Soft)
	}
	return MaxN
}

func checkSpan(what string, d time.Duration) error {
	switch {
	case d <= 0:
		return fmt.Errorf("the %s is %v; it must be above 0", what, d)
	case d > MaxWindow:
		return fmt.Errorf("the %s is %v; it must be at most 366 days", what, d)
	case d%time.Microsecond != 0:
		return fmt.Errorf("the %s is %v; it must be a whole number of microseconds", what, d)
	}
	return nil
}

// fill fills in the defaults of a checked configuration.
func (c *Config) fill() {
	switch c.Algorithm {
	case TokenBucket, LeakyBucket:
		if c.Burst == 0 {
			c.Burst = c.N
		}
		if c.Burst == 0 {
			c.Burst = NoBurst
		}
	case SlidingWindow:
		c.Buckets = max(1, c.Buckets)
	case Concurrency:
		if c.Timeout == 0 {
			c.Timeout = defaultTimeout
		}
	}
	if c.Calendar == NoCalendar {
		c.Location = nil
		return
	}
	if c.Window == 0 {
		c.Window = nominal[c.Calendar]
	}
	if c.Location == nil {
		c.Location = time.UTC
	}
}

// margin is the soft margin on n: percent of it, rounded down.
func margin(n int64, percent int) int64 { return n * int64(percent) / 100 }
