package insight

// eachMinute lets the live lists fade. mu is held.
func (c *Collector) eachMinute(int64) {
	for _, s := range c.rules {
		for kind := range s.live {
			s.live[kind].halve()
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

// takeKey takes in what an event says of a sampled key.
func (s *ruleState) takeKey(*Collector, *event) {}

// answered takes in how a request was answered.
func (s *ruleState) answered(e *event) {
	if e.weightTop == none || e.status == 429 {
		return
	}
	n := uint64(1) << e.weightTop
	switch {
	case e.status >= 200 && e.status < 400:
		s.answers, s.well = s.answers+n, s.well+n
	case e.status < 600:
		s.answers += n
	}
}

// resize shares the memory out among the rules that were met.
func (c *Collector) resize() {
	for _, s := range c.rules {
		for kind := range topKinds {
			s.live[kind].resize(64)
			s.long[kind].resize(64)
		}
	}
}
