//go:build linux

package stores

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/envoytest"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// quotaBed is some Weirs that share a Redis, and Envoys that they assign quotas to. Tenants are
// told apart by plan: "units" and "pace" are the two limits of testdata/rlqs/rules.
type quotaBed struct {
	t       *testing.T
	program string
	dir     string
	redis   *redistest.Server
	ports   []string // of the Weirs' gRPC doors
	weirs   []*servertest.Process
	envoys  []*quotaEnvoy
	proxy   *redistest.FaultProxy // before the first Weir's gRPC door, for the first Envoy; nil if there is none
	limits  map[string]algo.Config
	flags   []string // of the Weirs, beside those that all have
}

// quotaEnvoy is one of the Envoys.
type quotaEnvoy struct {
	*envoytest.Envoy
	url, log string
}

// quotaLimits are the limits of a bed: N in a window, for both plans.
type quotaLimits struct{ units, pace algo.Config }

// newQuotaBed starts Redis and n Weirs.
func newQuotaBed(t *testing.T, n int, l quotaLimits) *quotaBed {
	t.Helper()
	effort.Long(t, "Envoy reports every five seconds")
	envoytest.Program(t)
	b := &quotaBed{t: t, program: servertest.BuildProgram(t), dir: t.TempDir(), redis: redistest.Start(t),
		weirs: make([]*servertest.Process, n)}
	b.limits = map[string]algo.Config{"units": l.units, "pace": l.pace}
	b.writeLimits(l)
	for i := range n {
		b.ports = append(b.ports, servertest.FreePort(t))
		b.startWeir(i)
	}
	return b
}

// inRule is how a rule says a limit.
func inRule(c algo.Config) string { return fmt.Sprintf("%d/%s", c.N, c.Window) }

func (b *quotaBed) writeLimits(l quotaLimits) {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(b.t), "internal", "server", "tests", "stores",
		"testdata", "rlqs", "rules", "edge.yaml"))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(b.dir, "rules"), 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.writeRules(strings.NewReplacer("$UNITS", inRule(l.units), "$PACE", inRule(l.pace)).Replace(string(text)))
}

func (b *quotaBed) startWeir(i int) {
	b.t.Helper()
	args := append([]string{
		"serve", "--rules=rules", "--store=" + b.redis.URL(), "--listen-http=off", "--listen-resp=off",
		"--listen-grpc=127.0.0.1:" + b.ports[i], "--listen-admin=127.0.0.1:0",
	}, b.flags...)
	cmd := exec.Command(b.program, args...)
	cmd.Dir = b.dir
	p := servertest.Begin(b.t, cmd)
	b.weirs[i] = p
	b.t.Cleanup(func() {
		if b.t.Failed() {
			b.t.Logf("Weir %d wrote\n%s", i, p.Stderr)
		}
	})
	p.Addr("grpc")
}

// startEnvoy starts an Envoy that asks the first of these gRPC ports that it can reach.
func (b *quotaBed) startEnvoy(ports ...string) *quotaEnvoy {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(servertest.RepositoryRoot(b.t), "internal", "server", "tests", "stores",
		"testdata", "rlqs", "envoy.yaml"))
	if err != nil {
		b.t.Fatal(err)
	}
	var endpoints []string
	for i, port := range ports {
		endpoints = append(endpoints,
			fmt.Sprintf(
				"{ priority: %d, lb_endpoints: [ { endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %s } } } } ] }", i, port))
	}
	e := &quotaEnvoy{log: filepath.Join(b.dir, fmt.Sprintf("envoy%d.log", len(b.envoys)))}
	config := strings.NewReplacer("$LOG", e.log, "$ENDPOINTS", strings.Join(endpoints, ", ")).Replace(string(text))
	e.Envoy = envoytest.Start(b.t, config, "--concurrency", "2", "--log-level", "error", "--file-flush-interval-msec",
		"50")
	e.url = "http://" + e.Address("front") + "/"
	b.envoys = append(b.envoys, e)
	return e
}

// flow is requests of one tenant to one door, at a steady rate.
type flow struct {
	plan, tenant string
	asked        atomic.Int64
	cancel       context.CancelFunc
	done         sync.WaitGroup

	mu       sync.Mutex
	admitted []leasecheck.Admission // as the client saw it
}

// begin sends rate requests a second until the flow is stopped; those that are late are made up for
// at once. One is under way at a time in each of the workers.
func (f *flow) begin(rate, workers int, ask func() error) *flow {
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	for range workers {
		f.done.Go(func() {
			began := time.Now()
			for n := 0; ; n++ {
				due := began.Add(time.Duration(n*workers) * time.Second / time.Duration(rate))
				select {
				case <-ctx.Done():
					return
				case <-time.After(time.Until(due)):
				}
				if ask() == nil {
					f.asked.Add(1)
				}
			}
		})
	}
	return f
}

// stop ends the flow and returns how many requests were answered.
func (f *flow) stop() int64 {
	f.cancel()
	f.done.Wait()
	return f.asked.Load()
}

// since counts what was let through from an instant on, as the client saw it.
func (f *flow) since(from time.Time) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return between(f.admitted, from, time.Now())
}

// load sends requests of a tenant to an Envoy.
func (e *quotaEnvoy) load(t *testing.T, plan, tenant string, rate int) *flow {
	tr := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(tr.CloseIdleConnections)
	c := &http.Client{Transport: tr}
	f := &flow{plan: plan, tenant: tenant}
	return f.begin(rate, 1+rate/200, func() error {
		lo := time.Now().UnixMicro()
		ok, err := e.ask(c, plan, tenant)
		if err == nil && ok {
			f.admit(lo)
		}
		return err
	})
}

// admit takes down an admission that was asked for at an instant, in µs.
func (f *flow) admit(lo int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.admitted = append(f.admitted, leasecheck.Admission{Lo: lo, Hi: time.Now().UnixMicro() + 1, Cost: 1})
}

// ask sends one request and reports whether it was let through.
func (e *quotaEnvoy) ask(c *http.Client, plan, tenant string) (bool, error) {
	r, err := http.NewRequest(http.MethodGet, e.url, nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("X-Plan", plan)
	r.Header.Set("X-Tenant", tenant)
	answer, err := c.Do(r)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode == http.StatusOK, err
}

// rls asks a Weir about so many requests of a tenant at once.
func (b *quotaBed) rls(weir int) func(ctx context.Context, plan, tenant string, hits uint32) (bool, error) {
	b.t.Helper()
	conn, err := grpc.NewClient("127.0.0.1:"+b.ports[weir], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	client := rlspb.NewRateLimitServiceClient(conn)
	return func(ctx context.Context, plan, tenant string, hits uint32) (bool, error) {
		answer, err := client.ShouldRateLimit(ctx,
			&rlspb.RateLimitRequest{Domain: "edge", HitsAddend: hits, Descriptors: []*ratelimit.RateLimitDescriptor{{
				Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "tenant", Value: tenant}, {Key: "plan", Value: plan}},
			}}})
		return answer.GetOverallCode() == rlspb.RateLimitResponse_OK, err
	}
}

// loadRLS asks a Weir before each request of a tenant.
func (b *quotaBed) loadRLS(weir int, plan, tenant string, rate int) *flow {
	b.t.Helper()
	ask := b.rls(weir)
	f := &flow{plan: plan, tenant: tenant}
	return f.begin(rate, 1+rate/200, func() error {
		lo := time.Now().UnixMicro()
		ok, err := ask(context.Background(), plan, tenant, 1)
		if err == nil && ok {
			f.admit(lo)
		}
		return err
	})
}

// admitted returns what Envoy's access log says was let through of a tenant. It waits until the log
// has as many lines of the tenant as were answered.
func (e *quotaEnvoy) admitted(t *testing.T, tenant string, answered int64) (list []leasecheck.Admission) {
	t.Helper()
	servertest.Eventually(t, "Envoy's access log is complete", func() bool {
		lines := int64(0)
		list = list[:0]
		file, err := os.Open(e.log)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		for s := bufio.NewScanner(file); s.Scan(); {
			fields := strings.Fields(s.Text())
			if len(fields) != 4 || fields[3] != tenant {
				continue
			}
			lines++
			if fields[1] != "200" {
				continue
			}
			at, err := strconv.ParseInt(strings.Replace(fields[0], ".", "", 1), 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", s.Text(), err)
			}
			took, err := strconv.ParseInt(fields[2], 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", s.Text(), err)
			}
			list = append(list, leasecheck.Admission{Lo: at, Hi: at + (took+1)*1000, Cost: 1})
		}
		return lines >= answered
	})
	return list
}

// obeys checks that what was let through of a tenant obeys the limit of a plan and extra, in each
// interval.
func (b *quotaBed) obeys(plan, tenant string, extra int64,
	admitted ...[]leasecheck.Admission) (all []leasecheck.Admission) {
	b.t.Helper()
	for _, list := range admitted {
		all = append(all, list...)
	}
	v, err := leasecheck.Check(b.limits[plan], extra, all)
	if err != nil {
		b.t.Fatal(err)
	}
	if v != nil {
		b.t.Errorf("%s: more was let through than the limit and %d: %v", tenant, extra, v)
	}
	return all
}

// metric returns the sum of a metric's series that have all these labels, such as `limit="units"`,
// over all Weirs that run.
func (b *quotaBed) metric(name string, labels ...string) (sum float64) {
	b.t.Helper()
	series := regexp.MustCompile(`(?m)^` + name + `(\{[^\n]*\})? (\S+)$`)
	for _, p := range b.weirs {
		if p == nil {
			continue
		}
		_, _, body := servertest.Get(b.t, "http://"+p.Addr("admin")+"/metrics")
	next:
		for _, found := range series.FindAllStringSubmatch(body, -1) {
			for _, label := range labels {
				if !strings.Contains(found[1], label) {
					continue next
				}
			}
			v, err := strconv.ParseFloat(found[2], 64)
			if err != nil {
				b.t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

// between counts admissions from one instant to another.
func between(list []leasecheck.Admission, from, to time.Time) (n int) {
	for _, a := range list {
		if a.Lo >= from.UnixMicro() && a.Lo < to.UnixMicro() {
			n++
		}
	}
	return n
}
