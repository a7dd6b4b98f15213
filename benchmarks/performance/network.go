package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/processor"
)

// short is how long one measurement over the network takes, after a warm-up.
const short = 700 * time.Millisecond

// lines runs another program of this module, and reads the JSON of each line that it writes.
func lines[T any](b *bench, tool string, args []string, take func(T)) error {
	path, err := b.tool(tool)
	if err != nil {
		return err
	}
	var failed bytes.Buffer
	cmd := exec.CommandContext(b.ctx, path, args...)
	cmd.Dir, cmd.Stderr = b.dir, &failed
	// A process that is stopped ends with the servers that it has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", tool, err, failed.Bytes())
	}
	for in := bufio.NewScanner(bytes.NewReader(out)); in.Scan(); {
		var v T
		if err := json.Unmarshal(in.Bytes(), &v); err != nil {
			return fmt.Errorf("%s writes %q: %w", tool, in.Text(), err)
		}
		take(v)
	}
	return nil
}

// rlsResult is what rlsload writes.
type rlsResult struct {
	Name      string             `json:"name"`
	Callers   int                `json:"callers"`
	PerSecond float64            `json:"decisions_per_second"`
	P50       float64            `json:"p50_us"`
	P99       float64            `json:"p99_us"`
	CPU       map[string]float64 `json:"cpu_us"`
}

// target is a server for rlsload; others are processes that decide for it.
func target(s *server, others ...*server) []string {
	text := fmt.Sprintf("%s=%s,server=%d", s.name, s.addr, s.pid())
	for _, other := range others {
		text += fmt.Sprintf(",%s=%d", strings.ToLower(other.name), other.pid())
	}
	return []string{"-target", text}
}

// rlsTargets are the servers of Envoy's rate limit service.
func (b *bench) rlsTargets() (args []string, stop func(), err error) {
	var list []*server
	stop = func() {
		for _, s := range list {
			s.stop()
		}
	}
	start := func(launch func() (*server, error), others ...*server) {
		if err != nil {
			return
		}
		var s *server
		if s, err = launch(); err == nil {
			list = append(list, s)
			args = append(args, target(s, others...)...)
		}
	}
	start(func() (*server, error) { return b.launchWeir("grpc", closedLoop...) })
	start(b.launchEcho)
	if b.rateLimiter != "" && b.installed(b.rateLimiter) && err == nil {
		var redis *server
		if redis, err = b.launchRedis(); err == nil {
			list = append(list, redis)
			start(func() (*server, error) { return b.launchRateLimiter(redis) }, redis)
		}
	}
	if err != nil {
		stop()
	}
	return args, stop, err
}

// rls measures the servers with some callers, who share as many connections.
func (b *bench) rls(targets []string, callers, connections int, at float64, suffix string) error {
	args := append([]string{
		"compare", "-json", "-pattern", "uniform", "-callers", strconv.Itoa(callers), "-connections",
		strconv.Itoa(connections),
		"-rounds", strconv.Itoa(b.rounds), "-warmup", (short / 2).String(), "-duration", short.String(),
	}, targets...)
	return lines(b, "rlsload", args, func(r rlsResult) {
		sum := 0.0
		for _, cpu := range r.CPU {
			sum += cpu
		}
		b.samples.add("cpu_us", r.Name+suffix, at, sum)
		b.samples.add("per_second", r.Name+suffix, at, r.PerSecond)
		b.samples.add("p50_us", r.Name+suffix, at, r.P50)
		b.samples.add("p99_us", r.Name+suffix, at, r.P99)
	})
}

// callers asks over one connection of gRPC.
func (b *bench) callers() error {
	targets, stop, err := b.rlsTargets()
	if err != nil {
		return err
	}
	defer stop()
	for _, n := range []int{1, 4, 16, 64, 256, 1024} {
		if err := b.rls(targets, n, 1, float64(n), ""); err != nil {
			return err
		}
	}
	return nil
}

// inNames are the servers of respload that part connections measures.
const inNames = "Weir, CL.THROTTLE,throttlecrab, THROTTLE,Redis, EVALSHA of GCRA,Redis, INCR,redcon, a constant answer"

// connections asks over the Redis protocol and over gRPC, one command or call at a time on each of
// many connections.
func (b *bench) connections() error {
	b.installed(b.throttle) // respload finds out, too; this says so
	for _, n := range []int{1, 50, 1000, 2000} {
		args := []string{
			"-json", "-weir", b.weir, "-throttlecrab", b.throttle, "-only", inNames, "-pipelines", "1", "-clients",
			strconv.Itoa(n),
			"-throttle", "999999,1000000,2592000", "-rounds", strconv.Itoa(b.rounds), "-seconds", seconds(short),
		}
		err := lines(b, "respload", args, func(r struct {
			Name      string  `json:"name"`
			PerSecond float64 `json:"decisions_per_second"`
			CPU       float64 `json:"cpu_us"`
		}) {
			b.samples.add("cpu_us", r.Name, float64(n), r.CPU)
			b.samples.add("per_second", r.Name, float64(n), r.PerSecond)
		})
		if err != nil {
			return err
		}
	}
	targets, stop, err := b.rlsTargets()
	if err != nil {
		return err
	}
	defer stop()
	for _, n := range []int{1, 50, 1000, 2000} {
		if err := b.rls(targets, n, n, float64(n), ", gRPC"); err != nil {
			return err
		}
	}
	return nil
}

// proxies puts reverse proxies before the same upstream.
func (b *bench) proxies() error {
	for _, n := range []int{1, 64, 500, 2000} {
		args := []string{
			"-json", "-only", "weir-other,nginx-limit_req,caddy", "-weir", b.weir, "-connections", strconv.Itoa(n),
			"-rounds", strconv.Itoa(b.rounds), "-duration", "1s",
		}
		err := lines(b, "proxyload", args, func(r struct {
			Name      string        `json:"name"`
			PerSecond float64       `json:"requests_per_second"`
			CPU       float64       `json:"cpu_us"`
			P99       time.Duration `json:"p99_ns"`
		}) {
			name := map[string]string{"weir-other": "Weir", "nginx-limit_req": "nginx, limit_req",
				"caddy": "Caddy, without limits"}[r.Name]
			b.samples.add("cpu_us", name, float64(n), r.CPU)
			b.samples.add("per_second", name, float64(n), r.PerSecond)
			b.samples.add("p99_us", name, float64(n), float64(r.P99)/1e3)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// libraries decide in the process of each node, on one Redis; see node.
var libraries = [][2]string{
	{"weir", "Weir, as a library"}, {"script", "a GCRA script, by rueidis"}, {"throttled", "throttled, by go-redis"},
	{"ulule", "ulule/limiter, by go-redis"},
}

// nodes measures 1, 2 and 4 nodes that ask one Redis at a time, and the cost of each decision to
// them and to Redis.
func (b *bench) nodes() error {
	redis, err := b.launchRedis()
	if err != nil {
		return err
	}
	defer redis.stop()
	sizes := []int{1, 2, 4}
	var servers []*server
	defer func() {
		for _, s := range servers {
			s.stop()
		}
	}()
	for range sizes[len(sizes)-1] {
		// Where the processors are busy with other things it is not to take its Redis for dead, and
		// decide without it.
		s, err := b.launchWeir("grpc", append([]string{
			"--store", "redis://" + redis.addr, "--store-deadline", "1s", "--store-max-deadline", "1s",
		}, closedLoop...)...)
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	type nodeResult struct{ perSecond, cpu float64 }
	// together runs as many nodes at a time, and adds up their results.
	together := func(name string, n int, one func(i int) (nodeResult, error)) error {
		list, errs := make([]nodeResult, n), make([]error, n)
		before, err := processor.Time(redis.pid())
		if err != nil {
			return err
		}
		var all sync.WaitGroup
		begin := time.Now()
		for i := range n {
			all.Go(func() { list[i], errs[i] = one(i) })
		}
		all.Wait()
		took := time.Since(begin).Seconds()
		after, err := processor.Time(redis.pid())
		if err != nil {
			return err
		}
		rate, cpu := 0.0, 0.0
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, r := range list {
			rate += r.perSecond
			cpu += r.cpu * r.perSecond
		}
		// Redis decides while the nodes warm up, too, at the same pace.
		b.samples.add("redis_us", name, float64(n), (after-before).Seconds()*1e6/(rate*took))
		b.samples.add("node_us", name, float64(n), cpu/rate)
		b.samples.add("per_second", name, float64(n), rate)
		return nil
	}
	if _, err := b.tool("rlsload"); err != nil {
		return err
	}
	for range b.rounds {
		for _, n := range sizes {
			for _, l := range libraries {
				err := together(l[1], n, func(int) (r nodeResult, err error) {
					out, err := exec.CommandContext(b.ctx, b.self, "node", l[0], redis.addr,
						(2 * short).String()).Output()
					if err == nil {
						_, err = fmt.Sscan(string(out), &r.perSecond, &r.cpu)
					}
					return r, err
				})
				if err != nil {
					return err
				}
			}
			err := together("Weir, as a server over gRPC", n, func(i int) (found nodeResult, err error) {
				args := append([]string{
					"compare", "-json", "-pattern", "uniform", "-callers", "64", "-rounds", "1", "-warmup", "300ms",
					"-duration", (2 * short).String(),
				}, target(servers[i])...)
				err = lines(b, "rlsload", args, func(r rlsResult) { found = nodeResult{r.PerSecond, r.CPU["server"]} })
				return found, err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
