package message

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Day is a day of 24 hours.
const Day = 24 * time.Hour

// Units are the units of rates in rate_limit.
var Units = []string{"second", "minute", "hour", "day", "week", "month", "year"}

// UnitOf returns the unit of a rate by the length of its window; "" if it is none.
func UnitOf(window time.Duration) string { return unitsByWindow()[window] }

var unitsByWindow = sync.OnceValue(func() map[time.Duration]string {
	m := map[time.Duration]string{}
	for _, unit := range Units {
		m[PerUnit(1, unit).Window] = unit
	}
	return m
})

// PerUnit returns the rate of n in a unit, one of Units.
func PerUnit(n int64, unit string) rule.Rate {
	r, _ := rule.ParseRate("1/" + unit)
	r.N = n
	return r
}

// Clip shortens text for a message.
func Clip(text string) string {
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

// Count spells a number of things: one if n is 1, else many.
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + many
}

// DaysOrHours spells a long duration.
func DaysOrHours(d time.Duration) string {
	if d%Day == 0 && d > Day {
		return fmt.Sprintf("%d days", d/Day)
	}
	return fmt.Sprintf("%d hours", d/time.Hour)
}

// DaysOrMinutes spells a duration without empty units.
func DaysOrMinutes(d time.Duration) string {
	if d >= Day && d%time.Hour == 0 {
		return DaysOrHours(d)
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// maxListed is how many names a warning lists.
const maxListed = 10

// Listed joins names: "a, b and c".
func Listed(names []string) string {
	last := ""
	if n := len(names); n > maxListed+1 {
		names, last = names[:maxListed], fmt.Sprintf("%d more", n-maxListed)
	} else if n > 1 {
		names, last = names[:n-1], names[n-1]
	}
	text := strings.Join(names, ", ")
	if last != "" {
		text += " and " + last
	}
	return text
}

// Size is the bucket size B in force.
func Size(c algo.Config) int64 {
	switch {
	case c.Burst == algo.NoBurst:
		return 0
	case c.Burst == 0:
		return c.N
	}
	return c.Burst
}

// SoftBase is the number that a soft margin is a share of: N, or the size of a bucket.
func SoftBase(c algo.Config) int64 {
	if c.Algorithm.HasBurst() {
		return Size(c)
	}
	return c.N
}

// SoftWhat names SoftBase.
func SoftWhat(c algo.Config) string {
	if c.Algorithm.HasBurst() {
		return "the bucket's size"
	}
	return "N"
}

// Enough says from which percentage on a margin on base is at least one.
func Enough(base int64) string {
	if base < 1 || 100 > base*algo.MaxSoft {
		return "leave soft out"
	}
	return fmt.Sprintf("%d%% or more is at least one", (100+base-1)/base)
}

// DefaultLent is the share of a limit of Options.Lend that may be out, in percent.
const DefaultLent = 10

// Level is how envoyproxy/ratelimit names one level of a descriptor.
func Level(e rule.Entry) string {
	if e.Value == "" {
		return e.Key
	}
	return e.Key + "_" + e.Value
}
