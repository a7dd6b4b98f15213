package server

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/regions"
)

// regionSettings say which regions there are.
var regionSettings = []setting{
	{Path: "region",
		Help: "the region that this node is in, one of regions.weights; empty if there is one alone",
		Set: settings.Text(func(c *Config, s string) error {
			if s != "" && !regionName().MatchString(s) {
				return fmt.Errorf("%q is no name of a region; %s", s, regionNames)
			}
			c.region = s
			return nil
		})},
	{Path: "regions.weights", Kind: settings.Mapping,
		Help: "region=weight pairs: all regions, and the part that each has of the limits that hold over all of them; the same on all nodes",
		Set: func(c *Config, items []string) error {
			c.regionWeights = map[string]int{}
			for _, item := range items {
				name, value, ok := strings.Cut(item, "=")
				weight, err := strconv.Atoi(strings.TrimSpace(value))
				switch {
				case !ok || err != nil || weight < 0 || weight > regions.MaxWeight:
					return fmt.Errorf("%q is no region=weight with a weight from 0 to %d, such as eu=2", item,
						regions.MaxWeight)
				case !regionName().MatchString(name):
					return fmt.Errorf("%q is no name of a region; %s", name, regionNames)
				}
				if _, twice := c.regionWeights[name]; twice {
					return fmt.Errorf("%q is given twice", name)
				}
				c.regionWeights[name] = weight
			}
			return nil
		}},
	{Path: "regions.stores", Kind: settings.Mapping,
		Help: "region=URL pairs: the Redis of each other region (one with a comma only in the file)",
		Set: func(c *Config, items []string) error {
			c.regionStores = map[string]string{}
			for _, item := range items {
				name, url, ok := strings.Cut(item, "=")
				if !ok || !regionName().MatchString(name) {
					return fmt.Errorf("%q is no region=URL, such as us=rediss://weir-peer@redis.us.example:6379",
						settings.RedactURL(item))
				}
				if err := redis.CheckURL(url); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				c.regionStores[name] = url
			}
			return nil
		}},
}

// regionConfig is the configuration of regions.
type regionConfig struct {
	region        string            // "" if there is one alone
	regionWeights map[string]int    // of all regions
	regionStores  map[string]string // URLs of the others
}

var regionName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`) })

const regionNames = "a name has up to 32 lower-case letters, digits and dashes"

// checkRegions reports what does not fit together in the settings of regions.
func (c *Config) checkRegions() error {
	if c.region == "" {
		if len(c.regionWeights)+len(c.regionStores) > 0 {
			return errors.New("region: is missing, the region that this node is in; or leave out regions")
		}
		return nil
	}
	if _, ok := c.regionWeights[c.region]; !ok {
		return fmt.Errorf("regions.weights: lacks %s, the region of this node; it lists all regions, as in: %s: 1",
			c.region, c.region)
	}
	if len(c.regionWeights) < 2 {
		return fmt.Errorf("regions.weights: there is no region but %s; leave out region and regions, or add the others",
			c.region)
	}
	if c.store == storeMemory {
		return errors.New(
			"store: memory cannot serve one region among several, since all nodes of a region share their counts; write the URL of the Redis of this region")
	}
	if !c.onRedis() {
		return fmt.Errorf("store: %s cannot serve one region among several; write the URL of the Redis of this region",
			kindOf(c.store).title)
	}
	sum := 0
	for _, name := range slices.Sorted(maps.Keys(c.regionWeights)) {
		sum += c.regionWeights[name]
		switch _, has := c.regionStores[name]; {
		case name == c.region && has:
			return fmt.Errorf("regions.stores: %s is the region of this node, whose Redis is store; take it out", name)
		case name != c.region && !has:
			return fmt.Errorf("regions.stores: lacks the Redis of %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.regionStores)) {
		if _, ok := c.regionWeights[name]; !ok {
			return fmt.Errorf("regions.stores: %s is not among regions.weights", name)
		}
	}
	if sum == 0 {
		return errors.New("regions.weights: all are 0, so that no region could admit anything")
	}
	return nil
}

// openRegions puts what goes on between regions before the store.
func (p *program) openRegions() error {
	c, s := p.c, p.storage
	if c.region == "" {
		return nil
	}
	o := regions.Options{
		Region: c.region, Own: s.redis, Logger: p.log, Nodes: s.fallback.Share, Digest: func() string {
			return p.rules.Status().Digest
		}, Peers: map[string]regions.Neighbour{},
		Ready: p.built.Load,
		Rules: func(id uint64, key []byte) (*rule.Counter, *algo.Limit, *algo.Limit) {
			if !p.built.Load() {
				return nil, nil, nil
			}
			return p.limiter.Phases().Numbers(id, key)
		},
	}
	for _, name := range slices.Sorted(maps.Keys(c.regionWeights)) {
		o.Table = append(o.Table, regions.Region{Name: name, Weight: c.regionWeights[name]})
		url, other := c.regionStores[name]
		if !other {
			continue
		}
		of := c.redis
		of.URL, of.Logger, of.Timeout = url, p.log.With("region", name), c.timeout
		peer, err := redis.Open(of)
		if err != nil {
			return fmt.Errorf("regions.stores: %s: %w", name, err)
		}
		s.peers = append(s.peers, peer)
		o.Peers[name] = peer
	}
	var err error
	if s.regions, err = regions.New(s.Store, o); err != nil {
		return fmt.Errorf("regions: %w", err)
	}
	s.Store = s.regions
	p.log.Info("this node is in one region among several", "region", c.region, "regions",
		strings.Join(slices.Sorted(maps.Keys(c.regionWeights)), " "))
	return nil
}

// silentRegions names the regions that were not heard lately; "" if there is none, or another node
// of this region hears them, or did until a moment ago.
func (s *storage) silentRegions() string {
	if s.regions == nil {
		return ""
	}
	r := s.regions.Stats()
	if r.Leading < insight.SilentRegion {
		return ""
	}
	var names []string
	for _, p := range r.Peers {
		if p.Stale < 0 || p.Stale > insight.SilentRegion {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "not heard of the region " + strings.Join(names, ", ") +
		": limits go by what was heard before, and by the ceilings"
}
