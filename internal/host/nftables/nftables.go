// Package nftables makes the kernel drop the packets of banned addresses before they cost anything.
// It keeps a table of nftables with two sets of addresses, whose entries expire by themselves, and
// a rule for each set.
//
// Begin with New and Table.Block. Linux only, and only with CAP_NET_ADMIN. Some addresses are never
// banned: loopback, link-local and multicast addresses, what all clients behind NAT64 share,
// addresses of this machine, and those in Options.Never, such as trusted proxies.
package nftables

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/util/clientip"
)

// Options tune New. The zero value is right for most.
type Options struct {
	// Table is the name of the table, of family inet; "" means "weir". A table of this name is
	// taken for our own, from an earlier run, and made anew. The name holds no port and no name of
	// a node: a table that a server left behind when it was killed would go on to drop what is no
	// longer banned, once its next run has another one. And operators find it.
	Table string
	// IPv6Prefix is how many bits of an IPv6 address are banned together; 0 means 64.
	IPv6Prefix int
	// Never are networks in which nothing is banned.
	Never []netip.Prefix
	// Max bounds the entries of each set; 0 means 65,536.
	Max int
	// Keep leaves the table there at Close, so that it drops on until its entries expire.
	Keep bool
	// NetNS is an open file of the network namespace that the table is for; 0 means the process's
	// own.
	NetNS int
	// Logf logs each address that was to be banned but never is, and a table that was there; nil
	// means nobody.
	Logf func(format string, args ...any)
}

// The defaults of Options.
const (
	DefaultTable = "weir"
	defaultMax   = 65_536
)

// Entry is a banned block of addresses, and how much longer it is.
type Entry struct {
	Block netip.Prefix
	Left  time.Duration
}

// Stats is a reading: Entries in force, and counts since New.
type Stats struct {
	Entries int
	Spared  uint64 // that were to be banned, and never are
	Failed  uint64 // that the kernel did not take
}

// Table is the table in the kernel. Make one with New. Safe for concurrent use.
type Table struct {
	o      Options
	kernel kernel
	spared atomic.Uint64
	failed atomic.Uint64

	mu    sync.Mutex
	held  map[netip.Prefix]time.Time // until when, as far as we know
	swept int                        // size of held after the last sweep
	// blocks that were spared and logged, as far as Sync may ask for them again
	told   map[netip.Prefix]bool
	closed bool
	own    []netip.Addr // addresses of this machine
	looked time.Time    // when own was read
}

var errClosed = errors.New("ban: the table is closed")

// SparedError is the error of Add for a block that is never banned.
type SparedError struct {
	Block netip.Prefix
	Why   string
}

// Error implements error.
func (e *SparedError) Error() string {
	return fmt.Sprintf("ban: %s is never banned: %s", e.Block, e.Why)
}

// New makes the table, empty. The error says which part of the system is missing.
func New(o Options) (*Table, error) {
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if o.IPv6Prefix == 0 {
		o.IPv6Prefix = 64
	}
	if o.Max == 0 {
		o.Max = defaultMax
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.IPv6Prefix < 1 || o.IPv6Prefix > 128 || o.Max < 1 {
		return nil, fmt.Errorf("ban: IPv6Prefix is %d and Max %d; there may be 1 to 128 bits, and at least one entry",
			o.IPv6Prefix, o.Max)
	}
	t := &Table{o: o, held: map[netip.Prefix]time.Time{}, told: map[netip.Prefix]bool{}}
	if err := t.kernel.open(&t.o); err != nil {
		return nil, err
	}
	return t, nil
}

// slack is by how much our clock and the kernel's may differ over an entry's life.
const slack = time.Second

// Block returns the block that is banned for an address, or for a block as Weir's keys show it.
func (t *Table) Block(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("ban: %q is no address", text)
		}
		if a = clientip.Addr(a); a.Is4() {
			return netip.PrefixFrom(a, 32), nil
		}
		return a.Prefix(t.o.IPv6Prefix)
	}
	return p, t.check(p)
}

func (t *Table) check(p netip.Prefix) error {
	switch a := p.Addr(); {
	case !p.IsValid() || a.Is4In6():
		return fmt.Errorf("ban: %v is no block of addresses", p)
	case a.Is4() && p.Bits() != 32:
		return fmt.Errorf("ban: %v is more than one address; IPv4 is banned by the address", p)
	case a.Is6() && p.Bits() != t.o.IPv6Prefix:
		return fmt.Errorf("ban: %v has %d bits; IPv6 is banned by blocks of %d bits", p, p.Bits(), t.o.IPv6Prefix)
	}
	return nil
}

// spare reports why a block is never banned; "" if it may be. mu is held.
func (t *Table) spare(p netip.Prefix) string {
	a := p.Addr()
	switch {
	case a.IsLoopback() || p.Contains(netip.IPv6Loopback()):
		return "it is the loopback"
	case a.IsLinkLocalUnicast():
		return "it is link-local"
	case a.IsMulticast() || a.IsUnspecified():
		return "nobody has it"
	case a.Is6() && clientip.StandsForIPv4(p):
		return "all clients behind NAT64 share it"
	}
	for _, n := range t.o.Never {
		if n.Overlaps(p) {
			return "it lies in " + n.String() + ", a trusted proxy's"
		}
	}
	if time.Since(t.looked) > 10*time.Second {
		t.own, t.looked = ownAddresses(), time.Now()
	}
	for _, own := range t.own {
		if p.Contains(own) {
			return own.String() + " is an address of this machine"
		}
	}
	return ""
}

func ownAddresses() []netip.Addr {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var own []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				own = append(own, addr.Unmap())
			}
		}
	}
	return own
}

// Add bans a block for a time, unless it is banned for longer. The error is a SparedError for a
// block that is never banned.
func (t *Table) Add(p netip.Prefix, d time.Duration) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p = p.Masked()
	if until, have := t.held[p]; have && time.Until(until) >= d {
		return nil
	}
	err := t.add([]Entry{{p, d}})
	if spared, ok := errors.AsType[*SparedError](err); ok {
		t.tellSpared(spared)
	}
	return err
}

// tellSpared counts and logs a block that was to be banned. mu is held.
func (t *Table) tellSpared(e *SparedError) {
	t.spared.Add(1)
	t.o.Logf("%v", e)
	if len(t.told) >= t.o.Max {
		clear(t.told)
	}
	t.told[e.Block] = true
}

// add bans blocks, each once: as many as can be. mu is held.
func (t *Table) add(entries []Entry) error {
	if t.closed {
		return errClosed
	}
	var failed error
	var some []Entry
	for _, e := range entries {
		if err := t.check(e.Block); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if e.Left <= 0 {
			continue
		}
		if why := t.spare(e.Block); why != "" {
			failed = errors.Join(failed, &SparedError{e.Block, why})
			continue
		}
		if _, have := t.held[e.Block]; !have {
			if t.sweep(); len(t.held) >= t.o.Max {
				t.failed.Add(1)
				failed = errors.Join(failed,
					fmt.Errorf("ban: %s: %d blocks are banned, as many as there may be", e.Block, t.o.Max))
				continue
			}
		}
		t.held[e.Block] = time.Now().Add(e.Left)
		some = append(some, e)
	}
	if err := t.put(some); err != nil {
		for _, e := range some {
			delete(t.held, e.Block)
		}
		t.failed.Add(uint64(len(some)))
		failed = errors.Join(failed, err)
	}
	return failed
}

// put gives entries to the kernel. A table that somebody has deleted is made again, with all that
// was in it.
func (t *Table) put(entries []Entry) error {
	if len(entries) == 0 {
		return nil
	}
	err := t.kernel.put(entries)
	if !isGone(err) {
		return err
	}
	if err := t.kernel.make(); err != nil {
		return err
	}
	entries = nil
	for p, until := range t.held {
		if left := time.Until(until); left > 0 {
			entries = append(entries, Entry{p, left})
		}
	}
	return t.kernel.put(entries)
}

// sweep forgets entries that the kernel has forgotten, where that is worth the walk. mu is held.
func (t *Table) sweep() {
	if len(t.held) < t.o.Max && len(t.held) < 2*t.swept+1024 {
		return
	}
	for p, until := range t.held {
		if time.Since(until) > slack {
			delete(t.held, p)
		}
	}
	t.swept = len(t.held)
}

// Remove ends the ban of a block; one that is not banned is no error.
func (t *Table) Remove(p netip.Prefix) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remove(p.Masked())
}

func (t *Table) remove(p netip.Prefix) error {
	if t.closed {
		return errClosed
	}
	if err := t.check(p); err != nil {
		return err
	}
	delete(t.held, p)
	if err := t.kernel.remove(p); !isGone(err) {
		return err
	}
	return nil
}

// Sync bans exactly these blocks, each for the longest time given for it, and removes all others
// from the kernel. It skips blocks that are never banned, and logs each once. The error names the
// blocks that could not be banned.
func (t *Table) Sync(entries []Entry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errClosed
	}
	there, err := t.kernel.list()
	if isGone(err) {
		if err = t.kernel.make(); err == nil {
			clear(t.held)
		}
	}
	if err != nil {
		return err
	}
	want := make(map[netip.Prefix]time.Duration, len(entries))
	for _, e := range entries {
		p := e.Block.Masked()
		if t.check(p) != nil || e.Left <= 0 {
			continue
		}
		if why := t.spare(p); why == "" {
			want[p] = max(want[p], e.Left)
		} else if !t.told[p] {
			t.tellSpared(&SparedError{p, why})
		}
	}
	var failed error
	for _, e := range there {
		left, ok := want[e.Block]
		switch {
		case !ok:
			failed = errors.Join(failed, t.remove(e.Block))
		case (left-e.Left).Abs() <= slack && e.Left > slack:
			delete(want, e.Block) // as it is
		}
	}
	some := make([]Entry, 0, len(want))
	for p, left := range want {
		some = append(some, Entry{p, left})
	}
	return errors.Join(failed, t.add(some))
}

// List returns the kernel's entries, in no order.
func (t *Table) List() ([]Entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	return t.kernel.list()
}

// Stats returns a reading.
func (t *Table) Stats() Stats {
	s := Stats{Spared: t.spared.Load(), Failed: t.failed.Load()}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, until := range t.held {
		if time.Until(until) > 0 {
			s.Entries++
		}
	}
	return s
}

// Close removes the table, unless it is to be kept. A second Close does nothing.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed = true
	if t.o.Keep {
		return nil
	}
	if err := t.kernel.drop(); !isGone(err) {
		return err
	}
	return nil
}
