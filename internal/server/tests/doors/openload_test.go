package doors

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/openload"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// Each door is asked as often as is said, and what it allows is what the rules do.
func TestOpenLoad(t *testing.T) {
	dir := t.TempDir()
	servertest.WriteRules(t, dir+"/rules.yaml",
		"domain: shop\nlimits: [{ name: once, when: { path: /search }, per: [user], allow: 3/year, algorithm: sliding_log }]\n")
	upstream := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer upstream.Close()
	w := servertest.Start(t, "serve", "--rules", dir, "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL,
		"--identity=user=header:X-User")
	defer w.End()
	load := func(target openload.Target, o openload.Options) *openload.Result {
		t.Helper()
		askers, closed, err := target.Open(o.Callers)
		if err != nil {
			t.Fatal(err)
		}
		defer closed()
		r, err := openload.Run(t.Context(), &o, askers, nil)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// 400 requests of 100 keys: each key is asked for four times, and the counters are the same at
	// all doors, except for the commands that bring their limit. On a machine that is too busy to
	// send all of them in time, the next door finds less used up.
	search := [][2]string{{"path", "/search"}}
	late, admitted := false, int64(0)
	for i, c := range []struct {
		target           openload.Target
		allowed, refused int64
		shared           bool // the counters
	}{
		{openload.Target{URL: "http://" + w.Addr("http"), Domain: "shop", Key: "user", Attributes: search}, 300, 100, true},
		{openload.Target{URL: "grpc://" + w.Addr("grpc"), Domain: "shop", Key: "user", Attributes: search, Connections: 2}, 0, 400, true},
		{openload.Target{URL: "redis://" + w.Addr("resp"), Domain: "shop", Key: "user", Attributes: search}, 0, 400, true},
		{openload.Target{URL: "redis://" + w.Addr("resp"), Door: openload.Throttle, Key: "user", Throttle: [3]int64{1, 1, 100_000}}, 200, 200, false},
		{openload.Target{URL: "http://" + w.Addr("proxy") + "/search", Door: openload.Proxy, Key: "X-User"}, 0, 400, true},
		{openload.Target{URL: "http://" + w.Addr("proxy") + "/other", Door: openload.Proxy, Key: "X-User", Header: http.Header{"X-More": {"1"}}}, 400, 0, false},
	} {
		r := load(c.target, openload.Options{Rate: 2000, For: 200 * time.Millisecond, Callers: 64, Keys: 100,
			Draw: openload.InTurn, Seed: 1})
		if r.Unsent > 0 {
			t.Logf("%d: this machine is busy: %d were not sent", i, r.Unsent)
			late = true
		}
		if r.Answered()+r.Unsent != 400 {
			t.Errorf("%d: %d decided and %d not sent, of 400", i, r.Answered(), r.Unsent)
		}
		if c.shared {
			admitted += r.Allowed
		}
		if late && admitted > 300 {
			t.Errorf("%d: %d allowed, of 300", i, admitted)
		} else if !late && (r.Allowed != c.allowed || r.Refused != c.refused) {
			t.Errorf("%d: %d allowed, %d refused; want %d and %d", i, r.Allowed, r.Refused, c.allowed, c.refused)
		}
		p50, p99 := r.Latency.Quantile(0.5), r.Latency.Quantile(0.99)
		if r.Failed > 0 || r.Answered() > 0 && (p50 <= 0 || p50 > p99) {
			t.Errorf("%d: %d failed (%v); half took no longer than %v, 99 %% than %v", i, r.Failed, r.Failure, p50, p99)
		}
	}
	length := 100 * time.Millisecond
	patience.Until(t, "something is answered", func() bool {
		r := load(openload.Target{URL: "http://" + w.Addr("http"), Domain: "shop", Key: "user"},
			openload.Options{For: length, Callers: 4, Keys: 10_000, Draw: openload.Uniform, Seed: 1})
		length *= 2
		if r.Refused != 0 {
			t.Errorf("%d refused", r.Refused)
		}
		return r.Answered() > 0
	})
}
