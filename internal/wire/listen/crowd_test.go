package listen

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/util/clientip"
)

// dialFrom is dial from another address of this machine. It skips the test where there is none.
func dialFrom(t *testing.T, from, address string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", address)
	if err != nil && strings.Contains(err.Error(), "assign requested address") {
		t.Skip("this system has no other loopback addresses:", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(patience.End(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestCrowd: silent connections of some addresses, however many come, put out each other, and no
// client of another address in the middle of its handshake.
func TestCrowd(t *testing.T) {
	for _, flooders := range []int{1, 3, 12} {
		t.Run(fmt.Sprint(flooders), func(t *testing.T) {
			o, config := tlsOptions(t, Options{MaxPending: 40, SetupTimeout: time.Hour})
			address, l := serve(t, o)
			var clients []net.Conn
			come := 0
			connect := func(from string) net.Conn {
				c := dialFrom(t, from, address)
				come++
				eventually(t, "it is accepted",
					func() bool { s := l.Stats(); return s.Pending+int(s.Refused[Crowded]) == come })
				return c
			}
			flood := func(n int) {
				for i := range n {
					connect(fmt.Sprintf("127.1.0.%d", 1+i%flooders))
				}
			}
			flood(20)
			for i := range 10 {
				clients = append(clients, connect(fmt.Sprintf("127.2.0.%d", 1+i)))
			}
			flood(100)
			for i, c := range clients {
				if got, want := echo(t, tls.Client(c, config), "late"), c.LocalAddr().String()+" late"; got != want {
					t.Errorf("client %d: %q, want %q", i, got, want)
				}
			}
			if s := l.Stats(); s.Refused[Crowded] != 90 || s.Pending != 30 || s.Accepted != 10 {
				t.Errorf("got %+v", s)
			}
		})
	}
}

// TestCrowdBehindProxy: behind a proxy that names the clients it is these that are told apart, and
// who has many networks of IPv6 cannot use each once.
func TestCrowdBehindProxy(t *testing.T) {
	o, config := tlsOptions(t, Options{MaxPending: 10, SetupTimeout: time.Hour,
		Proxy: &ProxyPeers{Peers: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}})
	address, l := serve(t, o)
	come := uint64(0)
	connect := func(client string, i int) net.Conn {
		c := dial(t, address)
		if _, err := fmt.Fprintf(c, "PROXY TCP6 %s 2001:db8::1 %d 443\r\n", client, 1000+i); err != nil {
			t.Fatal(err)
		}
		come++
		eventually(t, "its header is read", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.mu.pending.made == 2*come // it was counted for the proxy, and then for the client
		})
		return c
	}
	client := connect("2001:db8:0:1::1", 0)
	for i := range 40 {
		connect(fmt.Sprintf("2001:db8:0:2::%x", i+1), i)
	}
	for i := range 40 {
		connect(fmt.Sprintf("2001:db8:1:%x::1", i), i)
	}
	if got := echo(t, tls.Client(client, config), "late"); got != "[2001:db8:0:1::1]:1000 late" {
		t.Errorf("got %q", got)
	}
}

// TestCrowdProperties: what goes first is the oldest of the address that has most, of equal ones in
// the network that has most, as a plain list has it.
func TestCrowdProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type member struct {
			s    *slot
			from netip.Addr
		}
		addresses := []netip.Addr{{}, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
			netip.MustParseAddr("192.0.3.1"), netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr(
				"64:ff9b::c000:301"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"),
			netip.MustParseAddr("2001:db8:0:1::1")}
		c := newCrowd()
		var list []member // oldest first
		drawn := func() int { return rapid.IntRange(0, len(list)-1).Draw(t, "which") }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				m := member{new(slot), rapid.SampledFrom(addresses).Draw(t, "from")}
				c.add(m.s, m.from)
				list = append(list, m)
			},
			"remove": func(t *rapid.T) {
				if len(list) > 0 {
					at := drawn()
					c.remove(list[at].s)
					c.remove(list[at].s)
					list = slices.Delete(list, at, at+1)
				}
			},
			"move": func(t *rapid.T) {
				if len(list) > 0 {
					at := drawn()
					m := member{list[at].s, rapid.SampledFrom(addresses).Draw(t, "to")}
					c.move(m.s, m.from)
					list = append(slices.Delete(list, at, at+1), m)
				}
			},
			"": func(t *rapid.T) {
				count, wider := map[netip.Addr]int{}, map[netip.Prefix]int{}
				for _, m := range list {
					count[clientip.Network(m.from)]++
					wider[networkOf(clientip.Network(m.from))]++
				}
				var want *slot
				most, network := 0, 0
				for _, m := range list {
					n, w := count[clientip.Network(m.from)], wider[networkOf(clientip.Network(m.from))]
					if n > most || n == most && w > network {
						want, most, network = m.s, n, w
					}
				}
				if got := c.first(); got != want {
					t.Errorf("the wrong one goes first")
				}
				if c.n != len(list) || len(c.all()) != len(list) || len(c.origins) != len(count) ||
					len(c.networks) != len(wider) {
					t.Errorf("%d, %d in all, of %d addresses; want %d of %d", c.n, len(c.all()), len(c.origins),
						len(list), len(count))
				}
			},
		})
	})
}
