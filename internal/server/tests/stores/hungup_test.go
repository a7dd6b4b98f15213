//go:build unix

package stores

import (
	"fmt"
	"net"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// A client that hangs up while the store is asked is no error of the store, and is not admitted
// without it.
func TestHungUpIsNoStoreError(t *testing.T) {
	redis := redistest.Start(t)
	dir := servertest.InFolder(t, "limits: [{ name: api, per: [user], allow: 9/day, on_store_error: allow }]\n")
	p := servertest.Start(t, "serve", "--rules="+dir+"/rules.yaml", "--store="+redis.URL(), "--store-deadline=1h",
		"--store-max-deadline=1h", "--store-timeout=1h")
	n := servertest.NodeOf(t, p.Stderr, p.Addr)
	n.AwaitBack()
	if status := n.Ask("user=ada"); status != 200 {
		t.Fatal(status)
	}
	redis.Pause()
	defer redis.Resume()
	before := n.Number(`weir_connections_accepted_total{door="http"}`)
	const clients = 5
	for i := range clients {
		conn, err := net.Dial("tcp", p.Addr("http"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "GET /api/v1/limit?user=ada%d HTTP/1.1\r\nHost: localhost\r\n\r\n", i); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	servertest.Eventually(t, "all of them are gone", func() bool {
		return n.Number(`weir_connections_accepted_total{door="http"}`) == before+clients &&
			n.Number(`weir_connections{door="http"}`) <= 1
	})
	if got := n.Metric("weir_store_errors_total"); got != "0" {
		t.Errorf("%s errors of the store are counted", got)
	}
	if got := n.Metric(`weir_requests_total{domain="default",door="http",outcome="allowed"}`); got != "1" {
		t.Errorf("%s are admitted, of which the store was asked for one", got)
	}
}
