package shed

import "time"

// The times of a Control.
const (
	longest = 100 * time.Millisecond
	calm    = time.Second
)

// interval is how long a rush may last that is a burst, which the line is there for; CoDel (RFC
// 8289) has a name for it, and a tenth of a second. Where requests are to be answered in 20 ms, a
// rush has cost a hundredth of the answers of ten seconds by then: hence the times of the bound,
// since a line that is several times as long as it was to be, and does not get shorter, will not.
func interval(bound time.Duration) time.Duration { return min(4*bound, longest) }

// Control distinguishes a burst from overload, by readings of how long requests stand in line. It
// is overloaded once all readings of an interval were above the bound, and until none was for a
// second: the line gets short at once when requests are turned away, which says nothing about the
// load. A reading covers the time that it waited; after a time longer than longest without any,
// Control begins anew. The zero value is not overloaded. Not safe for concurrent use.
type Control struct {
	above      time.Time // since when all readings were above the bound; zero if the last was not
	last       time.Time // the last reading above it
	overloaded bool
}

// Read takes a reading: at the instant now requests have stood in line for so long. It reports
// whether there is overload.
func (c *Control) Read(now time.Time, waited, bound time.Duration) (overloaded bool) {
	if waited <= bound {
		c.above = time.Time{}
		if c.overloaded && now.Sub(c.last) >= calm {
			c.overloaded = false
		}
		return c.overloaded
	}
	if c.above.IsZero() || now.Add(-waited).Sub(c.last) > longest {
		c.above = now
	}
	c.last = now
	if now.Sub(c.above) >= interval(bound) {
		c.overloaded = true
	}
	return c.overloaded
}

// Overloaded is the result of the last Read.
func (c *Control) Overloaded() bool { return c.overloaded }
