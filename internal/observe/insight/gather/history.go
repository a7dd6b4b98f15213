package gather

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// mostPast bounds the rules and domains that are read from the history file.
const mostPast = 10_000

// remember writes the counts of the minute that ended to the history file.
func (c *Collector) remember() {
	if f := c.history; f != nil {
		now := c.now()
		f.Keep(now, func() []series.Past { return c.pastMinute(now.Unix()/60*60 - 60) }, c.eachPast)
	}
}

// pastMinute returns the counts of the minute that began at an instant.
func (c *Collector) pastMinute(unix int64) (list []series.Past) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.domains {
		list = d.series.AppendPast(list, series.Name{Domain: d.name}, nil, unix, unix)
	}
	for _, r := range c.counted {
		if r.series != nil {
			list = r.series.AppendPast(list, series.Name{Domain: r.domain, Rule: r.name, Definition: r.definition}, r.minutes, unix, unix)
		}
	}
	return list
}

// eachPast yields all that is known, one rule at a time.
func (c *Collector) eachPast(yield func([]series.Past) error) error {
	c.mu.Lock()
	rules, now := slices.Clone(c.counted), c.now().Unix()
	var list []series.Past
	for _, d := range c.domains {
		list = d.series.AppendPast(list, series.Name{Domain: d.name}, nil, 0, now)
	}
	c.mu.Unlock()
	if err := yield(list); err != nil {
		return err
	}
	for _, r := range rules {
		c.mu.Lock()
		list = list[:0]
		if r.series != nil {
			list = r.series.AppendPast(list, series.Name{Domain: r.domain, Rule: r.name, Definition: r.definition}, r.minutes, 0, now)
		}
		c.mu.Unlock()
		if len(list) == 0 {
			continue
		}
		if err := yield(list); err != nil {
			return err
		}
	}
	return nil
}

// Open reads the history file at a path, and keeps it up to date from then on. It must be called
// before Run, and before rules are in force. A file that is damaged from its beginning is set
// aside.
func (c *Collector) Open(path string) error {
	log := c.o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.past = map[series.Name][]series.Step{}
	oldest := c.now().Add(-snapshot.MostOver).Unix()
	f, err := series.Open(path, log, c.now(), func(p *series.Past) {
		if _, have := c.past[p.Name]; !have && len(c.past) >= mostPast {
			return
		}
		for _, s := range p.Steps {
			if s.Unix >= oldest && s.Unix <= c.now().Unix() && (s.Length == 60 || s.Length == 600) {
				c.past[p.Name] = append(c.past[p.Name], s)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("history of insight: %w", err)
	}
	c.history = f
	c.recallRule(c.commands)
	return nil
}

// recallRule follows a rule for which the history file has counts, and restores these.
func (c *Collector) recallRule(s *ruleState) {
	name := series.Name{Domain: s.domain, Rule: s.name, Definition: s.definition}
	if _, known := c.past[name]; !known {
		return
	}
	if c.follow(s); s.series == nil {
		return
	}
	if begin := c.recall(name, s.series, s.minutes); begin != 0 {
		s.since = time.Unix(begin, 0)
	}
}

// recallDomain is recallRule for a domain.
func (c *Collector) recallDomain(d *domainState) {
	name := series.Name{Domain: d.name}
	if _, known := c.past[name]; !known {
		return
	}
	if c.followDomain(d); d.series == &series.Nothing {
		return
	}
	if begin := c.recall(name, d.series, nil); begin != 0 {
		d.since = begin
	}
}

// recall puts the counts of the history file into a series, and returns when they begin; 0 if there
// are none.
func (c *Collector) recall(name series.Name, r *series.Series, states []series.Minute) (begin int64) {
	steps := c.past[name]
	delete(c.past, name)
	return r.Restore(steps, states)
}

// Close writes the remaining counts, and closes the history file. Run must have ended.
func (c *Collector) Close() error {
	f := c.history
	if f == nil {
		return nil
	}
	c.history = nil
	c.gather(false)
	c.mu.Lock()
	c.count(c.now().Unix())
	c.mu.Unlock()
	return f.Close(c.eachPast)
}
