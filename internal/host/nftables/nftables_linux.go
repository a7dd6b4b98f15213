package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// kernel is the table as nftables knows it. In the notation of nft:
//
//	table inet weir {
//	  set banned4 { type ipv4_addr; flags timeout; }
//	  set banned6 { type ipv6_addr; flags timeout; }
//	  chain early {
//	    type filter hook prerouting priority raw; policy accept;
//	    iifname "lo" accept
//	    ip saddr @banned4 counter drop
//	    ip6 saddr & ffff:ffff:ffff:ffff:: @banned6 counter drop
//	  }
//	}
//
// The hook lies before connection tracking, so that a flood of dropped packets fills no table. IPv6
// blocks are looked up by their first address: a hash, where intervals would be a tree.
type kernel struct {
	o     *Options
	conn  *nftables.Conn
	table *nftables.Table
	set4  *nftables.Set
	set6  *nftables.Set
}

// perMessage is how many elements one message carries; it holds at most 64 KiB.
const perMessage = 512

func isGone(err error) bool { return errors.Is(err, unix.ENOENT) }

func (k *kernel) open(o *Options) error {
	k.o = o
	conn, err := nftables.New(nftables.WithNetNSFd(o.NetNS))
	if err != nil {
		return fmt.Errorf("ban: nftables: %w", err)
	}
	k.conn = conn
	there, err := k.there()
	if err := k.make(); err != nil {
		return err
	}
	if there && err == nil {
		k.o.Logf(
			"ban: the table inet %s was there already, and is made anew: an earlier run was killed, or another server of this "+
				"network namespace has it, whose banned addresses the kernel now lets through to be refused", k.o.Table)
	}
	return nil
}

// there reports whether there is a table of our name.
func (k *kernel) there() (bool, error) {
	tables, err := k.conn.ListTablesOfFamily(nftables.TableFamilyINet)
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == k.o.Table }), err
}

// make makes the table anew.
func (k *kernel) make() error {
	k.table = &nftables.Table{Name: k.o.Table, Family: nftables.TableFamilyINet}
	// One that is there goes; one that is not there cannot be deleted, and so is made first.
	k.conn.AddTable(k.table)
	k.conn.DelTable(k.table)
	k.conn.AddTable(k.table)
	k.set4 = &nftables.Set{Table: k.table, Name: "banned4", KeyType: nftables.TypeIPAddr, HasTimeout: true,
		Size: uint32(k.o.Max)}
	k.set6 = &nftables.Set{Table: k.table, Name: "banned6", KeyType: nftables.TypeIP6Addr, HasTimeout: true,
		Size: uint32(k.o.Max)}
	for _, set := range []*nftables.Set{k.set4, k.set6} {
		if err := k.conn.AddSet(set, nil); err != nil {
			return fmt.Errorf("ban: nftables: %w", err)
		}
	}
	accept := nftables.ChainPolicyAccept
	chain := k.conn.AddChain(&nftables.Chain{
		Name: "early", Table: k.table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRaw, Policy: &accept,
	})
	loopback := make([]byte, unix.IFNAMSIZ)
	copy(loopback, "lo")
	rule := func(exprs ...expr.Any) {
		k.conn.AddRule(&nftables.Rule{Table: k.table, Chain: chain, Exprs: exprs})
	}
	rule(
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: loopback},
		&expr.Verdict{Kind: expr.VerdictAccept},
	)
	rule(
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Lookup{SourceRegister: 1, SetName: k.set4.Name, SetID: k.set4.ID},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)
	mask := make([]byte, 16)
	for i := range k.o.IPv6Prefix {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	rule(
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV6}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 8, Len: 16},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 16, Mask: mask, Xor: make([]byte, 16)},
		&expr.Lookup{SourceRegister: 1, SetName: k.set6.Name, SetID: k.set6.ID},
		&expr.Counter{},
		&expr.Verdict{Kind: expr.VerdictDrop},
	)
	return k.flush()
}

// flush makes all that was asked for true at once, or nothing of it.
func (k *kernel) flush() error {
	err := k.conn.Flush()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES):
		return fmt.Errorf(
			"ban: nftables needs CAP_NET_ADMIN, which this process does not have: run it as root, give it the capability "+
				"(setcap cap_net_admin+ep, AmbientCapabilities=CAP_NET_ADMIN of systemd, --cap-add NET_ADMIN of a container), or leave nftables out of the rule's at: %w", err)
	case errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf(
			"ban: this kernel has no nftables for IPv4 and IPv6 (CONFIG_NF_TABLES, CONFIG_NF_TABLES_INET); leave nftables out of the rule's at: %w", err)
	}
	return fmt.Errorf("ban: nftables: %w", err)
}

// setOf returns the set and the element of a block.
func (k *kernel) setOf(p netip.Prefix) (*nftables.Set, nftables.SetElement) {
	if p.Addr().Is4() {
		return k.set4, nftables.SetElement{Key: p.Addr().AsSlice()}
	}
	return k.set6, nftables.SetElement{Key: p.Addr().AsSlice()}
}

// put adds entries, and replaces existing entries of the same blocks.
func (k *kernel) put(entries []Entry) error {
	for some := range slices.Chunk(entries, perMessage) {
		if err := k.putSome(some); err != nil {
			return err
		}
	}
	return nil
}

func (k *kernel) putSome(entries []Entry) error {
	// An entry that is there keeps its time, unless it goes first; one that is not there cannot go,
	// and so is put there first.
	for _, step := range []func(*nftables.Set, []nftables.SetElement) error{k.conn.SetAddElements,
		k.conn.SetDeleteElements, k.conn.SetAddElements} {
		var of4, of6 []nftables.SetElement
		for _, e := range entries {
			set, element := k.setOf(e.Block)
			element.Timeout = max(e.Left.Round(time.Millisecond), time.Millisecond)
			if set == k.set4 {
				of4 = append(of4, element)
			} else {
				of6 = append(of6, element)
			}
		}
		if len(of4) > 0 {
			if err := step(k.set4, of4); err != nil {
				return fmt.Errorf("ban: nftables: %w", err)
			}
		}
		if len(of6) > 0 {
			if err := step(k.set6, of6); err != nil {
				return fmt.Errorf("ban: nftables: %w", err)
			}
		}
	}
	return k.flush()
}

func (k *kernel) remove(p netip.Prefix) error {
	set, element := k.setOf(p)
	if err := k.conn.SetDeleteElements(set, []nftables.SetElement{element}); err != nil {
		return fmt.Errorf("ban: nftables: %w", err)
	}
	return k.flush()
}

func (k *kernel) list() ([]Entry, error) {
	var entries []Entry
	for _, set := range []*nftables.Set{k.set4, k.set6} {
		elements, err := k.conn.GetSetElements(set)
		if err != nil {
			if there, e := k.there(); e == nil && !there {
				err = unix.ENOENT // the library's error does not say so
			}
			return nil, fmt.Errorf("ban: nftables: %w", err)
		}
		for _, e := range elements {
			a, ok := netip.AddrFromSlice(e.Key)
			if !ok {
				continue
			}
			bits := 32
			if a.Is6() {
				bits = k.o.IPv6Prefix
			}
			entries = append(entries, Entry{netip.PrefixFrom(a, bits), e.Expires})
		}
	}
	return entries, nil
}

func (k *kernel) drop() error {
	k.conn.DelTable(k.table)
	return k.flush()
}
