package gather

import (
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// eachMinute closes the minute that ended: unix is the beginning of the new one. mu is held.
func (c *Collector) eachMinute(unix int64) {
	c.noteAnswers(unix)
	signal := c.signal
	c.signal = ""
	turn := c.now().Unix()/snapshot.EraLasts > c.era
	c.era = c.now().Unix() / snapshot.EraLasts
	now := c.storeNow().UnixMicro()
	for _, s := range c.counted {
		if s.series == nil {
			continue
		}
		s.endMinute(unix/60*60-60, signal)
		for kind := range s.live {
			s.live[kind].halve()
		}
		s.liveAdmitted, s.liveDrawn = s.liveAdmitted/2, s.liveDrawn/2
		for i := range s.eras {
			if x := s.eras[i].refused; x != nil {
				for k := range x.traces {
					t := &x.traces[k]
					before := t.Episodes
					t.Expire(now)
					s.ended.AddSince(&before, &t.Episodes)
				}
			}
		}
		if turn {
			s.turn()
		}
	}
}

// noteAnswers notes that the service was saturated in the minute that ended, if its answers say so.
func (c *Collector) noteAnswers(unix int64) {
	n := c.readAnswers()
	all, failed := n.all-c.lastAnswers.all, n.failed-c.lastAnswers.failed
	c.lastAnswers = n
	if judge.Failing(int(failed), int(all)) {
		c.saturated("answers", unix/60*60-60, unix/60*60-1)
	}
}

// noteSaturation notes for how long a signal says that the service is saturated.
func (c *Collector) noteSaturation(unix int64) {
	if c.o.Saturated == nil {
		return
	}
	if signal, saturated := c.o.Saturated(); saturated {
		c.saturated(signal, unix, unix)
	}
}

// saturated marks the current minute as saturated, and notes that on the timeline. Saturation that
// resumes within a minute belongs to the same event.
func (c *Collector) saturated(signal string, from, until int64) {
	c.signal = signal
	for i := len(c.events) - 1; i >= 0; i-- {
		h := &c.events[i]
		if h.Kind != "saturated" || h.Signal != signal {
			continue
		}
		if from-h.Until <= 60 {
			h.Until = until
			return
		}
		break
	}
	c.happened(insight.Happening{T: from, Until: until, Kind: "saturated", Signal: signal})
}
