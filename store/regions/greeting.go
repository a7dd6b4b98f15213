package regions

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/store"
)

// The node that hears for its region also writes, twice a second, the setup of its region. So the
// others see that regions disagree, and that a region is there which has nothing to report.
//
// Units are borrowed only from a region that has said lately that it has the same table and the
// same rules. A loan is taken by the ceilings of the borrower's table; a region that a change of
// the table has forgotten would else go on borrowing by the old ones from regions that have lowered
// theirs. The node that hears informs the other nodes of its region, by facts on their board.

// agreedKind is the kind of these facts, whose IDs are names of regions, and agreedFor how long one
// of them holds.
const (
	agreedKind = "region"
	agreedFor  = 3 * time.Second
)

// greetingLen is the length of a greeting: the hash of the table and the hash of the rules.
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

// greeting is the setup of this region. The hash of the rules is 0 if they are not compared.
func (x *exchange) greeting() []byte {
	rules := uint64(0)
	if x.o.Digest != nil {
		rules = xxhash.Sum64String(x.o.Digest())
	}
	return binary.LittleEndian.AppendUint64(
		binary.LittleEndian.AppendUint64(make([]byte, 0, greetingLen), x.self.hash()), rules)
}

// greet writes the setup of this region. A failure shows elsewhere.
func (x *exchange) greet(ctx context.Context) {
	key := x.greeting()
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

// compare takes down what another region said it is set up with, before it, in µs. One that was
// long on its way, as after a cut, says nothing of now.
func (x *exchange) compare(ctx context.Context, p *peer, key []byte, before int64) {
	rest := int64(agreedFor) - max(before, 0)*1000
	if len(key) != greetingLen || rest <= 0 {
		return
	}
	ours := x.greeting()
	d := Differs{Table: !bytes.Equal(key[:8], ours[:8])}
	if theirs, rules := binary.LittleEndian.Uint64(key[8:]), binary.LittleEndian.Uint64(ours[8:]); theirs != 0 &&
		rules != 0 {
		d.Rules = theirs != rules
	}
	p.differs.Store(&d)
	if d == (Differs{}) {
		x.agree(ctx, p, rest)
		return
	}
	p.agrees.Store(0)
	if n := p.other.Due(seldomLog); n > 0 {
		what := "rule files"
		if d.Table {
			what = "weights of regions: all regions together may admit more than the limits and their over"
		}
		x.log.Warn("another region has other "+what+". Nothing is borrowed of it", "region", p.name)
	}
}

// agree notes that a region is set up as this one, which holds for as long as rest, in ns, and
// informs the other nodes of it now and then.
func (x *exchange) agree(ctx context.Context, p *peer, rest int64) {
	mono := store.Monotonic()
	p.agrees.Store(mono + rest)
	if last := p.posted.Load(); mono-last < int64(time.Second) || !p.posted.CompareAndSwap(last, mono) {
		return
	}
	if board, ok := store.As[store.Board](x.own); ok {
		within, cancel := context.WithTimeout(ctx, leadEvery)
		defer cancel()
		// With an error they do not know of it, and do not borrow.
		_ = board.Post(within, agreedKind, []store.Fact{{ID: p.name, Data: x.greeting(), TTL: time.Duration(rest)}})
	}
}

// watchAgreement takes down the hearing node's facts about the other regions. A node that is set up
// otherwise than that one does not borrow.
func (x *exchange) watchAgreement(ctx context.Context) {
	board, ok := store.As[store.Board](x.own)
	if !ok {
		return
	}
	_ = board.Watch(ctx, agreedKind, func(facts []store.Fact, _ bool) {
		mono := store.Monotonic()
		for i := range facts {
			f := &facts[i]
			at := slices.IndexFunc(x.peers, func(p *peer) bool { return p.name == f.ID })
			if at < 0 || f.Removed || !bytes.Equal(f.Data, x.greeting()) {
				continue
			}
			p := x.peers[at]
			p.agrees.Store(max(p.agrees.Load(), mono+int64(f.TTL)))
		}
	})
}
