package lint

import (
	"slices"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// minutesOfWeek is a set of the minutes of a week, from Sunday 00:00 on.
type minutesOfWeek [7 * 24 * 60]bool

// add adds the minutes of a phase in a week without a change of the clocks, and reports whether
// there was one that was not in the set.
func (m *minutesOfWeek) add(p *rule.SchedulePhase) (news bool) {
	length := p.Until - p.From
	if length <= 0 {
		length += message.Day
	}
	for d := time.Sunday; d <= time.Saturday; d++ {
		if !p.Days.Has(d) {
			continue
		}
		first := int(d)*24*60 + int(p.From/time.Minute)
		for i := range int(length / time.Minute) {
			at := &m[(first+i)%len(m)]
			news = news || !*at
			*at = true
		}
	}
	return news
}

// full reports whether all minutes are in the set.
func (m *minutesOfWeek) full() bool { return !slices.Contains(m[:], false) }
