package gather

import (
	"slices"

	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// searchedAtOnce is how many rules are searched while mu is held.
const searchedAtOnce = 32

// Search gives to a Book the keys in the lists of top keys and in the samples of refused keys.
func (c *Collector) Search(b *find.Book) {
	c.mu.Lock()
	c.drain()
	list := slices.Clone(c.counted)
	c.mu.Unlock()
	for some := range slices.Chunk(list, searchedAtOnce) {
		if b.Stopped() {
			return
		}
		c.mu.Lock()
		for _, s := range some {
			if s.series != nil && (b.Domain == "" || s.domain == b.Domain) {
				s.search(b)
			}
		}
		c.mu.Unlock()
	}
}

// search gives to a Book the keys of a rule. mu is held.
func (s *ruleState) search(b *find.Book) {
	for kind := range snapshot.TopKinds {
		for _, l := range [...]*topList{&s.live[kind], &s.long[kind]} {
			for i := range l.keys {
				k := &l.keys[i]
				allowed := uint64(0)
				if l == &s.live[snapshot.TopAsked] && k.at >= b.Since && !s.shadow() {
					allowed = k.asked - min(k.refused, k.asked)
				}
				b.Listed(s.domain, k.text, k.at, allowed, kind == snapshot.TopRefused && !s.shadow())
			}
		}
	}
	for i := range s.eras {
		if x := s.eras[i].refused; x != nil {
			for k := range x.traces {
				if t := &x.traces[k]; !t.remote { // else the node where it was refused has it
					b.Listed(s.domain, t.text, t.since, 0, false)
				}
			}
		}
	}
}
