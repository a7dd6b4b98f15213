package insight

// generation is how long a sample is filled. What is shown is that and the one before.
const generation = 12 * 60 * 60 // s

// eachMinute closes the minute that ended: unix is the beginning of the new one. mu is held.
func (c *Collector) eachMinute(unix int64) {
	signal := c.signal
	c.signal = ""
	turn := c.now().Unix()/generation > c.generation
	c.generation = c.now().Unix() / generation
	now := c.now().UnixMicro()
	for _, s := range c.rules {
		s.endMinute(unix/60*60-60, signal)
		for kind := range s.live {
			s.live[kind].halve()
		}
		s.liveAdmitted /= 2
		for _, generation := range s.refused {
			if generation != nil {
				for i := range generation.traces {
					generation.traces[i].expire(now)
				}
			}
		}
		if turn {
			s.turn()
		}
	}
}

// noteSaturation notes on the line of time from when until when the service was at its end.
func (c *Collector) noteSaturation(unix int64) {
	if c.o.Saturated == nil {
		return
	}
	signal, saturated := c.o.Saturated()
	if !saturated {
		return
	}
	c.signal = signal
	for i := len(c.events) - 1; i >= 0; i-- {
		h := &c.events[i]
		if h.Kind != "saturated" {
			continue
		}
		if h.Signal == signal && unix-h.Until <= 60 {
			h.Until = unix
			return
		}
		break
	}
	c.happened(Happening{T: unix, Until: unix, Kind: "saturated", Signal: signal})
}
