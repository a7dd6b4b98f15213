package file

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/weir-rl/weir/rule"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// unitOf returns the unit of a rate by the length of its window; "" if it is none.
func unitOf(window time.Duration) string { return unitsByWindow()[window] }

var unitsByWindow = sync.OnceValue(func() map[time.Duration]string {
	m := map[time.Duration]string{}
	for _, unit := range lyftUnits {
		m[perUnit(1, unit).Window] = unit
	}
	return m
})

// perUnit returns the rate of n in a unit, one of lyftUnits.
func perUnit(n int64, unit string) rule.Rate {
	r, _ := rule.ParseRate("1/" + unit)
	r.N = n
	return r
}

// clip shortens text for a message.
func clip(text string) string {
	const most = 80
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && text[cut]&0xc0 == 0x80 {
		cut--
	}
	return text[:cut] + "…"
}

// count spells a number of things: one if n is 1, else many.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// daysOrHours spells a long duration.
func daysOrHours(d time.Duration) string {
	if d%day == 0 && d > day {
		return fmt.Sprintf("%d days", d/day)
	}
	return fmt.Sprintf("%d hours", d/time.Hour)
}
