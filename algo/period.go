package algo

import (
	"fmt"
	"strings"
	"time"
)

// Period is the time in which N units become free, in words that follow "per": "minute", "15
// minutes", "calendar month". It is "" if there is no such time, as under Concurrency.
func (c Config) Period() string {
	switch c.Calendar {
	case Day:
		return "calendar day"
	case Week:
		return "calendar week"
	case Month:
		return "calendar month"
	case Year:
		return "calendar year"
	}
	if c.Window <= 0 {
		return ""
	}
	units := [...]struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"},
		{time.Millisecond, "millisecond"}, {time.Microsecond, "microsecond"}}
	var parts []string
	for left, i := c.Window, 0; left > 0 && i < len(units); i++ {
		n := left / units[i].size
		left %= units[i].size
		switch {
		case n == 1 && left == 0 && parts == nil:
			return units[i].name
		case n == 1:
			parts = append(parts, "1 "+units[i].name)
		case n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", n, units[i].name))
		}
	}
	return strings.Join(parts, " ")
}
