package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/rueidis"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/httplimit"
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

// answered is what a door said to one request.
type answered struct {
	allowed, marked, deferred bool
	delayed                   bool // told to wait
}

// door asks for a path once.
type doorway struct {
	name string
	ask  func(t *testing.T, path string) answered
	// holds: a request waits for its turn here. tells: the answer names the wait. frees: a slot is
	// given back when the request is over. defers: a request may be put off.
	holds, tells, frees, defers bool
	unmarked                    bool // the door has no way to mark an answer
}

// TestDoors takes each kind of throttling through each door.
func TestDoors(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	dir := t.TempDir()
	writeRules(t, filepath.Join(dir, "rules.yaml"), doorRules)
	p := startServer(t, "serve", "--rules="+dir, "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL, "--identity=door=header:X-Door",
		"--defer-path="+filepath.Join(dir, "deferred.db"), "--rls-response-headers=true", "--client-ip-trusted-proxies=127.0.0.0/8", "--listen-spoe=127.0.0.1:0")
	admin := "http://" + p.addr("admin")
	push := func() {
		r, _ := http.NewRequest(http.MethodPut, admin+"/api/v1/signals/load", strings.NewReader(`{"value": 65, "ttl": 600}`))
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
	eventually(t, "the signal is in force", func() bool {
		push()
		_, _, body := get(t, admin+"/api/v1/signals/load")
		return strings.Contains(body, `"value": 65`)
	})
	doors := []doorway{
		httpDoor(p.addr("http")), rlsDoor(t, p.addr("grpc")), proxyDoor(p.addr("proxy")), respDoor(t, p.addr("resp")), forwardedDoor(p.addr("http")),
	}
	if _, err := exec.LookPath("haproxy"); err == nil {
		doors = append(doors, haproxyDoor(t, p.addr("spoe"), upstream.Listener.Addr().String()))
	} else {
		t.Run("haproxy", func(t *testing.T) { needs(t, "haproxy") })
	}
	ofServer := len(doors)
	doors = append(doors, middlewares(t)...)
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			count := func(path string, n int) (allowed, marked, deferred int) {
				t.Helper()
				for range n {
					a := d.ask(t, path)
					if a.allowed {
						allowed++
					}
					if a.marked {
						marked++
					}
					if a.deferred {
						deferred++
					}
				}
				return allowed, marked, deferred
			}
			is := func(path string, n, allowed, marked, deferred int) {
				t.Helper()
				if d.unmarked {
					marked = 0
				}
				if a, m, q := count(path, n); a != allowed || m != marked || q != deferred {
					t.Errorf("%s: of %d requests %d were admitted, %d of them marked, and %d deferred; want %d, %d and %d", path, n, a, m, q, allowed, marked, deferred)
				}
			}
			is("/hard", 12, 10, 0, 0)
			is("/soft", 14, 12, 2, 0)
			is("/soft-for", 14, 12, 2, 0)
			is("/elastic", 17, 15, 0, 0)
			is("/schedule", 6, 4, 0, 0)
			is("/shadow", 5, 5, 0, 0)
			is("/cost", 4, 2, 0, 0)
			if d.frees {
				is("/slots", 3, 3, 0, 0)
			} else {
				is("/slots", 3, 1, 0, 0)
			}
			// A client that is told the wait, or is refused for it, must not be so slow that the
			// wait is over: it is an hour where nobody waits that long.
			queue := "/queue"
			if d.holds {
				queue = "/wait"
			}
			first, second := d.ask(t, queue), d.ask(t, queue)
			if !first.allowed || second.allowed != (d.holds || d.tells) || second.delayed != d.tells {
				t.Errorf("%s: %+v, %+v", queue, first, second)
			}
			if d.defers {
				is("/defer", 4, 2, 0, 2)
			} else {
				is("/defer", 4, 2, 0, 0)
			}
			is("/ban", 10, 2, 0, 0)
		})
	}
	// Each door of the server has a key of its own.
	var bans struct{ Bans []weir.Ban }
	_, _, body := get(t, admin+"/api/v1/bans")
	if err := json.Unmarshal([]byte(body), &bans); err != nil || len(bans.Bans) != ofServer {
		t.Errorf("%v: bans are %s", err, body)
	}
	p.end()
}

func httpDoor(addr string) doorway {
	return doorway{name: "http", tells: true, ask: func(t *testing.T, path string) answered {
		t.Helper()
		answer, err := http.Post("http://"+addr+"/api/v1/limit", "application/json",
			strings.NewReader(fmt.Sprintf(`{"domain": "doors", "attributes": {"path": %q, "door": "http"}}`, path)))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		var d struct {
			Allowed bool
			Limits  []struct {
				SoftExceeded bool `json:"soft_exceeded"`
				Delay        float64
			}
		}
		if err := json.NewDecoder(answer.Body).Decode(&d); err != nil || d.Allowed != (answer.StatusCode == 200) {
			t.Fatal(answer.Status, err)
		}
		a := answered{allowed: d.Allowed}
		for _, l := range d.Limits {
			a.marked = a.marked || l.SoftExceeded
			a.delayed = a.delayed || l.Delay > 0
		}
		return a
	}}
}

func rlsDoor(t *testing.T, addr string) doorway {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := rls.NewRateLimitServiceClient(conn)
	return doorway{name: "rls", ask: func(t *testing.T, path string) answered {
		t.Helper()
		answer, err := client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "doors", Descriptors: []*rlspb.RateLimitDescriptor{{
			Entries: []*rlspb.RateLimitDescriptor_Entry{{Key: "path", Value: path}, {Key: "door", Value: "rls"}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		a := answered{allowed: answer.OverallCode == rls.RateLimitResponse_OK}
		for _, h := range answer.ResponseHeadersToAdd {
			a.marked = a.marked || strings.EqualFold(h.Key, "x-ratelimit-soft")
		}
		return a
	}}
}

func respDoor(t *testing.T, addr string) doorway {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return doorway{name: "resp", unmarked: true, ask: func(t *testing.T, path string) answered {
		t.Helper()
		answer, err := client.Do(t.Context(), client.B().Arbitrary("WEIR.LIMIT", "doors", "1", "path", path, "door", "resp").Build()).ToArray()
		if err != nil || len(answer) != 6 {
			t.Fatal(answer, err)
		}
		allowed, err := answer[0].AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		return answered{allowed: allowed == 1}
	}}
}

// forwardedDoor is asked as Caddy and Traefik ask.
func forwardedDoor(addr string) doorway {
	return ofHTTP("forwarded", func(path string) *http.Request {
		r, _ := http.NewRequest(http.MethodGet, "http://"+addr+"/api/v1/forward-auth/forwarded", nil)
		for name, value := range map[string]string{"Method": "GET", "Uri": path, "Host": "example.com", "For": "192.0.2.1"} {
			r.Header.Set("X-Forwarded-"+name, value)
		}
		return r
	})
}

// haproxyDoor is a real HAProxy in front.
func haproxyDoor(t *testing.T, agent, upstream string) doorway {
	return ofHTTP("haproxy", below("http://"+startHAProxy(t, agent, upstream)))
}

// ofHTTP is a door that HTTP requests come through.
func ofHTTP(name string, request func(path string) *http.Request) doorway {
	return doorway{name: name, ask: func(t *testing.T, path string) answered {
		t.Helper()
		r := request(path)
		r.Header.Set("X-Door", name)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		switch answer.StatusCode {
		case 200, 202, 429:
		default:
			t.Fatalf("%s: %s", path, answer.Status)
		}
		return answered{allowed: answer.StatusCode == 200, marked: answer.Header.Get("X-RateLimit-Soft") == "exceeded", deferred: answer.StatusCode == 202}
	}}
}

// below makes requests for paths below a URL.
func below(base string) func(path string) *http.Request {
	return func(path string) *http.Request {
		r, _ := http.NewRequest(http.MethodGet, base+path, nil)
		return r
	}
}

func proxyDoor(addr string) doorway {
	d := ofHTTP("proxy", below("http://"+addr))
	d.holds, d.frees, d.defers = true, true, true
	return d
}

// middlewares are the doors of Go programs.
func middlewares(t *testing.T) []doorway {
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
	inGRPC := doorway{name: "grpclimit", holds: true, frees: true, unmarked: true, ask: func(t *testing.T, path string) answered {
		t.Helper()
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-door", "grpclimit"))
		_, err := gate.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: path}, func(context.Context, any) (any, error) { return nil, nil })
		if err != nil && status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
		return answered{allowed: err == nil}
	}}
	inHTTP := ofHTTP("httplimit", below(s.URL))
	inHTTP.holds, inHTTP.frees = true, true
	return []doorway{inHTTP, inGRPC}
}
