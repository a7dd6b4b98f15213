package nftables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// world is a goroutine in a network namespace of its own, as long as the test runs.
type world struct {
	thread int
	work   chan func()
}

// newWorld makes a namespace; it skips the test where that cannot be.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{work: make(chan func())}
	made := make(chan error)
	go func() {
		// for good: the thread ends with the goroutine, and the namespace with it
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- err
			return
		}
		w.thread = unix.Gettid()
		made <- nil
		for f := range w.work {
			f()
		}
	}()
	if err := <-made; err != nil {
		t.Skipf("no network namespace can be made here (that needs root): %v", err)
	}
	t.Cleanup(func() { close(w.work) })
	return w
}

// do runs f in the namespace.
func (w *world) do(f func()) {
	done := make(chan struct{})
	w.work <- func() { defer close(done); f() }
	<-done
}

// ip runs a command of iproute2 in the namespace.
func (w *world) ip(t *testing.T, command string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(command, args...)
	var out []byte
	var err error
	w.do(func() { out, err = exec.Command("ip", strings.Fields(line)...).CombinedOutput() })
	if err != nil {
		t.Fatalf("ip %s: %v: %s", line, err, out)
	}
}

// table makes a table in the namespace; it skips the test where the kernel has none.
func (w *world) table(t *testing.T, o Options) *Table {
	t.Helper()
	var table *Table
	var err error
	w.do(func() { table, err = New(o) })
	if err != nil {
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT) ||
			errors.Is(err, unix.EOPNOTSUPP) {
			t.Skipf("this kernel cannot do it: %v", err)
		}
		t.Fatal(err)
	}
	return table
}

// connected makes two namespaces with a cable between: a server with 10.77.0.1 and fd77::1, and
// clients.
func connected(t *testing.T, clients ...string) (server, client *world) {
	t.Helper()
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("ip is not installed; on Debian: apt-get install iproute2")
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		t.Skip("this kernel has no IPv6")
	}
	server, client = newWorld(t), newWorld(t)
	server.ip(t, "link add weir0 type veth peer name weir1")
	server.ip(t, "link set weir1 netns %d", client.thread)
	server.ip(t, "addr add 10.77.0.1/16 dev weir0")
	server.ip(t, "addr add fd77::1/32 dev weir0 nodad")
	for _, c := range clients {
		flags := ""
		if strings.Contains(c, ":") {
			flags = " nodad"
		}
		client.ip(t, "addr add %s dev weir1%s", c, flags)
	}
	for w, link := range map[*world]string{server: "weir0", client: "weir1"} {
		w.ip(t, "link set lo up")
		w.ip(t, "link set %s up", link)
	}
	return server, client
}

// listen opens a port in the server's namespace, and returns where.
func listen(t *testing.T, server *world) (port int) {
	t.Helper()
	var l net.Listener
	var err error
	server.do(func() { l, err = net.Listen("tcp", "[::]:0") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// dial connects from an address of the client's to the server within a time.
func dial(client *world, from, to string, port int, within time.Duration) (err error) {
	client.do(func() {
		d := net.Dialer{Timeout: within, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		var c net.Conn
		if c, err = d.DialContext(context.Background(), "tcp", net.JoinHostPort(to, fmt.Sprint(port))); err == nil {
			_ = c.Close()
		}
	})
	return err
}

func TestNFTablesDropsPackets(t *testing.T) {
	server, client := connected(t, "10.77.0.2/16", "10.77.0.3/16", "fd77:0:1:1::2/32", "fd77:0:1:1::3/32",
		"fd77:0:1:2::2/32")
	port := listen(t, server)
	table := server.table(t, Options{Never: []netip.Prefix{netip.MustParsePrefix("10.77.9.0/24")}})
	in := func(f func() error) (err error) { server.do(func() { err = f() }); return err }
	add := func(block string, d time.Duration) error {
		return in(func() error {
			p, err := table.Block(block)
			if err != nil {
				return err
			}
			return table.Add(p, d)
		})
	}
	passes := func(from string) {
		t.Helper()
		to := "10.77.0.1"
		if strings.Contains(from, ":") {
			to = "fd77::1"
		}
		if err := dial(client, from, to, port, patience.Left(t)); err != nil {
			t.Errorf("%s does not get through: %v", from, err)
		}
	}
	dropped := func(from string) {
		t.Helper()
		to := "10.77.0.1"
		if strings.Contains(from, ":") {
			to = "fd77::1"
		}
		err := dial(client, from, to, port, 100*time.Millisecond)
		if e, ok := errors.AsType[net.Error](err); !ok || !e.Timeout() {
			t.Errorf("%s was not left without an answer: %v", from, err)
		}
	}
	everybody := []string{"10.77.0.2", "10.77.0.3", "fd77:0:1:1::2", "fd77:0:1:1::3", "fd77:0:1:2::2"}
	for _, from := range everybody {
		passes(from)
	}
	if err := add("10.77.0.2", time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := add("fd77:0:1:1::/64", time.Hour); err != nil {
		t.Fatal(err)
	}
	dropped("10.77.0.2")
	passes("10.77.0.3")
	dropped("fd77:0:1:1::2") // and its neighbour in the block
	dropped("fd77:0:1:1::3")
	passes("fd77:0:1:2::2")
	var entries []Entry
	if err := in(func() (err error) { entries, err = table.List(); return err }); err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if e.Left <= 50*time.Minute || e.Left > time.Hour {
			t.Errorf("%+v", e)
		}
	}
	if n := table.Stats().Entries; n != 2 {
		t.Errorf("%d entries", n)
	}

	// They pass again after the time, which Add does not shorten.
	if err := add("10.77.0.2", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	dropped("10.77.0.2")
	v4, v6 := netip.MustParsePrefix("10.77.0.2/32"), netip.MustParsePrefix("fd77:0:1:1::/64")
	if err := in(func() error {
		return table.Sync([]Entry{{v4, 100 * time.Millisecond}, {v6, time.Hour}, {v6, time.Second}})
	}); err != nil {
		t.Fatal(err)
	}
	// The kernel sends again only after a second what was dropped.
	patience.Until(t, "10.77.0.2 gets through", func() bool {
		return dial(client, "10.77.0.2", "10.77.0.1", port, 200*time.Millisecond) == nil
	})
	dropped("fd77:0:1:1::2")
	// Again, though the kernel may hold what is over.
	if err := add("10.77.0.2", time.Hour); err != nil {
		t.Fatal(err)
	}
	dropped("10.77.0.2")
	if err := in(func() error { return table.Remove(v6) }); err != nil {
		t.Fatal(err)
	}
	if err := in(func() error { return table.Remove(v6) }); err != nil {
		t.Errorf("what is not banned: %v", err)
	}
	passes("fd77:0:1:1::2")
	if err := in(func() error { return table.Sync(nil) }); err != nil {
		t.Fatal(err)
	}
	for _, from := range everybody {
		passes(from)
	}

	// What is never banned.
	for _, block := range []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "10.77.0.1", "fd77::1",
		"10.77.9.9", "169.254.1.1", "fe80::1", "224.0.0.1", "ff02::1", "0.0.0.0"} {
		err := add(block, time.Hour)
		if _, ok := errors.AsType[*SparedError](err); !ok {
			t.Errorf("%s: %v", block, err)
		}
	}
	if s := table.Stats(); s.Spared != 12 || s.Failed != 0 || s.Entries != 0 {
		t.Errorf("%+v", s)
	}
	for _, block := range []string{"", "localhost", "10.0.0.0/8", "2001:db8::/32", "2001:db8::1/128"} {
		if err := add(block, time.Hour); err == nil {
			t.Errorf("%q was taken", block)
		}
	}
	if err := in(table.Close); err != nil {
		t.Fatal(err)
	}
	if err := in(table.Close); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := add("10.77.0.2", time.Hour); err == nil {
		t.Error("a closed table bans")
	}
	if names := tables(t, server); len(names) != 0 {
		t.Errorf("left are %q", names)
	}
}

// tables are the names of those in a namespace.
func tables(t *testing.T, w *world) []string {
	t.Helper()
	var names []string
	w.do(func() {
		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		list, err := c.ListTables()
		if err != nil {
			t.Error(err)
		}
		for _, table := range list {
			names = append(names, table.Name)
		}
	})
	return names
}

// Somebody may delete the table, and another run may have left one.
func TestNFTablesTable(t *testing.T) {
	w := newWorld(t)
	var told []string
	logf := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	table := w.table(t, Options{Table: "other", Keep: true, Max: 3, Logf: logf})
	if len(told) != 0 {
		t.Errorf("where no table was: %q", told)
	}
	p := func(i int) netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32) }
	w.do(func() {
		for i := range 3 {
			if err := table.Add(p(i), time.Hour); err != nil {
				t.Error(err)
			}
		}
		if err := table.Add(p(9), time.Hour); err == nil {
			t.Error("a fourth entry of three was taken")
		}
		if s := table.Stats(); s.Entries != 3 || s.Failed != 1 {
			t.Errorf("%+v", s)
		}
		if err := table.Remove(p(2)); err != nil {
			t.Error(err)
		}
		c, err := nftables.New()
		if err != nil {
			t.Error(err)
			return
		}
		c.DelTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		if err := table.Add(p(5), time.Hour); err != nil {
			t.Error(err)
		}
		if list, err := table.List(); err != nil || len(list) != 3 {
			t.Errorf("the table that was made again holds %v, %v", list, err)
		}
		c.DelTable(&nftables.Table{Name: "other", Family: nftables.TableFamilyINet})
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
		if err := table.Sync([]Entry{{p(7), time.Hour}}); err != nil {
			t.Error(err)
		}
		if list, err := table.List(); err != nil || len(list) != 1 || list[0].Block != p(7) {
			t.Errorf("after Sync there are %v, %v", list, err)
		}
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	if names := tables(t, w); !slices.Equal(names, []string{"other"}) {
		t.Errorf("kept are %q", names)
	}
	again := w.table(t, Options{Table: "other", Logf: logf})
	if len(told) != 1 || !strings.Contains(told[0], "the table inet other was there already") {
		t.Errorf("where one was: %q", told)
	}
	w.do(func() {
		if list, err := again.List(); err != nil || len(list) != 0 {
			t.Errorf("a new table holds %v, %v", list, err)
		}
		var many []Entry
		for i := range 5000 {
			many = append(many, Entry{netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32),
				time.Hour})
		}
		if err := again.Sync(many); err != nil {
			t.Error(err)
		}
		if list, err := again.List(); err != nil || len(list) != 5000 {
			t.Errorf("%d of 5000 entries, %v", len(list), err)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Without the capability New says what is missing.
func TestNFTablesWithoutCapability(t *testing.T) {
	w := newWorld(t)
	w.do(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		// Of this thread alone, which ends with the test.
		if _, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0); errno != 0 {
			t.Errorf("capset: %v", errno)
			return
		}
		if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "needs CAP_NET_ADMIN") {
			t.Errorf("got %v", err)
		}
	})
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{IPv6Prefix: 129}, {IPv6Prefix: -1}, {Max: -1}} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), "IPv6Prefix") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
