//go:build linux

package stores

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// limitsOfTests are small enough for a busy machine. Of units, 300 may come at once, and 10 in each
// second.
var limitsOfTests = quotaLimits{
	units: algo.Config{Algorithm: algo.TokenBucket, N: 300, Window: 30 * time.Second},
	pace:  algo.Config{Algorithm: algo.TokenBucket, N: 20, Window: time.Second},
}

// paceExtra is what all doors may let through beyond a limit whose rate is assigned: what comes in
// while an assignment is on its way, and a second. On a busy machine that may take long; here it
// has 5 s.
func paceExtra(c algo.Config) int64 {
	const way = 5 * time.Second
	return int64(0.9 * (time.Second + way).Seconds() * float64(c.N) / c.Window.Seconds())
}

// TestQuotas: requests that two Envoys let through under the assignments of two Weirs obey the
// limits, together with other doors' requests, and units that one Envoy does not need another one
// gets.
func TestQuotas(t *testing.T) {
	t.Parallel()
	b := newQuotaBed(t, 2, limitsOfTests)
	first, second := b.startEnvoy(b.ports[0], b.ports[1]), b.startEnvoy(b.ports[1], b.ports[0])
	began := time.Now()
	even := []*flow{first.load(t, "units", "even", 30), second.load(t, "units", "even", 30)}
	paced := []*flow{first.load(t, "pace", "paced", 30), second.load(t, "pace", "paced", 30)}
	mixed, byRLS := first.load(t, "units", "mixed", 30), b.loadRLS(1, "units", "mixed", 30)
	before := first.load(t, "units", "moving", 60)
	servertest.Eventually(t, "all of the tenant that moves that may come at once has come",
		func() bool { return before.since(began) >= 300 })
	moved := time.Now()
	asked := before.stop()
	after := second.load(t, "units", "moving", 60)
	servertest.Eventually(t, "what comes back is let through", func() bool {
		return even[0].since(began)+even[1].since(began) >= 300 && even[0].since(moved)+even[1].since(moved) >= 100 &&
			paced[0].since(moved)+paced[1].since(moved) >= 200 && after.since(moved.Add(10*time.Second)) >= 50 &&
			mixed.since(began) > 0 && byRLS.since(began) > 0 && mixed.since(began)+byRLS.since(began) >= 300
	})
	ended := time.Now()
	seconds := ended.Sub(moved).Seconds()

	one, other := first.admitted(t, "even", even[0].stop()), second.admitted(t, "even", even[1].stop())
	all := b.obeys("units", "even", 0, one, other)
	t.Logf("even: %d and %d, %d of %.0f since the move: %d and %d", len(one), len(other), between(all, moved, ended),
		10*seconds, between(one, moved, ended), between(other, moved, ended))

	all = b.obeys("pace", "paced", paceExtra(b.limits["pace"]), first.admitted(t, "paced", paced[0].stop()),
		second.admitted(t, "paced", paced[1].stop()))
	t.Logf("paced: %d in all, %d of %.0f since the move", len(all), between(all, moved, ended), 20*seconds)

	envoys, answered := first.admitted(t, "mixed", mixed.stop()), byRLS.stop()
	all = b.obeys("units", "mixed", 0, envoys, byRLS.admitted)
	t.Logf("mixed: %d by Envoy and %d of %d by RLS", len(envoys), len(byRLS.admitted), answered)
	if len(envoys) == 0 || len(byRLS.admitted) == 0 || len(all) < 300 {
		t.Errorf("mixed: %d were let through by Envoy and %d by RLS", len(envoys), len(byRLS.admitted))
	}

	now := second.admitted(t, "moving", after.stop())
	all = b.obeys("units", "moving", 0, first.admitted(t, "moving", asked), now)
	late := between(now, moved.Add(10*time.Second), ended)
	t.Logf("moving: %d in all, %d by the second Envoy, %d of %.0f from 10 s after the move on", len(all), len(now),
		late, 10*(seconds-10))

	if over := b.metric("weir_rlqs_over_units_total", `limit="units"`); over != 0 {
		t.Errorf("%v units were reported that nobody had paid", over)
	}
	// One that broke off, as after a pause of this machine, is opened again.
	servertest.Eventually(t, "each Envoy has one stream", func() bool { return b.metric("weir_rlqs_streams") == 2 })
	testQuotaPushes(t, b, first)
}

// testQuotaPushes: what an operator orders is in force at Envoy before its next report.
func testQuotaPushes(t *testing.T, b *quotaBed, e *quotaEnvoy) {
	c := new(http.Client)
	ask := func(plan, tenant string) bool {
		ok, err := e.ask(c, plan, tenant)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	admin := "http://" + b.weirs[1].Addr("admin")
	// A limit that is never reached, and a demand that is known.
	free := 0
	servertest.Eventually(t, "the tenant has units in plenty", func() bool {
		if !ask("large", "banned") {
			free = 0
			return false
		}
		free++
		return free >= 150
	})
	var ban, lift pushed
	for !ban.seen || !lift.seen {
		ban.change(b, "a ban", func() {
			send(t, http.MethodPost, admin+"/api/v1/bans",
				`{"domain": "edge", "limit": "large", "key": ["banned"], "for": "1h"}`)
		}, func() bool { return !ask("large", "banned") })
		lift.change(b, "the end of a ban", func() {
			send(t, http.MethodDelete, admin+"/api/v1/bans", `{"domain": "edge", "limit": "large", "key": ["banned"]}`)
		}, func() bool { return ask("large", "banned") })
	}

	// A tenant that has used up its limit, of which nothing comes back, gets more by a reset or a
	// grant at another node.
	var reset, grant pushed
	for i := 0; !reset.seen || !grant.seen; i++ {
		for what, more := range map[string]func(tenant string){
			"reset": func(tenant string) {
				send(t, http.MethodDelete, admin+"/api/v1/keys",
					`{"domain": "edge", "limit": "daily", "key": ["`+tenant+`"], "reason": "test"}`)
			},
			"grant": func(tenant string) {
				send(t, http.MethodPost, admin+"/api/v1/grants",
					`{"domain": "edge", "limit": "daily", "key": ["`+tenant+`"], "allow": "100000/day", "for": "1h"}`)
			},
		} {
			tenant := fmt.Sprint(what, i)
			if ok, err := b.rls(1)(t.Context(), "daily", tenant, 60); err != nil || !ok {
				t.Fatalf("the limit cannot be used up: %v, %v", ok, err)
			}
			for range 3 {
				if ask("daily", tenant) {
					t.Error("more was let through than there is")
				}
			}
			seen := map[string]*pushed{"reset": &reset, "grant": &grant}[what]
			seen.change(b, "a "+what, func() { more(tenant) }, func() bool { return ask("daily", tenant) })
		}
	}
}

// pushed is a kind of change of which it is to be seen that it comes to Envoy by itself. Without
// that it would come with the answer to a report; on a busy machine it may come after one anyway,
// and is then made again.
type pushed struct {
	seen bool
	end  time.Time // of the patience with it
}

// change makes one and waits until it is in force. It is seen if no report came meanwhile.
func (p *pushed) change(b *quotaBed, what string, make func(), inForce func() bool) {
	b.t.Helper()
	if p.end.IsZero() {
		p.end = patience.End(b.t)
	}
	reports := func() float64 { return b.metric("weir_rlqs_reported_total") }
	before, begun := reports(), time.Now()
	make()
	servertest.Eventually(b.t, what+" is in force", inForce)
	took := time.Since(begun)
	p.seen = p.seen || reports() == before
	b.t.Logf("%s: in force after %v", what, took)
	if !p.seen && !p.end.IsZero() && time.Now().After(p.end) {
		b.t.Fatalf("%s comes with a report each time", what)
	}
}

// send sends JSON to the admin API, which must take it.
func send(t *testing.T, method, url, body string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode >= 300 {
		t.Fatalf("%s %s: %s\n%s", method, url, answer.Status, text)
	}
}
