package regions

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/store"
)

// The node that hears for its region also writes, twice a second, what its region is set up with. So
// the others see that regions disagree, and that a region is there of which nothing is to be told.

// greetingLen is the length of a greeting: the hash of the table and that of the rules.
const greetingLen = 16

// Differs says in which way another region is set up otherwise.
type Differs struct {
	Table bool // the weights are others, so that the ceilings may come to more than the limit
	Rules bool // the rule files are others
}

// hash is the same for all tables with the same weights.
func (c *ceilings) hash() uint64 {
	var b strings.Builder
	for _, r := range c.table {
		fmt.Fprintf(&b, "%s=%d\n", r.Name, r.Weight)
	}
	return xxhash.Sum64String(b.String())
}

// greet says what this region is set up with. That it fails shows elsewhere.
func (x *exchange) greet(ctx context.Context) {
	key := binary.LittleEndian.AppendUint64(make([]byte, 0, greetingLen), x.self.hash())
	rules := uint64(0)
	if x.o.Digest != nil {
		rules = xxhash.Sum64String(x.o.Digest())
	}
	key = binary.LittleEndian.AppendUint64(key, rules)
	within, cancel := context.WithTimeout(ctx, leadEvery)
	defer cancel()
	now, err := x.own.Take(within, nil, nil)
	if err != nil {
		return
	}
	for part := range x.own.Parts() {
		if x.own.Tell(within, part, []store.Told{{Key: key, Units: 1, At: now}}) != nil {
			return
		}
	}
}

// compare takes down what another region says it is set up with.
func (x *exchange) compare(p *peer, key []byte) {
	if len(key) != greetingLen {
		return
	}
	var d Differs
	d.Table = binary.LittleEndian.Uint64(key) != x.self.hash()
	if theirs := binary.LittleEndian.Uint64(key[8:]); theirs != 0 && x.o.Digest != nil {
		d.Rules = theirs != xxhash.Sum64String(x.o.Digest())
	}
	p.differs.Store(&d)
	if n := p.other.Due(seldomLog); (d.Table || d.Rules) && n > 0 {
		what := "rule files"
		if d.Table {
			what = "weights of regions: all regions together may admit more than the limits and their over"
		}
		x.log.Warn("another region has other "+what, "region", p.name)
	}
}
