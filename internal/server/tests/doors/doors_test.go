package doors

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/testkit/servertest"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// doorRules has each kind of throttling under a path of its own, with a counter for each door.
const doorRules = `
domain: doors
limits:
  - {name: hard, when: {path: /hard}, per: [door], allow: 10/year, algorithm: sliding_log}
  - {name: soft, when: {path: /soft}, per: [door], allow: 10/year, algorithm: sliding_log, throttle: {soft: 20%}}
  - {name: soft-for, when: {path: /soft-for}, per: [door], allow: 10/year, algorithm: token_bucket, throttle: {soft: {over: 20%, for: 1h}}}
  - {name: elastic, when: {path: /elastic}, per: [door], allow: 10/year, algorithm: sliding_log, throttle: {elastic: {signal: load, curve: {50%: 200%, 80%: 100%}}}}
  - {name: schedule, when: {path: /schedule}, per: [door], allow: 10/year, algorithm: sliding_log, schedule: [{between: "00:00-24:00", allow: 4/year}]}
  - {name: shadow, when: {path: /shadow}, per: [door], allow: 1/year, algorithm: sliding_log, on_limit: shadow}
  - {name: slots, when: {path: /slots}, per: [door], allow: 1 concurrent}
  - {name: wait, when: {path: /wait}, per: [door], allow: {rate: 20/s, burst: 10}, algorithm: leaky_bucket, on_limit: {wait: 30s}}
  - {name: queue, when: {path: /queue}, per: [door], allow: {rate: 1/hour, burst: 10}, algorithm: leaky_bucket, on_limit: {wait: 2h}}
  - {name: defer, when: {path: /defer}, per: [door], allow: 2/year, algorithm: sliding_log, on_limit: {defer: later}}
  - {name: ban, when: {path: /ban}, per: [door], allow: 2/year, algorithm: sliding_log, ban: {after: 3, within: 1h, for: 2h}}
  - {name: cost, when: {path: /cost}, per: [door], allow: 10/year, algorithm: sliding_log, cost: 5}
`

// TestDoors takes each kind of throttling through each door.
func TestDoors(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), doorRules)
	p := servertest.Start(t, "serve", "--rules="+dir, "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL,
		"--identity=door=header:X-Door",
		"--defer-path="+filepath.Join(dir, "deferred.db"), "--rls-response-headers=true", "--client-ip-trusted-proxies=127.0.0.0/8", "--listen-spoe=127.0.0.1:0")
	admin := "http://" + p.Addr("admin")
	push := func() {
		r, _ := http.NewRequest(http.MethodPut, admin+"/api/v1/signals/load",
			strings.NewReader(`{"value": 65, "ttl": 600}`))
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != 204 {
			t.Fatal(answer.Status)
		}
	}
	servertest.Eventually(t, "the signal is in force", func() bool {
		push()
		_, _, body := servertest.Get(t, admin+"/api/v1/signals/load")
		return strings.Contains(body, `"value": 65`)
	})
	doors := []servertest.Doorway{
		servertest.HttpDoor(p.Addr("http")), servertest.RlsDoor(t, p.Addr("grpc")),
		servertest.ProxyDoor(p.Addr("proxy")), servertest.RespDoor(t,
			p.Addr("resp")), servertest.ForwardedDoor(p.Addr("http")),
	}
	if _, err := exec.LookPath("haproxy"); err == nil {
		doors = append(doors, servertest.HaproxyDoor(t, p.Addr("spoe"), upstream.Listener.Addr().String()))
	} else {
		t.Run("haproxy", func(t *testing.T) { servertest.Needs(t, "haproxy") })
	}
	ofServer := len(doors)
	doors = append(doors, middlewares(t)...)
	for _, d := range doors {
		t.Run(d.Name, func(t *testing.T) {
			count := func(path string, n int) (allowed, marked, deferred int) {
				t.Helper()
				for range n {
					a := d.Ask(t, path)
					if a.Allowed {
						allowed++
					}
					if a.Marked {
						marked++
					}
					if a.Deferred {
						deferred++
					}
				}
				return allowed, marked, deferred
			}
			is := func(path string, n, allowed, marked, deferred int) {
				t.Helper()
				if d.Unmarked {
					marked = 0
				}
				if a, m, q := count(path, n); a != allowed || m != marked || q != deferred {
					t.Errorf(
						"%s: of %d requests %d were admitted, %d of them marked, and %d deferred; want %d, %d and %d", path, n, a, m, q, allowed, marked, deferred)
				}
			}
			is("/hard", 12, 10, 0, 0)
			is("/soft", 14, 12, 2, 0)
			is("/soft-for", 14, 12, 2, 0)
			is("/elastic", 17, 15, 0, 0)
			is("/schedule", 6, 4, 0, 0)
			is("/shadow", 5, 5, 0, 0)
			is("/cost", 4, 2, 0, 0)
			if d.Frees {
				is("/slots", 3, 3, 0, 0)
			} else {
				is("/slots", 3, 1, 0, 0)
			}
			// A client that is told the wait, or is refused for it, must not be so slow that the
			// wait is over: it is an hour where nobody waits that long.
			queue := "/queue"
			if d.Holds {
				queue = "/wait"
			}
			first, second := d.Ask(t, queue), d.Ask(t, queue)
			if !first.Allowed || second.Allowed != (d.Holds || d.Tells) || second.Delayed != d.Tells {
				t.Errorf("%s: %+v, %+v", queue, first, second)
			}
			if d.Defers {
				is("/defer", 4, 2, 0, 2)
			} else {
				is("/defer", 4, 2, 0, 0)
			}
			is("/ban", 10, 2, 0, 0)
		})
	}
	// Each door of the server has a key of its own.
	var bans struct{ Bans []weir.Ban }
	_, _, body := servertest.Get(t, admin+"/api/v1/bans")
	if err := json.Unmarshal([]byte(body), &bans); err != nil || len(bans.Bans) != ofServer {
		t.Errorf("%v: bans are %s", err, body)
	}
	// A ban by hand that holds everywhere in the domain: where no rule is met, too.
	for _, b := range bans.Bans {
		if status, said := servertest.Ask(t, http.DefaultClient, "POST", admin+"/api/v1/bans",
			fmt.Sprintf(`{"limit": "hard", "key": [%q], "for": "1h", "scope": "domain"}`, b.Key[0]), "Content-Type",
			"application/json"); status != 200 {
			t.Fatalf("%d %s", status, said)
		}
	}
	for _, d := range doors[:ofServer] {
		if d.Ask(t, "/elsewhere").Allowed {
			t.Errorf("%s: a ban does not hold everywhere in the domain", d.Name)
		}
	}
	p.End()
}

// middlewares are the doors of Go programs.
func middlewares(t *testing.T) []servertest.Doorway {
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(doorRules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	l, err := weir.New(store, weir.WithRules(set), weir.WithSignals(levels{"load": 65}))
	if err != nil {
		t.Fatal(err)
	}
	identity, err := httplimit.ParseIdentity(map[string]string{"door": "header:X-Door"}, "")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New(l, httplimit.Options{Identity: identity})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	t.Cleanup(s.Close)
	gate, err := grpclimit.New(l, grpclimit.Options{Identity: map[string]string{"door": "x-door"}})
	if err != nil {
		t.Fatal(err)
	}
	inGRPC := servertest.Doorway{Name: "grpclimit", Holds: true, Frees: true, Unmarked: true,
		Ask: func(t *testing.T, path string) servertest.Answered {
			t.Helper()
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-door", "grpclimit"))
			_, err := gate.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: path},
				func(context.Context, any) (any, error) { return nil, nil })
			if err != nil && status.Code(err) != codes.ResourceExhausted {
				t.Fatal(err)
			}
			return servertest.Answered{Allowed: err == nil}
		}}
	inHTTP := servertest.OfHTTP("httplimit", servertest.Below(s.URL))
	inHTTP.Holds, inHTTP.Frees = true, true
	return []servertest.Doorway{inHTTP, inGRPC}
}
