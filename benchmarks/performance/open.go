package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// openCallers is how many requests of a load may be under way.
const openCallers = 256

// door is one target of part open, with the arguments of weir bench.
type door struct {
	name    string
	args    []string // of weir bench, with the URL
	servers []*server
}

// openResult is what weir bench writes.
type openResult struct {
	PerSecond float64            `json:"per_second"`
	Allowed   int64              `json:"allowed"`
	Refused   int64              `json:"refused"`
	Failed    int64              `json:"failed"`
	Unsent    int64              `json:"unsent"`
	Latency   map[string]float64 `json:"latency_us"`
	CPU       map[string]float64 `json:"cpu_us"`
}

// open measures each door under an open load, by weir bench: first how many decisions a second
// there are when callers ask as fast as answers come, then latencies at shares of that. Weir turns
// requests away that stand in line for too long; these are counted, and have no latency.
func (b *bench) open() error {
	doors, stop, err := b.doors()
	defer stop()
	if err != nil {
		return err
	}
	capacity := map[string]float64{}
	for _, d := range doors {
		r, err := b.benchDoor(d, 0, 2*short)
		if err != nil {
			return err
		}
		capacity[d.name] = r.PerSecond
		b.samples.add("capacity", d.name, 0, r.PerSecond)
		sum := 0.0
		for _, cpu := range r.CPU {
			sum += cpu
		}
		b.samples.add("cpu_us", d.name, 0, sum)
	}
	for range b.rounds {
		for _, percent := range []int{30, 60, 90, 130} {
			for _, d := range doors {
				r, err := b.benchDoor(d, capacity[d.name]*float64(percent)/100, time.Second)
				if err != nil {
					return err
				}
				for _, q := range []string{"p50", "p99", "p99.9"} {
					b.samples.add(q+"_us", d.name, float64(percent), r.Latency[q])
				}
				undecided := float64(r.Failed + r.Unsent)
				b.samples.add("undecided_percent", d.name, float64(percent), 100*undecided/(undecided+float64(r.Allowed)))
			}
		}
	}
	return nil
}

func (b *bench) benchDoor(d door, rate float64, duration time.Duration) (r openResult, err error) {
	args := append([]string{
		"bench", "--json", "--rate", strconv.FormatFloat(rate, 'f', 0, 64), "--for", duration.String(), "--warmup", "250ms",
		"--callers", strconv.Itoa(openCallers), "--connections", "64",
	}, d.args...)
	for i, s := range d.servers {
		args = append(args, "--pid", fmt.Sprintf("%d=%d", i, s.pid()))
	}
	out, err := exec.CommandContext(b.ctx, b.weir, args...).Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err == nil && r.Refused > 0 {
		err = fmt.Errorf("%d requests were refused", r.Refused)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", d.name, err)
	}
	return r, nil
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
	start := func(name string, launch func() (*server, error), url string, args ...string) {
		if err != nil {
			return
		}
		var s *server
		if s, err = launch(); err == nil {
			list = append(list, door{name, append([]string{strings.ReplaceAll(url, "ADDR", s.addr)}, args...), []*server{s}})
		}
	}
	if upstream, err = b.launchNginx("upstream", `default_type text/plain; return 200 "hello";`, "127.0.0.1:1"); err != nil {
		return nil, stop, err
	}
	end := stop
	stop = func() { end(); upstream.stop() }
	throttle := []string{"--door", "throttle", "--throttle", "999999,1000000,2592000"}
	proxied := []string{"--door", "proxy", "--key", "X-User"}
	start("Weir, RLS", func() (*server, error) { return b.launchWeir("grpc") }, "grpc://ADDR", "--domain", "bench")
	start("Weir, HTTP", func() (*server, error) { return b.launchWeir("http") }, "http://ADDR", "--domain", "bench")
	start("Weir, forward auth", func() (*server, error) { return b.launchWeir("http", "--client-ip-trusted-proxies", "127.0.0.1") },
		"http://ADDR/api/v1/forward-auth/nginx", "--door", "proxy", "--key", "X-User", "--header", "X-Original-URI: /orders",
		"--header", "X-Original-Method: GET", "--header", "X-Forwarded-For: 192.0.2.1")
	start("Weir, WEIR.LIMIT", func() (*server, error) { return b.launchWeir("resp") }, "redis://ADDR", "--domain", "bench")
	start("Weir, CL.THROTTLE", func() (*server, error) { return b.launchWeir("resp") }, "redis://ADDR", throttle...)
	start("Weir, proxy", func() (*server, error) { return b.launchWeir("proxy", "--proxy-upstream", "http://"+upstream.addr) }, "http://ADDR/", proxied...)
	start("grpc-go that admits all", b.launchEcho, "grpc://ADDR", "--domain", "bench")
	start("redcon, a constant answer", b.launchRedcon, "redis://ADDR", throttle...)
	start("nginx, limit_req", func() (*server, error) {
		return b.launchNginx("limit", `limit_req zone=a burst=100000 nodelay; proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";`, upstream.addr)
	}, "http://ADDR/", proxied...)
	if b.installed("caddy") {
		start("Caddy, without limits", func() (*server, error) { return b.launchCaddy(upstream) }, "http://ADDR/", proxied...)
	}
	if b.rateLimiter != "" && b.installed(b.rateLimiter) && err == nil {
		var redis *server
		if redis, err = b.launchRedis(); err == nil {
			start("envoyproxy/ratelimit", func() (*server, error) { return b.launchRateLimiter(redis) }, "grpc://ADDR", "--domain", "bench")
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
	text := fmt.Sprintf("{\n\tadmin off\n\tauto_https off\n}\nhttp://%s:%s {\n\treverse_proxy http://%s\n}\n", host, port, upstream.addr)
	conf, err := b.write("Caddyfile", text)
	if err != nil {
		return nil, err
	}
	return b.launch("Caddy", addr, []string{"XDG_CONFIG_HOME=" + b.dir, "XDG_DATA_HOME=" + b.dir}, "caddy", "run", "--adapter", "caddyfile", "--config", conf)
}
