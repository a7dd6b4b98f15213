package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/host/nftables"
	"github.com/weir-rl/weir/rule"
)

// firewall passes bans to the kernel, for rules that ask for it (at: nftables). It is made before
// the limiter, because the limiter reports bans to it, and is opened when a rule first asks for it.
type firewall struct {
	options nftables.Options
	log     *slog.Logger
	changes chan firewallChange

	mu    sync.Mutex
	table *nftables.Table // nil until a rule asks for it
}

type firewallChange struct {
	key   string
	until time.Time
	sync  bool // something else has changed than that one more is banned
}

const (
	firewallQueue = 4096
	firewallEvery = time.Minute // how often the kernel is held against the bans in force
)

// openFirewall makes the firewall.
func (p *program) openFirewall(context.Context) error {
	p.firewall = newFirewall(nftables.Options{IPv6Prefix: p.c.ipv6Prefix, Never: p.c.clientIP.Trusted}, p.log)
	return nil
}

// openKernel opens the firewall if a rule asks for it. That replaces the table of a server that
// runs already, so it comes after all that a start may fail of.
func (p *program) openKernel(context.Context) error { return p.firewall.open(p.atStart) }

// runFirewall gives bans to the kernel until ctx ends.
func (p *program) runFirewall(ctx context.Context) { p.firewall.run(ctx, p.limiter) }

func (p *program) closeFirewall() error {
	if p.firewall == nil {
		return nil
	}
	return p.firewall.close()
}

func newFirewall(o nftables.Options, log *slog.Logger) *firewall {
	o.Logf = func(format string, args ...any) { log.Warn(fmt.Sprintf(format, args...)) }
	return &firewall{
		options: o, log: log, changes: make(chan firewallChange, firewallQueue),
	}
}

// wanted reports whether a rule of s asks for the kernel.
func (f *firewall) wanted(s *rule.Set) (r *rule.Rule, wanted bool) {
	for _, r := range s.Rules() {
		if r.Ban != nil && r.Ban.NFTables {
			return r, true
		}
	}
	return nil, false
}

// open makes the table in the kernel if a rule of s asks for it and there is none yet. The error
// names the rule and the missing requirement.
func (f *firewall) open(s *rule.Set) error {
	r, wanted := f.wanted(s)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !wanted || f.table != nil {
		return nil
	}
	table, err := nftables.New(f.options)
	if err != nil {
		return fmt.Errorf("%s:%d: the limit %q asks for at: nftables: %w", r.Pos.File, r.Pos.Line, r.Name, err)
	}
	f.table = table
	f.again()
	return nil
}

func (f *firewall) opened() *nftables.Table {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.table
}

// changed receives changes of bans, on the deciding path.
func (f *firewall) changed(b *weir.Ban, lifted bool) {
	if !b.NFTables || len(b.Key) != 1 {
		return
	}
	_, address, _ := strings.Cut(b.Key[0], "=")
	select {
	case f.changes <- firewallChange{key: address, until: b.Until, sync: lifted || b.Manual}:
	default: // far too many at once: the next look at all of them finds it
	}
}

// again makes run look at all bans.
func (f *firewall) again() {
	select {
	case f.changes <- firewallChange{sync: true}:
	default:
	}
}

// run gives the bans of l to the kernel until ctx ends.
func (f *firewall) run(ctx context.Context, l *weir.Limiter) {
	tick := time.NewTicker(firewallEvery)
	defer tick.Stop()
	for {
		c := firewallChange{sync: true}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case c = <-f.changes:
		}
		table := f.opened()
		if table == nil {
			continue
		}
		var err error
		if c.sync {
			f.drain() // the full list includes the pending changes
			err = table.Sync(entriesOf(table, l.Bans().List()))
		} else {
			var p netip.Prefix
			if p, err = table.Block(c.key); err == nil {
				err = table.Add(p, time.Until(c.until))
			}
		}
		if _, spared := errors.AsType[*nftables.SparedError](err); err != nil && !spared {
			f.log.Error("banned addresses were not given to the kernel", "error", oneLine(err))
		}
	}
}

// drain forgets the changes that wait.
func (f *firewall) drain() {
	for {
		select {
		case <-f.changes:
		default:
			return
		}
	}
}

// entriesOf are the blocks that bans want the kernel to drop.
func entriesOf(table *nftables.Table, bans []weir.Ban) []nftables.Entry {
	var entries []nftables.Entry
	for i := range bans {
		b := &bans[i]
		if !b.NFTables || len(b.Key) != 1 {
			continue
		}
		_, address, _ := strings.Cut(b.Key[0], "=")
		if p, err := table.Block(address); err == nil {
			entries = append(entries, nftables.Entry{Block: p, Left: time.Until(b.Until)})
		}
	}
	return entries
}

// stats reads the state of the kernel's table.
func (f *firewall) stats() nftables.Stats {
	if table := f.opened(); table != nil {
		return table.Stats()
	}
	return nftables.Stats{}
}

// close takes the table out of the kernel.
func (f *firewall) close() error {
	table := f.opened()
	if table == nil {
		return nil
	}
	return table.Close()
}
