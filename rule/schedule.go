package rule

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
)

// String spells when the phase holds and its allowance, such as "mon-fri 08:00-20:00: 100/min".
func (p SchedulePhase) String() string {
	return p.When() + ": " + p.Allow
}

// When spells when the phase holds, such as "mon-fri 08:00-20:00", "sat,sun" or "always".
func (p SchedulePhase) When() string {
	var parts []string
	if p.Days != 0 {
		parts = append(parts, spellDays(p.Days))
	}
	if p.From != 0 || p.Until != day {
		clock := func(d time.Duration) string { return fmt.Sprintf("%02d:%02d", d/time.Hour, d%time.Hour/time.Minute) }
		parts = append(parts, clock(p.From)+"-"+clock(p.Until))
	}
	if len(parts) == 0 {
		return "always"
	}
	return strings.Join(parts, " ")
}

// spellDays writes a set of days as runs, from Monday on.
func spellDays(set algo.Days) string {
	at := func(i int) string { // i counts from Monday
		return strings.ToLower(time.Weekday((i + 1) % 7).String()[:3])
	}
	has := func(i int) bool { return set>>((i+1)%7)&1 != 0 }
	var runs []string
	for i := 0; i < 7; i++ {
		if !has(i) {
			continue
		}
		last := i
		for last < 6 && has(last+1) {
			last++
		}
		switch last - i {
		case 0:
			runs = append(runs, at(i))
		case 1:
			runs = append(runs, at(i), at(last))
		default:
			runs = append(runs, at(i)+"-"+at(last))
		}
		i = last
	}
	return strings.Join(runs, ",")
}
