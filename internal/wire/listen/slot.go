package listen

import (
	"net"
	"net/netip"

	"github.com/weir-rl/weir/internal/util/clientip"
)

// slot is the place of a connection among those that a listener counts. The listener's mu guards
// it.
type slot struct {
	l       *Listener
	conn    net.Conn   // closed to crowd it out
	address netip.Addr // the address under which it is counted; the zero Addr for none
	gone    bool

	// While it is pending; see crowd.
	origin     *origin // nil for one that is not pending
	age        uint64  // less is older
	prev, next *slot   // of the same origin
}

// admit gives raw a place, or closes it and returns nil.
func (l *Listener) admit(raw net.Conn) net.Conn {
	s := &slot{l: l}
	c := wrap(raw, s, l.o.Stall)
	s.conn = raw
	peer := c.RemoteAddr()
	from := addressOf(peer)
	address := from
	if l.o.Proxy != nil {
		if !l.o.Proxy.allow(peer, from) {
			l.refuse(Stranger, peer, nil)
			_ = raw.Close()
			return nil
		}
		address = netip.Addr{} // the address in the header counts
	}
	work := l.o.TLS != nil || l.o.Proxy != nil
	crowded, reason := l.place(s, address, from, work)
	if crowded != nil {
		l.crowd(crowded)
	}
	if reason != Reasons {
		l.refuse(reason, peer, nil)
		_ = raw.Close()
		return nil
	}
	if !work {
		l.accepted.Add(1)
	}
	return c
}

// place counts s under address, and as pending one of from if there is work to do. If it returns a
// connection, that one has been crowded out and must be closed. r says why s has no place; it is
// Reasons if s has one.
func (l *Listener) place(s *slot, address, from netip.Addr, work bool) (crowded *slot, r Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.count(s, address) {
		return nil, PerAddress
	}
	full := l.mu.open >= l.o.MaxConnections
	if full && l.mu.pending.n == 0 {
		l.uncount(s)
		return nil, Full
	}
	if full || work && l.mu.pending.n >= l.o.MaxPending {
		crowded = l.mu.pending.first()
		l.drop(crowded)
	}
	l.mu.open++
	if work {
		l.mu.pending.add(s, from)
	}
	return crowded, Reasons
}

// allow reports whether peer may send PROXY protocol headers.
func (p *ProxyPeers) allow(peer net.Addr, address netip.Addr) bool {
	if !address.IsValid() {
		return p.Unix && peer == UnixPeer
	}
	return contains(p.Peers, address)
}

// crowdOut closes the pending connection that has to go first, if there is one.
func (l *Listener) crowdOut() {
	l.mu.Lock()
	s := l.mu.pending.first()
	if s != nil {
		l.drop(s)
	}
	l.mu.Unlock()
	if s != nil {
		l.crowd(s)
	}
}

func (l *Listener) crowd(s *slot) {
	l.refuse(Crowded, s.conn.RemoteAddr(), nil)
	_ = s.conn.Close()
}

// count counts s under address; it returns false if that has too many. It needs l.mu.
func (l *Listener) count(s *slot, address netip.Addr) bool {
	if l.o.MaxPerAddress <= 0 || !address.IsValid() || contains(l.o.Exempt, address) {
		return true
	}
	address = clientip.Network(address)
	if l.mu.addresses[address] >= l.o.MaxPerAddress {
		return false
	}
	l.mu.addresses[address]++
	s.address = address
	return true
}

// drop gives the place of s away. It needs l.mu.
func (l *Listener) drop(s *slot) {
	if s.gone {
		return
	}
	s.gone = true
	l.mu.pending.remove(s)
	l.mu.open--
	l.uncount(s)
}

// uncount undoes count. It needs l.mu.
func (l *Listener) uncount(s *slot) {
	if !s.address.IsValid() {
		return
	}
	if l.mu.addresses[s.address]--; l.mu.addresses[s.address] == 0 {
		delete(l.mu.addresses, s.address)
	}
	s.address = netip.Addr{}
}

// release is called when the connection is closed, once or more.
func (s *slot) release() {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.drop(s)
}

// settle counts s under address, now that it is known. It returns false if that has too many
// connections.
func (s *slot) settle(address netip.Addr) bool {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.mu.pending.move(s, address)
	return s.gone || s.l.count(s, address)
}

// done removes s from the pending ones; it returns false if s has been crowded out, or the listener
// is closed.
func (s *slot) done() bool {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.gone || s.l.mu.closed {
		return false
	}
	s.l.mu.pending.remove(s)
	return true
}

// addressOf returns the address of a peer, as clientip.Addr has it; the zero Addr if it has none.
func addressOf(a net.Addr) netip.Addr {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return clientip.Addr(tcp.AddrPort().Addr())
	}
	p, err := netip.ParseAddrPort(a.String())
	if err != nil || a.Network() == "unix" {
		return netip.Addr{}
	}
	return clientip.Addr(p.Addr())
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Client returns the address under which a connection from peer is counted, as by
// Options.MaxPerAddress; the zero Addr if it has none, or is exempt.
func Client(peer net.Addr, exempt []netip.Prefix) netip.Addr {
	address := addressOf(peer)
	if !address.IsValid() || contains(exempt, address) {
		return netip.Addr{}
	}
	return clientip.Network(address)
}
