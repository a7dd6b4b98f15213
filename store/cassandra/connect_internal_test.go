package cassandra

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/cassandratest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/store"
)

func openStore(t testing.TB, o Options) *Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// take takes one unit, and returns how many are left.
func take(t testing.TB, s *Store, key string) (int64, error) {
	t.Helper()
	c, err := counterOf(100)
	if err != nil {
		t.Fatal(err)
	}
	results := make([]algo.Result, 1)
	_, err = s.Take(t.Context(),
		[]store.Charge{{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: 1, MaxDelay: -1}}}, results)
	return results[0].Remaining, err
}

// await waits until the store decides, and returns how many units are left.
func await(t testing.TB, s *Store) (left int64) {
	t.Helper()
	patience.Until(t, "the store decides", func() bool {
		var err error
		if left, err = take(t, s, "key"); err != nil && !errors.Is(err, store.ErrNotCharged) {
			t.Fatal(err)
		}
		return err == nil
	})
	return left
}

// TestConnect: the keyspace and the tables are made, by several nodes at once; TLS, a password in a
// file, and LOCAL_SERIAL.
func TestConnect(t *testing.T) {
	server := cassandratest.Shared(t)
	keyspace := server.Keyspace() + "_own"
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(cassandratest.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := "cassandra://" + cassandratest.User + "@" + server.Addr() + "/" + keyspace +
		"?replicas=1&consistency=LOCAL_SERIAL&local_dc=dc1&password_file=" + file + "&ca=" + server.CA()
	left := int64(100)
	var stores []*Store
	for range 2 {
		stores = append(stores, openStore(t, Options{URL: url, Heartbeat: 100 * time.Millisecond}))
	}
	for _, s := range stores {
		if got := await(t, s); got != left-1 {
			t.Errorf("%d are left, want %d", got, left-1)
		}
		left--
		patience.Until(t, "it knows of both nodes", func() bool { return s.Nodes() == 2 })
		if now, ok := s.Now(); !ok || time.Since(time.UnixMicro(now)).Abs() > time.Minute {
			t.Errorf("the clock is %v, %v", time.UnixMicro(now), ok)
		}
	}
	if err := stores[1].Close(); err != nil {
		t.Fatal(err)
	}
	patience.Until(t, "the other node has left", func() bool { return stores[0].Nodes() == 1 })
}

// TestLeaves: a node that is closed says so, before its heartbeats are over.
func TestLeaves(t *testing.T) {
	server := cassandratest.Shared(t)
	url := server.URL(server.Keyspace())
	a := openStore(t, Options{URL: url, Timeout: time.Minute})
	b := openStore(t, Options{URL: url, Timeout: time.Minute, Heartbeat: time.Hour})
	await(t, a)
	nodes := func() (n int64) {
		c := a.engine.connection.Load()
		if err := c.session.Query(c.countNodes, allNodes).ScanContext(t.Context(), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	patience.Until(t, "there is a heartbeat", func() bool { return nodes() == 1 })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if n := nodes(); n != 0 {
		t.Errorf("the node is closed, and still counts as alive")
	}
}

// TestCloseWhileConnecting: a store that is closed waits for no server that takes connections and
// says nothing, however long it was to wait for an answer.
func TestCloseWhileConnecting(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, err := Open(Options{URL: "cassandra://" + silent.Addr().String() + "/weir", Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	c, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err != nil { // it has asked
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestConnectErrors: what is wrong is said, once, and as the error of each call.
func TestConnectErrors(t *testing.T) {
	server := cassandratest.Shared(t)
	keyspace := server.Keyspace()
	port, reserved, err := testproc.Reserve(false)
	if err != nil {
		t.Fatal(err)
	}
	defer testproc.Release(reserved)
	for name, test := range map[string]struct{ url, want string }{
		"nobody is there":      {"cassandra://" + testproc.Loopback(port) + "/weir", "it cannot be reached"},
		"another password":     {strings.Replace(server.URL(keyspace), ":cassandra@", ":secret@", 1), "incorrect"},
		"no keyspace":          {server.URL("nowhere"), "write replicas=3"},
		"an unknown CA":        {server.URL(keyspace) + "?tls=true", "certificate"},
		"several data centres": {server.URL("system_auth") + "?consistency=LOCAL_SERIAL&local_dc=dc1", "lies in the data centre dc1 alone"},
	} {
		t.Run(name, func(t *testing.T) {
			var warnings atomic.Int64
			s := openStore(t, Options{URL: test.url, Timeout: 10 * time.Second,
				Logger: slog.New(slog.NewTextHandler(counting{&warnings}, nil))})
			patience.Until(t, "the error says what is wrong", func() bool {
				_, err := take(t, s, "key")
				if err == nil || !errors.Is(err, store.ErrNotCharged) || strings.Contains(err.Error(), "secret") {
					t.Fatal(err)
				}
				return strings.Contains(err.Error(), test.want) && !strings.Contains(err.Error(), errConnecting.Error())
			})
			patience.Until(t, "the log says it too", func() bool { return warnings.Load() > 0 }) // the error is there first
			if n := warnings.Load(); n != 1 {
				t.Errorf("%d warnings", n)
			}
		})
	}
}

type counting struct{ n *atomic.Int64 }

func (c counting) Write(p []byte) (int, error) {
	c.n.Add(1)
	return len(p), nil
}
