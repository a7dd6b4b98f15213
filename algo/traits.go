package algo

// Traits say what an algorithm does, so that nobody outside this package has to know which one it
// is. They are the same for all limits of an algorithm.

// HasSlots reports whether units are slots, which are held under an id until they are given back
// (Limit.Release) or their time-out has passed. Such a limit has no window.
func (a Algorithm) HasSlots() bool { return a == Concurrency }

// Delays reports whether requests that are admitted form a queue, and wait for their turn
// (Result.Delay).
func (a Algorithm) Delays() bool { return a == LeakyBucket }

// HasBurst reports whether a limit has a size of its own beside its rate (Config.Burst).
func (a Algorithm) HasBurst() bool { return a == TokenBucket || a == LeakyBucket }

// Refills reports whether used units come back at the rate of the limit, no matter when each was
// used, and without a queue.
func (a Algorithm) Refills() bool { return a == TokenBucket }

// ResetsAtOnce reports whether units are counted in windows one after the other, so that all of
// them come back at the same instant.
func (a Algorithm) ResetsAtOnce() bool { return a == FixedWindow }

// Slides reports whether each unit comes back about a window after it was used.
func (a Algorithm) Slides() bool { return a == SlidingWindow || a == SlidingLog }

// HasLog reports whether the instant of each unit is remembered. It is exact, and a state grows
// with the units that are used.
func (a Algorithm) HasLog() bool { return a == SlidingLog }

// Approximates reports whether units are counted for a span of time together, so that more than N
// may be admitted within a window's length that is not aligned to these spans.
func (a Algorithm) Approximates() bool { return a == SlidingWindow }

// Settles reports whether units can be charged, or given back, long after a decision: by Settle,
// Hear, GiveBack and a lease. Turns in a queue and slots cannot.
func (a Algorithm) Settles() bool { return a != LeakyBucket && a != Concurrency }

// Capacity returns the most units that a key gets at once, soft margin not counted (Result.Limit),
// of a limit without a schedule.
func (l *Limit) Capacity() int64 { return l.cfg.Capacity() }

// HasSlots is a trait of the limit's algorithm.
func (l *Limit) HasSlots() bool { return l.algo.HasSlots() }

// Delays is a trait of the limit's algorithm.
func (l *Limit) Delays() bool { return l.algo.Delays() }

// Settles is a trait of the limit's algorithm.
func (l *Limit) Settles() bool { return l.algo.Settles() }

// ResetsAtOnce is a trait of the limit's algorithm.
func (l *Limit) ResetsAtOnce() bool { return l.algo.ResetsAtOnce() }
