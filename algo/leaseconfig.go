package algo

import (
	"errors"
	"fmt"
	"time"
)

// generation is the length of a generation: Config.LeaseFor, or its default.
func (c *Config) generation() time.Duration {
	if c.LeaseFor > 0 {
		return c.LeaseFor
	}
	return min(max(c.Window*time.Duration(c.Lease)/200, shortestLease), longestLease).Truncate(time.Microsecond)
}

// compileLease prepares l for lending.
func (l *Limit) compileLease() error {
	c := l.cfg
	l.lendable = l.limit * int64(c.Lease) / 100
	charges := c
	charges.Lease, charges.LeaseFor, charges.CountDenied = 0, 0, true
	if c.Algorithm == TokenBucket {
		charges.CountDenied = false
	}
	var err error
	if l.all, err = build(charges); err != nil {
		return err
	}
	life := 2 * l.w // a calendar's windows are a little longer than nominal
	if l.algo == TokenBucket && l.n > 0 {
		life = maxInt
		if l.full < uint64(maxInt/l.unit)-1 {
			life = int64(l.full+1) * l.unit
		}
	}
	l.lease, err = New(Config{Algorithm: Lease, Window: time.Duration(life) * time.Microsecond,
		Timeout: c.generation()})
	return err
}

// Lending returns l with generations as long as record's, for reading states that were kept under
// record, the Limit.Lease of another limit. It returns l itself if the lengths are equal, or if l
// lends nothing.
func (l *Limit) Lending(record *Limit) *Limit {
	each := record.cfg.Timeout
	if l.lease == nil || record.algo != Lease || l.lease.cfg.Timeout == each {
		return l
	}
	with := func(l *Limit) (*Limit, error) {
		c := l.cfg
		c.LeaseFor = each
		return New(c)
	}
	of := with
	if l.times != nil {
		of = func(l *Limit) (*Limit, error) { return l.times.each(with) }
	}
	if other, err := of(l); err == nil {
		return other
	}
	return l
}

// checkLeasing checks that a limit can lend as c says.
func (c *Config) checkLeasing() error {
	switch {
	case c.Lease == 0 && c.LeaseFor == 0:
		return nil
	case c.Lease < MinLease || c.Lease > MaxLease:
		return fmt.Errorf("the lease is %d%%; it must be from %d%% to %d%%, and without one there is no time for it",
			c.Lease, MinLease, MaxLease)
	case c.LeaseFor != 0 && (c.LeaseFor < MinLeaseFor || c.LeaseFor > MaxLeaseFor || c.LeaseFor%time.Microsecond != 0):
		return fmt.Errorf("a lease is for %v; it must be a whole number of microseconds from %v to %v", c.LeaseFor,
			MinLeaseFor, MaxLeaseFor)
	case c.Algorithm == LeakyBucket:
		return errors.New(
			"leaky_bucket cannot be leased: turns taken ahead would make others wait behind turns that nobody uses")
	case c.Algorithm == Concurrency:
		return errors.New("concurrency cannot be leased: a slot is given back to the node that handed it out")
	case c.RefillInterval:
		return errors.New(
			"a token_bucket that is refilled at intervals cannot be leased: units charged late would move its boundaries")
	case c.SoftFor != 0:
		return errors.New("a limit whose soft margin closes cannot be leased")
	case c.N > MaxN:
		return fmt.Errorf("%d requests are too many to be leased, at most %d can", c.N, MaxN)
	case c.CountDenied && c.Algorithm != FixedWindow:
		return fmt.Errorf("%v that counts denied requests cannot be leased, only fixed_window can", c.Algorithm)
	}
	return nil
}

// checkLease is Config.check for the algorithm Lease.
func (c *Config) checkLease() error {
	if *c != (Config{Algorithm: Lease, Window: c.Window, Timeout: c.Timeout}) || c.Window <= 0 ||
		c.Timeout < MinLeaseFor || c.Timeout > MaxLeaseFor {
		return fmt.Errorf(
			"the state of lent units has a length of generations and a time for which a charge counts, and nothing else: %+v", *c)
	}
	return nil
}
