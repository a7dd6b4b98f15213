package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-rl/weir/benchmarks/internal/processor"
	load "github.com/weir-rl/weir/internal/testkit/openload"
)

// openCallers is how many requests of a load may be under way.
const openCallers = 256

// door is one target of part open.
type door struct {
	name    string
	target  load.Target
	servers []*server
}

// open measures each door under an open load: first how many decisions a second there are when
// callers ask as fast as answers come, then latencies at shares of that. Weir turns requests away
// that stand in line for too long; these are counted, and have no latency.
func (b *bench) open() error {
	doors, stop, err := b.doors()
	defer stop()
	if err != nil {
		return err
	}
	capacity := map[string]float64{}
	for _, d := range doors {
		r, cpu, err := b.loadDoor(d, 0, 2*short)
		if err != nil {
			return err
		}
		capacity[d.name] = float64(r.Answered()) / r.Took.Seconds()
		b.samples.add("capacity", d.name, 0, capacity[d.name])
		b.samples.add("cpu_us", d.name, 0, cpu)
	}
	for range b.rounds {
		for _, percent := range []int{30, 60, 90, 130} {
			for _, d := range doors {
				r, _, err := b.loadDoor(d, capacity[d.name]*float64(percent)/100, time.Second)
				if err != nil {
					return err
				}
				for name, q := range map[string]float64{"p50_us": 0.5, "p99_us": 0.99, "p99.9_us": 0.999} {
					b.samples.add(name, d.name, float64(percent), microseconds(r.Latency.Quantile(q)))
				}
				undecided := float64(r.Failed + r.Unsent)
				b.samples.add("undecided_percent", d.name, float64(percent),
					100*undecided/(undecided+float64(r.Allowed)))
			}
		}
	}
	return nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// loadDoor loads a door for a time. cpu is the processor time of its servers for one decision, in
// microseconds. Before that the door is loaded for a moment that is not counted.
func (b *bench) loadDoor(d door, rate float64, duration time.Duration) (r *load.Result, cpu float64, err error) {
	askers, closed, err := d.target.Open(openCallers)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", d.name, err)
	}
	defer closed()
	o := load.Options{Rate: rate, For: 250 * time.Millisecond, Callers: openCallers, Keys: 10_000, Draw: load.Uniform,
		Seed: 1}
	if _, err = load.Run(b.ctx, &o, askers, nil); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", d.name, err)
	}
	before, err := d.processorTime()
	if err != nil {
		return nil, 0, err
	}
	o.For = duration
	if r, err = load.Run(b.ctx, &o, askers, nil); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", d.name, err)
	}
	if r.Answered() == 0 {
		return nil, 0, fmt.Errorf("%s: nothing was answered: %w", d.name, errors.Join(r.Failure))
	}
	if r.Refused > 0 {
		return nil, 0, fmt.Errorf("%s: %d requests were refused", d.name, r.Refused)
	}
	after, err := d.processorTime()
	return r, microseconds(after-before) / float64(r.Answered()), err
}

// processorTime is what the servers of a door have used so far.
func (d door) processorTime() (sum time.Duration, err error) {
	for _, s := range d.servers {
		used, err := processor.Time(s.pid())
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s.name, err)
		}
		sum += used
	}
	return sum, nil
}

// doors starts the targets. stop ends them, also after an error.
func (b *bench) doors() (list []door, stop func(), err error) {
	stop = func() {
		for _, d := range list {
			for _, s := range d.servers {
				s.stop()
			}
		}
	}
	var upstream *server
	start := func(name string, launch func() (*server, error), target load.Target) {
		if err != nil {
			return
		}
		var s *server
		if s, err = launch(); err == nil {
			target.URL, target.Connections = strings.ReplaceAll(target.URL, "ADDR", s.addr), 64
			list = append(list, door{name, target, []*server{s}})
		}
	}
	if upstream, err = b.launchNginx("upstream", `default_type text/plain; return 200 "hello";`, "127.0.0.1:1"); err != nil {
		return nil, stop, err
	}
	end := stop
	stop = func() { end(); upstream.stop() }
	rls := load.Target{URL: "grpc://ADDR", Domain: "bench", Key: "user"}
	throttle := load.Target{URL: "redis://ADDR", Door: load.Throttle, Key: "user",
		Throttle: [3]int64{999_999, 1_000_000, 2_592_000}}
	proxied := load.Target{URL: "http://ADDR/", Door: load.Proxy, Key: "X-User"}
	asked := load.Target{URL: "http://ADDR/api/v1/forward-auth/nginx", Door: load.Proxy, Key: "X-User",
		Header: http.Header{
			"X-Original-Uri": {"/orders"}, "X-Original-Method": {"GET"}, "X-Forwarded-For": {"192.0.2.1"}}}
	start("Weir, RLS", func() (*server, error) { return b.launchWeir("grpc") }, rls)
	start("Weir, HTTP", func() (*server, error) { return b.launchWeir("http") },
		load.Target{URL: "http://ADDR", Domain: "bench", Key: "user"})
	start("Weir, forward auth",
		func() (*server, error) { return b.launchWeir("http", "--client-ip-trusted-proxies", "127.0.0.1") }, asked)
	start("Weir, WEIR.LIMIT", func() (*server, error) { return b.launchWeir("resp") },
		load.Target{URL: "redis://ADDR", Domain: "bench", Key: "user"})
	start("Weir, CL.THROTTLE", func() (*server, error) { return b.launchWeir("resp") }, throttle)
	start("Weir, proxy",
		func() (*server, error) { return b.launchWeir("proxy", "--proxy-upstream", "http://"+upstream.addr) }, proxied)
	start("grpc-go that admits all", b.launchEcho, rls)
	start("redcon, a constant answer", b.launchRedcon, throttle)
	start("nginx, limit_req", func() (*server, error) {
		return b.launchNginx("limit",
			`limit_req zone=a burst=100000 nodelay; proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";`, upstream.addr)
	}, proxied)
	if b.installed("caddy") {
		start("Caddy, without limits", func() (*server, error) { return b.launchCaddy(upstream) }, proxied)
	}
	if b.rateLimiter != "" && b.installed(b.rateLimiter) && err == nil {
		var redis *server
		if redis, err = b.launchRedis(); err == nil {
			start("envoyproxy/ratelimit", func() (*server, error) { return b.launchRateLimiter(redis) }, rls)
			list[len(list)-1].servers = append(list[len(list)-1].servers, redis)
		}
	}
	return list, stop, err
}

// launchRedcon starts respload's server on redcon.
func (b *bench) launchRedcon() (*server, error) {
	path, err := b.tool("respload")
	if err != nil {
		return nil, err
	}
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	return b.launch("redcon", addr, nil, path, "redcon", addr)
}

// launchNginx starts an nginx with one process and the given directives at each location. They may
// use a zone named a, and an upstream named up.
func (b *bench) launchNginx(name, location, up string) (*server, error) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx" // where Debian keeps it
	}
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, name)
	text := fmt.Sprintf(`daemon off; master_process off; pid %[1]s/pid; error_log stderr crit;
events { worker_connections 4096; }
http {
	access_log off; keepalive_requests 1000000000; client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi; uwsgi_temp_path %[1]s/uwsgi; scgi_temp_path %[1]s/scgi;
	limit_req_zone $http_x_user zone=a:20m rate=1000000r/s;
	upstream up { server %[4]s; keepalive 512; keepalive_requests 1000000000; }
	server { listen %[2]s backlog=1024; location / { %[3]s } }
}
`, dir, addr, location, up)
	conf, err := b.write(filepath.Join(name, "nginx.conf"), text)
	if err != nil {
		return nil, err
	}
	return b.launch(name, addr, nil, program, "-p", dir, "-c", conf)
}

// launchCaddy starts a Caddy before an upstream.
func (b *bench) launchCaddy(upstream *server) (*server, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("{\n\tadmin off\n\tauto_https off\n}\nhttp://%s:%s {\n\treverse_proxy http://%s\n}\n", host,
		port, upstream.addr)
	conf, err := b.write("Caddyfile", text)
	if err != nil {
		return nil, err
	}
	return b.launch("Caddy", addr, []string{"XDG_CONFIG_HOME=" + b.dir, "XDG_DATA_HOME=" + b.dir}, "caddy", "run",
		"--adapter", "caddyfile", "--config", conf)
}
