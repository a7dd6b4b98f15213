package listen

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// buffer is a log that can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// serve answers each line with the peer's address and the line, on a free port, until the test
// ends.
func serve(t *testing.T, o Options) (address string, l *Listener) {
	t.Helper()
	raw, err := Open(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, raw, o)
}

func serveOn(t *testing.T, raw net.Listener, o Options) (address string, l *Listener) {
	t.Helper()
	l = New(raw, o)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("Accept: %v", err)
				}
				return
			}
			all.Go(func() {
				defer c.Close()
				lines := bufio.NewScanner(c)
				for lines.Scan() {
					if _, err := fmt.Fprintf(c, "%s %s\n", c.RemoteAddr(), lines.Text()); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return Text(l.Addr()), l
}

// dial connects, and closes at the end of the test. Reads and writes end after a minute at the
// latest.
func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	network := "tcp"
	if path, ok := strings.CutPrefix(address, unixScheme); ok {
		network, address = "unix", path
	}
	c, err := net.Dial(network, address)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(patience.End(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// echo sends text and returns the answer, "" if the connection is closed instead.
func echo(t *testing.T, c net.Conn, text string) string {
	t.Helper()
	_, _ = io.WriteString(c, text+"\n") // it may be closed already
	line, err := bufio.NewReader(c).ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("no answer to %q", text)
	}
	return strings.TrimSuffix(line, "\n")
}

func wantClosed(t *testing.T, what string, c net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s is not closed", what)
	}
}

var eventually = patience.Until

// TestFull: above the bound connections are closed at once; what is closed makes room.
func TestFull(t *testing.T) {
	var log buffer
	address, l := serve(t, Options{MaxConnections: 3, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var open []net.Conn
	for i := range 3 {
		c := dial(t, address)
		if got, want := echo(t, c, "a"), c.LocalAddr().String()+" a"; got != want {
			t.Errorf("connection %d: %q, want %q", i, got, want)
		}
		open = append(open, c)
	}
	for range 5 {
		wantClosed(t, "a connection too many", dial(t, address))
	}
	if got := echo(t, open[1], "b"); got == "" {
		t.Error("a connection that there was room for is closed")
	}
	_ = open[0].Close()
	eventually(t, "there is room", func() bool { return l.Stats().Open == 2 })
	if got := echo(t, dial(t, address), "c"); got == "" {
		t.Error("there is no room after one was closed")
	}
	if s := l.Stats(); s.Refused[Full] != 5 || s.Accepted != 4 {
		t.Errorf("got %+v", s)
	}
	if n := strings.Count(log.String(), "max_connections"); n != 1 {
		t.Errorf("told %d times:\n%s", n, &log)
	}
}

// TestPerAddress: one address cannot take all connections; our own proxies may.
func TestPerAddress(t *testing.T) {
	address, l := serve(t, Options{MaxPerAddress: 2})
	first, second := dial(t, address), dial(t, address)
	if echo(t, first, "a") == "" || echo(t, second, "a") == "" {
		t.Fatal("two are too many")
	}
	wantClosed(t, "the third connection", dial(t, address))
	_ = first.Close()
	eventually(t, "there is room", func() bool { return l.Stats().Open == 1 })
	if echo(t, dial(t, address), "b") == "" {
		t.Error("there is no room after one was closed")
	}
	if s := l.Stats(); s.Refused[PerAddress] != 1 {
		t.Errorf("got %+v", s)
	}

	address, _ = serve(t, Options{MaxPerAddress: 2, Exempt: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	for i := range 6 {
		if echo(t, dial(t, address), "a") == "" {
			t.Errorf("connection %d of an exempt address is closed", i)
		}
	}
}

// TestPerNetwork: an IPv6 /64 counts as one address.
func TestPerNetwork(t *testing.T) {
	l := New(nil, Options{MaxPerAddress: 2})
	for _, c := range []struct {
		address string
		want    bool
	}{
		{"2001:db8::1", true}, {"2001:db8::2", true}, {"2001:db8::ffff:3", false}, {"2001:db8:0:1::1", true}, {"192.0.2.1", true}, {"192.0.2.2", true},
		{"192.0.2.1", true}, {"192.0.2.1", false},
	} {
		if got := l.count(&slot{l: l}, netip.MustParseAddr(c.address)); got != c.want {
			t.Errorf("%s: %v", c.address, got)
		}
	}
}

// tlsOptions are a listener's options for TLS, and its clients'.
func tlsOptions(t *testing.T, o Options) (Options, *tls.Config) {
	t.Helper()
	ca := certtest.New(t, "test")
	names := []string{t.TempDir() + "/cert.pem", t.TempDir() + "/key.pem"}
	cert, key := ca.Issue("weir", 0, "127.0.0.1")
	certtest.Write(t, names, cert, key)
	c, err := LoadCertificates(CertificateFiles{Cert: names[:1], Key: names[1:]})
	if err != nil {
		t.Fatal(err)
	}
	o.TLS = c.Server([]string{"h2", "http/1.1"}, false)
	client := ca.Client("")
	client.ServerName = "127.0.0.1"
	return o, client
}

// TestSlowHandshakes: any number of connections that begin no handshake, or do not end it, hold
// nobody up, and are closed for those that come after them.
func TestSlowHandshakes(t *testing.T) {
	o, client := tlsOptions(t, Options{MaxPending: 10, MaxConnections: 40, SetupTimeout: time.Hour})
	address, l := serve(t, o)
	var slow []net.Conn
	for i := range 60 {
		c := dial(t, address)
		if _, err := io.WriteString(c, []string{"", "\x16", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"}[i%3]); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
		if i%6 == 0 {
			if got := echo(t, tls.Client(dial(t, address), client), "honest"); !strings.HasSuffix(got, " honest") {
				t.Fatalf("beside %d slow connections: %q", i, got)
			}
		}
	}
	eventually(t, "all have come in", func() bool { return l.Stats().Refused[Crowded] >= 50 })
	if s := l.Stats(); s.Pending > 10 || s.Open > 40 || s.Refused[Full] != 0 {
		t.Errorf("got %+v", s)
	}
	for i, c := range slow[:45] {
		wantClosed(t, fmt.Sprint("slow connection ", i), c)
	}

	// With all connections taken by such as have their handshake behind them, a slow one has no
	// place either.
	o.MaxConnections, o.MaxPending = 2, 2
	address, _ = serve(t, o)
	for range 2 {
		if echo(t, tls.Client(dial(t, address), client), "a") == "" {
			t.Fatal("no room")
		}
	}
	wantClosed(t, "one too many", dial(t, address))
}

// TestHandshakeTimeout: a handshake that takes too long is given up.
func TestHandshakeTimeout(t *testing.T) {
	o, _ := tlsOptions(t, Options{SetupTimeout: 20 * time.Millisecond})
	address, l := serve(t, o)
	wantClosed(t, "a slow connection", dial(t, address))
	eventually(t, "it is counted", func() bool { s := l.Stats(); return s.Refused[Handshake] == 1 && s.Open == 0 })
}

// TestPlainHTTP: a client that speaks plain HTTP to a door with TLS gets an answer that says so.
func TestPlainHTTP(t *testing.T) {
	o, _ := tlsOptions(t, Options{})
	address, _ := serve(t, o)
	c := dial(t, address)
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, _ := io.ReadAll(c); !strings.HasPrefix(string(b), "HTTP/1.0 400 ") || !strings.Contains(string(b), "https") {
		t.Errorf("got %q", b)
	}
}

// TestProxyProtocol: a listed peer names the client, no other peer may, and a connection without a
// header is refused.
func TestProxyProtocol(t *testing.T) {
	loopback := &ProxyPeers{Peers: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	address, l := serve(t, Options{Proxy: loopback, MaxPerAddress: 2})
	for _, c := range []struct{ header, want string }{
		{"PROXY TCP4 192.0.2.7 203.0.113.1 8080 443\r\n", "192.0.2.7:8080 hello"},
		{v2(0x21, 0x21, six, crc), "[2001:db8::7]:8080 hello"},
		{"", ""},
		{"GET / HTTP/1.1\r\n\r\n", ""},
		{"PROXY TCP4 192.0.2.7 203.0.113.1 8080\r\n", ""},
	} {
		if got := echo(t, dial(t, address), c.header+"hello"); got != c.want {
			t.Errorf("%.40q: got %q, want %q", c.header, got, c.want)
		}
	}
	for _, header := range []string{"PROXY UNKNOWN\r\n", v2(0x20, 0x00, nil), v2(0x21, 0x31, socket)} {
		c := dial(t, address)
		if got, want := echo(t, c, header+"hello"), c.LocalAddr().String()+" hello"; got != want {
			t.Errorf("%.40q: got %q, want %q", header, got, want)
		}
	}
	if s := l.Stats(); s.Refused[BadHeader] != 3 {
		t.Errorf("got %+v", s)
	}

	// The client's address is what is bounded, not the proxy's.
	var open []net.Conn
	for i, want := range []bool{true, true, false} {
		c := dial(t, address)
		if got := echo(t, c, "PROXY TCP4 198.51.100.1 203.0.113.1 1 2\r\nx"); (got != "") != want {
			t.Errorf("connection %d of an address: %q", i, got)
		}
		open = append(open, c)
	}
	if echo(t, dial(t, address), "PROXY TCP4 198.51.100.2 203.0.113.1 1 2\r\nx") == "" {
		t.Error("another address is closed, too")
	}
	_ = open

	// A header that dribbles in holds nobody up.
	slow := dial(t, address)
	if _, err := io.WriteString(slow, "PROXY TCP4 192.0.2.9 "); err != nil {
		t.Fatal(err)
	}
	if echo(t, dial(t, address), "PROXY TCP4 192.0.2.8 203.0.113.1 1 2\r\nx") == "" {
		t.Error("beside a slow header nobody is served")
	}
	if got := echo(t, slow, "203.0.113.1 1 2\r\nlate"); got != "192.0.2.9:1 late" {
		t.Errorf("a header in two parts: %q", got)
	}

	// From an address that is not listed nothing is read at all.
	var log buffer
	address, l = serve(t,
		Options{Proxy: &ProxyPeers{Peers: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, Unix: true},
			Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 3 {
		if got := echo(t, dial(t, address), "PROXY TCP4 192.0.2.7 203.0.113.1 8080 443\r\nhello"); got != "" {
			t.Errorf("a stranger got %q", got)
		}
	}
	if s := l.Stats(); s.Refused[Stranger] != 3 || s.Open != 0 {
		t.Errorf("got %+v", s)
	}
	if n := strings.Count(log.String(), "proxy_protocol.peers"); n != 1 {
		t.Errorf("told %d times:\n%s", n, &log)
	}
}

// TestProxyProtocolTLS: the header comes before the handshake.
func TestProxyProtocolTLS(t *testing.T) {
	o, client := tlsOptions(t,
		Options{Proxy: &ProxyPeers{Peers: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}})
	address, _ := serve(t, o)
	c := dial(t, address)
	if _, err := io.WriteString(c, "PROXY TCP4 192.0.2.7 203.0.113.1 8080 443\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := echo(t, tls.Client(c, client), "hello"); got != "192.0.2.7:8080 hello" {
		t.Errorf("got %q", got)
	}
	if got := echo(t, tls.Client(dial(t, address), client), "hello"); got != "" {
		t.Errorf("without a header: %q", got)
	}
}

// TestStall: a peer that takes nothing does not hold a writer for ever; a deadline that is set goes
// before the bound.
func TestStall(t *testing.T) {
	raw, err := Open(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := New(raw, Options{Stall: 20 * time.Millisecond})
	defer l.Close()
	accept := func() (server, client net.Conn) {
		client = dial(t, Text(l.Addr()))
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		return server, client
	}
	server, _ := accept()
	fill := make([]byte, 64<<20)
	if _, err := server.Write(fill); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("to a peer that takes nothing: %v", err)
	}
	server, client := accept()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	if err := server.SetWriteDeadline(patience.End(t)); err != nil {
		t.Fatal(err)
	}
	if n, err := server.Write(fill); err != nil || n != len(fill) {
		t.Errorf("with a deadline: %d %v", n, err)
	}
	server, _ = accept()
	_ = server.SetDeadline(time.Now().Add(time.Hour))
	_ = server.SetDeadline(time.Time{})
	if _, err := server.Write(fill); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a deadline was taken away: %v", err)
	}
}

// failing fails a few times before it accepts.
type failing struct {
	net.Listener
	errs chan error
}

func (f *failing) Accept() (net.Conn, error) {
	select {
	case err := <-f.errs:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	default:
		return f.Listener.Accept()
	}
}

// TestNoFiles: without free file descriptors, accepting resumes later, and slow connections are
// closed in favour of new ones.
func TestNoFiles(t *testing.T) {
	raw, err := Open(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &failing{raw, make(chan error, 2)}
	o, client := tlsOptions(t, Options{})
	address, l := serveOn(t, f, o)
	slow := dial(t, address)
	eventually(t, "it is pending", func() bool { return l.Stats().Pending == 1 })
	f.errs <- syscall.EMFILE
	f.errs <- syscall.ECONNABORTED
	if got := echo(t, tls.Client(dial(t, address), client), "a"); got == "" {
		// this one is accepted before the errors are met
		t.Fatal("no answer")
	}
	if got := echo(t, tls.Client(dial(t, address), client), "a"); got == "" {
		t.Error("accepting did not go on")
	}
	wantClosed(t, "the slow one", slow)
}

// TestAborted: a client that hangs up before it is accepted costs no other its place.
func TestAborted(t *testing.T) {
	raw, err := Open(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &failing{raw, make(chan error, 100)}
	o, client := tlsOptions(t, Options{SetupTimeout: time.Hour})
	address, l := serveOn(t, f, o)
	slow := dial(t, address)
	eventually(t, "it is pending", func() bool { return l.Stats().Pending == 1 })
	for range cap(f.errs) {
		f.errs <- syscall.ECONNABORTED
	}
	for range 2 { // the first may be accepted before the errors are met
		if got := echo(t, tls.Client(dial(t, address), client), "a"); got == "" {
			t.Fatal("no answer")
		}
	}
	if got := echo(t, tls.Client(slow, client), "a"); got == "" {
		t.Error("the slow one was closed")
	}
}

// TestClose: closing ends Accept and whatever is not ready; connections that were handed out go on.
func TestClose(t *testing.T) {
	o, client := tlsOptions(t, Options{SetupTimeout: time.Hour})
	address, l := serve(t, o)
	open, slow := tls.Client(dial(t, address), client), dial(t, address)
	if echo(t, open, "a") == "" {
		t.Fatal("no answer")
	}
	eventually(t, "it is pending", func() bool { return l.Stats().Pending == 1 })
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	wantClosed(t, "the one that is not ready", slow)
	if echo(t, open, "b") == "" {
		t.Error("a connection that was handed out is closed")
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	_ = l.Close()
	_ = open.Close()
	eventually(t, "all are gone", func() bool { return l.Stats().Open == 0 })
}

func TestClash(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{":8080", ":8080", true}, {":8080", "127.0.0.1:8080", true}, {"[::]:8080", "10.0.0.1:8080", true},
		{"0.0.0.0:8080", "localhost:08080", true}, {"127.0.0.1:80", "127.0.0.1:80", true},
		{"unix:/run/weir.sock", "unix:/run//weir.sock", true},
		{":8080", ":8081", false}, {":0", ":0", false}, {"127.0.0.1:80", "127.0.0.2:80", false},
		{"unix:/run/a.sock", "unix:/run/b.sock", false}, {"unix:/run/a.sock", ":80", false}, {"", "", false},
		{"", ":80", false},
	} {
		if got, back := Clash(c.a, c.b), Clash(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q and %q: %t, %t, want %t", c.a, c.b, got, back, c.want)
		}
	}
}

func TestCheckAddress(t *testing.T) {
	for s, want := range map[string]string{
		"127.0.0.1:8080": "", ":0": "", "[::1]:80": "", "unix:/run/weir.sock": "", "unix:weir.sock": "",
		"8080": "write host:port", "localhost": "write host:port", ":http": "from 0 to 65535", ":65536": "from 0 to 65535", "unix:": "path of the socket is missing",
		"unix:@weir": "abstract", "unix:/" + strings.Repeat("a", 200): "at most", "": "write host:port",
	} {
		err := CheckAddress(s)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", s, err, want)
		}
	}
}
