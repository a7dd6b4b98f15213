//go:build unix

package stores

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// yearly is a rule that no test outlives.
func yearly(n int) string {
	return fmt.Sprintf(
		"domain: default\nlimits: [{ name: yearly, per: [key], allow: %d/year, algorithm: sliding_log }]\n", n)
}

// servers starts built programs on a Redis, each knowing of all.
func servers(t *testing.T, n int, rules, url string, args ...string) []*servertest.Node {
	t.Helper()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "rules.yaml"), rules)
	var all []*servertest.Node
	for range n {
		p := servertest.Launch(t, servertest.BuildProgram(t), dir,
			append([]string{"serve", "--rules=rules.yaml", "--store=" + url,
				fmt.Sprint("--nodes=", n)}, args...)...)
		all = append(all, servertest.NodeOf(t, p.Stderr, p.Addr))
	}
	for _, n := range all {
		n.AwaitBack() // should a slow start have tripped it
		n.AwaitNodes(len(all))
	}
	return all
}

// TestSlowRedis: an answer of Redis that comes late admits nothing that Redis has said is gone,
// whether it is waited for or not.
func TestSlowRedis(t *testing.T) {
	t.Parallel()
	effort.Long(t, "drives several built programs")
	waits20 := []string{"--store-max-deadline=20ms"}
	for name, test := range map[string]struct {
		args   []string
		pause  time.Duration
		missed bool // that it is not waited for is certain
	}{
		"waited for":     {nil, 25 * time.Millisecond, false},
		"not waited for": {nil, 3 * time.Second, true}, // longer than by default at most
		"waiting 20 ms":  {waits20, 25 * time.Millisecond, false},
		"only 20 ms":     {waits20, 3 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			n := servers(t, 1, yearly(2), redis.URL(), test.args...)[0]
			got := []int{n.Ask("key=k"), n.Ask("key=k")}
			for range 4 {
				got = append(got, n.Paused(redis, test.pause, "key=k"))
			}
			if test.missed && n.Number("weir_store_deadline_misses_total") == 0 {
				t.Error("Redis was waited for")
			}
			if fmt.Sprint(got) != "[200 200 429 429 429 429]" {
				t.Errorf("a limit of 2 answered %v", got)
			}
			if _, excess, _ := n.Fates(); excess != 0 {
				t.Errorf("an excess of %d", excess)
			}
		})
	}
}

// TestSlowRedisAndMemory: what a node refuses from memory does not make it forget what Redis has
// said of the request's other keys.
func TestSlowRedisAndMemory(t *testing.T) {
	t.Parallel()
	effort.Long(t, "drives several built programs")
	redis := redistest.Start(t)
	n := servers(t, 1, `
domain: default
limits:
  - { name: user, per: [user], allow: 1/year, algorithm: sliding_log }
  - { name: addr, per: [addr], allow: 2/year, algorithm: sliding_log }
`, redis.URL(), "--store-max-deadline=20ms")[0]
	if n.Ask("user=a&addr=1") != 200 || n.Ask("user=b&addr=1") != 200 {
		t.Fatal("an address may ask twice")
	}
	for try := 0; ; try++ {
		// on a machine that is slow enough a refusal is forgotten before it is used
		user := fmt.Sprint("user=", try)
		n.Ask(fmt.Sprintf("%s&addr=of+%d", user, try))
		n.Ask(fmt.Sprintf("%s&addr=of+%d", user, try))
		before := n.Number("weir_redis_remembered_refusals_total")
		n.Ask(user + "&addr=1")
		if n.Number("weir_redis_remembered_refusals_total") > before {
			break
		}
		if try == 100 {
			t.Fatal("nothing is refused from memory")
		}
	}
	for _, user := range []string{"c", "d"} {
		if got := n.Paused(redis, 200*time.Millisecond, "user="+user+"&addr=1"); got != 429 {
			t.Errorf("an address that Redis has said may not ask any more: %d", got)
		}
	}
	if _, excess, _ := n.Fates(); excess != 0 {
		t.Errorf("an excess of %d", excess)
	}
}

// TestExcessIsTold: what a node admits on its share of a key that it has never heard of, and that
// others have used up, is in the metrics, in the log and in /readyz, though the breaker stays
// closed.
func TestExcessIsTold(t *testing.T) {
	t.Parallel()
	effort.Long(t, "drives several built programs")
	redis := redistest.Start(t)
	nodes := servers(t, 2, yearly(2), redis.URL(), "--store-max-deadline=20ms")
	n := nodes[1]
	trips := n.Number("weir_store_breaker_trips_total") // a slow start may have tripped it
	for try := 0; ; try++ {
		key := fmt.Sprint("key=", try)
		// On a busy machine answers may be late here too, or a pause be over before it is asked.
		if nodes[0].Admitted(4, key) == 2 && n.Paused(redis, 200*time.Millisecond, key) == 200 {
			break
		}
		if try == 100 {
			t.Fatal("no answer was late")
		}
	}
	servertest.Eventually(t, "the late answer has come", func() bool { _, _, open := n.Fates(); return open == 0 })
	sum, excess, _ := n.Fates()
	if rule := n.Metric(`weir_store_excess_units_total{domain="default",rule="yearly"}`); excess != 1 || sum != 1 ||
		rule != "1" {
		t.Errorf("of %d units %d are excess, of the rule %s; want 1, 1 and 1", sum, excess, rule)
	}
	if n.Number("weir_store_breaker_trips_total") != trips {
		t.Error("the breaker has opened")
	}
	n.Log.Await(t, `level=WARN .*more was admitted than the limit.* domain=default rule=yearly units=1 since=\S+`)
	servertest.Eventually(t, "/readyz speaks of it", func() bool {
		_, body := n.Readyz()
		return strings.Contains(body, "ok, 1 beyond the limit of yearly admitted since ")
	})
}

// TestNoUnitVanishes: what was admitted while Redis was away is settled, excess or lost, every
// unit.
func TestNoUnitVanishes(t *testing.T) {
	t.Parallel()
	effort.Long(t, "drives several built programs")
	redis := redistest.Start(t)
	nodes := servers(t, 2, yearly(4), redis.URL())
	redis.Kill()
	for i, n := range nodes {
		if got := n.Admitted(3, "key=k"); got != 2 {
			t.Errorf("node %d admitted %d, its share is 2", i, got)
		}
	}
	redis.Restart()
	for i, n := range nodes {
		// It may have taken a question or two to see that Redis is away, or none to see that it is
		// back.
		servertest.Eventually(t, "nothing is open", func() bool {
			_, body := n.Readyz()
			_, _, open := n.Fates()
			return body == "ok\n" && open == 0
		})
		if sum, excess, _ := n.Fates(); sum != 2 || excess != 0 {
			t.Errorf("node %d: %d of 2 units are accounted for, %d of them as excess", i, sum, excess)
		}
	}
}

// The hammer: 4 processes, 64 clients, each algorithm and each door, and more calls than the limit
// admits.
const (
	hammerNodes   = 4
	hammerClients = 64
	hammerSize    = 50 // the limit
)

func hammerRules(size int) string {
	text := "domain: doors\nlimits:\n"
	for _, r := range [][2]string{
		{"fixed", "algorithm: fixed_window"}, {"window", "algorithm: sliding_window"}, {"log", "algorithm: sliding_log"},
		{"bucket", "algorithm: token_bucket"}, {"queue", "algorithm: leaky_bucket"},
		{"margin", "algorithm: token_bucket, throttle: {soft: {over: 50%, for: 1h}}"},
	} {
		text += fmt.Sprintf(
			"  - {name: %s, when: {path: /%s/**}, per: [door, path], allow: {rate: %d/year, burst: %d}, %s}\n", r[0], r[0], size, size, r[1])
	}
	text = strings.ReplaceAll(text, fmt.Sprintf("{rate: %d/year, burst: %d}, algorithm: fixed", size, size),
		fmt.Sprintf("%d/year, algorithm: fixed", size))
	text = strings.ReplaceAll(text, fmt.Sprintf("{rate: %d/year, burst: %d}, algorithm: sliding", size, size),
		fmt.Sprintf("%d/year, algorithm: sliding", size))
	return text +
		fmt.Sprintf(
			"  - {name: slots, when: {path: /slots/**}, per: [door, path], allow: %d concurrent, timeout: 1h}\n", size)
}

// TestHammer: nothing is admitted beyond a limit that four servers enforce together. They wait for
// Redis however slow this machine is.
func TestHammer(t *testing.T) {
	t.Parallel()
	effort.Long(t, "drives several built programs")
	h := startHammer(t, redistest.Start(t), hammerSize, servertest.Patient...)
	h.round()
	t.Log(h.told())
	if h.over() > 0 {
		t.Errorf("%d were admitted beyond limits", h.over())
	}
}

type hammer struct {
	t      *testing.T
	size   int
	calls  int
	nodes  []*servertest.Node
	doors  [][]servertest.Doorway // by node
	counts map[hammered]*hammerCount
	order  []hammered
	rounds int
}

// hammered is what a round does one by one.
type hammered struct{ algorithm, door string }

type hammerCount struct{ rounds, over, most int }

func startHammer(t *testing.T, redis *redistest.Server, size int, args ...string) *hammer {
	t.Helper()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	h := &hammer{t: t, size: size, calls: 2 * size, counts: map[hammered]*hammerCount{}}
	args = append([]string{"--listen-proxy=127.0.0.1:0", "--proxy-upstream=" + upstream.URL,
		"--identity=door=header:X-Door",
		"--client-ip-trusted-proxies=127.0.0.0/8", "--listen-spoe=127.0.0.1:0"}, args...)
	h.nodes = servers(t, hammerNodes, hammerRules(h.size), redis.URL(), args...)
	for _, n := range h.nodes {
		addr := func(door string) string { return n.Log.Await(t, `door=`+door+` addr=(\S+)`)[1] }
		h.doors = append(h.doors, []servertest.Doorway{
			servertest.HttpDoor(addr("http")), servertest.RlsDoor(t, addr("grpc")),
			servertest.RespDoor(t, addr("resp")), servertest.ForwardedDoor(addr("http")),
			servertest.ProxyDoor(addr("proxy")), servertest.HaproxyDoor(t, addr("spoe"),
				upstream.Listener.Addr().String()),
		})
	}
	for _, algorithm := range []string{"fixed", "window", "log", "bucket", "queue", "margin", "slots"} {
		for _, d := range h.doors[0] {
			if algorithm == "queue" && !d.Tells || algorithm == "slots" && d.Frees {
				continue // it does not let anybody wait that long, or gives slots back
			}
			h.order = append(h.order, hammered{algorithm, d.Name})
		}
	}
	return h
}

// round hammers on a key of its own of each algorithm at each door.
func (h *hammer) round() {
	h.rounds++
	for _, k := range h.order {
		path := fmt.Sprintf("/%s/%d", k.algorithm, h.rounds)
		var admitted, calls atomic.Int64
		var all sync.WaitGroup
		for i := range hammerClients {
			door := h.doors[i%hammerNodes]
			for _, d := range door {
				if d.Name != k.door {
					continue
				}
				all.Go(func() {
					for calls.Add(1) <= int64(h.calls) {
						if d.Ask(h.t, path).Allowed {
							admitted.Add(1)
						}
					}
				})
			}
		}
		all.Wait()
		c := h.counts[k]
		if c == nil {
			c = &hammerCount{}
			h.counts[k] = c
		}
		limit := h.limit(k)
		c.rounds++
		c.most = max(c.most, int(admitted.Load()))
		over := max(0, int(admitted.Load())-limit)
		c.over += over
		if int(admitted.Load()) < limit && k.algorithm != "slots" {
			h.t.Logf("%v: %d of %d", k, admitted.Load(), limit)
		}
	}
}

// limit is how many of a round may be admitted.
func (h *hammer) limit(k hammered) int {
	switch k.algorithm {
	case "queue":
		return h.size + 1 // the one that is served
	case "margin":
		return h.size + h.size/2
	}
	return h.size
}

func (h *hammer) over() (n int) {
	for _, c := range h.counts {
		n += c.over
	}
	return n
}

// told is a table of the results.
func (h *hammer) told() string {
	var b strings.Builder
	for _, k := range h.order {
		c := h.counts[k]
		fmt.Fprintf(&b, "%-8s %-10s %3d times %d of %d calls: most %d, beyond the limit %d\n",
			k.algorithm, k.door, c.rounds, h.size, h.calls, c.most, c.over)
	}
	for i, n := range h.nodes {
		_, _, body := servertest.Get(h.t, n.Admin+"/metrics")
		for _, line := range regexp.MustCompile(
			`(?m)^weir_store_(fallback|deadline|breaker_trips|excess).*$`).FindAllString(body, -1) {
			fmt.Fprintf(&b, "server %d: %s\n", i, line)
		}
	}
	return b.String()
}
