package cassandra

import (
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/cassandratest"
	"github.com/weir-rl/weir/internal/patience"
	"github.com/weir-rl/weir/store"
)

// cut breaks all connections of this process to a port, and returns how many there were.
func cut(t *testing.T, addr string) (n int) {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	const most = 1 << 12 // descriptors of this process
	for fd := range most {
		peer, err := syscall.Getpeername(fd)
		if err != nil {
			continue
		}
		if to, ok := peer.(*syscall.SockaddrInet4); ok && strconv.Itoa(to.Port) == port {
			if syscall.Shutdown(fd, syscall.SHUT_RDWR) == nil {
				n++
			}
		}
	}
	return n
}

// TestCut: two nodes decide on a few keys while all connections break again and again: each call is
// answered, and no key is admitted one unit more, or less, than its limit.
func TestCut(t *testing.T) {
	server := cassandratest.Shared(t)
	const clients, keys, limit = 8, 4, 100
	url := server.URL(server.Keyspace())
	c, err := counterOf(limit)
	if err != nil {
		t.Fatal(err)
	}
	var admitted [keys]atomic.Int64
	var answers, refused, done, failed atomic.Int64
	var all sync.WaitGroup
	for range 2 {
		s := openStore(t, Options{URL: url, Timeout: patience.Left(t) / 4})
		await(t, s)
		for client := range clients {
			all.Go(func() {
				defer done.Add(1)
				for i := client; refused.Load() < 5*keys; i++ {
					results := make([]algo.Result, 1)
					_, err := s.Take(t.Context(), []store.Charge{{
						Counter: c, Limit: c.Limit, Key: []byte(strconv.Itoa(i % keys)), Ask: algo.Ask{Cost: 1, MaxDelay: -1},
					}}, results)
					answers.Add(1)
					switch {
					case err != nil:
						failed.Add(1)
						t.Log(err)
					case results[0].Allowed:
						admitted[i%keys].Add(1)
					default:
						refused.Add(1)
					}
				}
			})
		}
	}
	for next := int64(50); next < keys*limit; next += 100 {
		patience.Until(t, "the nodes decide", func() bool { return answers.Load() >= next || done.Load() > 0 })
		if n := cut(t, server.Addr()); n == 0 {
			t.Error("there is no connection")
		}
	}
	all.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d calls failed", n)
	}
	for i := range admitted {
		if n := admitted[i].Load(); n != limit {
			t.Errorf("key %d: %d were admitted, and the limit is %d", i, n, limit)
		}
	}
}
