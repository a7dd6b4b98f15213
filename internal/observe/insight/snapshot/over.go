package snapshot

import "time"

// DefaultOver is the time that reports cover by default, and MostOver the longest.
const (
	DefaultOver = 24 * time.Hour
	MostOver    = 7 * 24 * time.Hour
)

// EraLasts is how long an era lasts, in s. Eras begin at the same instants on all nodes: at
// midnight and noon, UTC.
const EraLasts = 12 * 60 * 60

// Eras is how many are kept: the current one and the two before, so that at least the last 24 hours
// are known. With two, a client that was refused 13 hours ago would be missing from the clients of
// the last day, but not from its refusals.
const Eras = 3

// JudgedOver returns the time over which rules are judged: since the oldest kept era began, 24 to
// 36 hours. So the counts and the samples cover the same time. Half a step of the counts is added,
// so that nodes whose clocks differ by less agree on the time.
func JudgedOver(now time.Time) time.Duration {
	began := time.Unix((now.Unix()/EraLasts-(Eras-1))*EraLasts, 0)
	return now.Sub(began) + 150*time.Second
}

// JudgedFrom returns when the time of JudgedOver begins.
func (s *Snapshot) JudgedFrom() int64 {
	over := int64(JudgedOver(time.Unix(s.Time, 0)) / time.Second)
	step := StepFor(over)
	return (s.Time - over + step) / step * step
}

// sampledFrom returns the time since which samples, and all figures about clients, are known.
func (s *Snapshot) sampledFrom() int64 { return max(s.JudgedFrom(), s.Started) }

// RecentSeconds is the time over which a rate is measured.
const RecentSeconds = 10

// A series has counts by the second for 5 minutes, and by the minute for a day.
const (
	SecondSteps = 300
	MinuteSteps = 1440
)

// mostSteps bounds the number of steps in which a time is shown.
const mostSteps = 360

// StepFor returns the length of the steps in which a time of so many seconds is shown: there are at
// most mostSteps.
func StepFor(over int64) int64 {
	if over <= SecondSteps {
		return 1
	}
	for _, step := range [...]int64{60, 300, 600} {
		if over <= mostSteps*step {
			return step
		}
	}
	return 1800
}
