package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// rival is a running proxy.
type rival struct {
	name string
	addr string
	h2   string // where it speaks HTTP/2 without TLS: addr, except for nginx
	cmd  *exec.Cmd
	log  *bytes.Buffer
}

// servers are the processes behind one run: the upstream and the proxies before it.
type servers struct {
	upstream *rival
	rivals   []*rival
}

// stop ends all of them, those that do not listen as well.
func (s *servers) stop() {
	for _, r := range append(s.rivals, s.upstream) {
		if r == nil {
			continue
		}
		_ = r.cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(5*time.Second, func() { _ = r.cmd.Process.Kill() })
		_ = r.cmd.Wait()
		late.Stop()
	}
}

// answerSize is the length of the answer to /large, and of the bodies that the load post sends.
const answerSize = 10 << 10

// start starts the upstream and the rivals that are wanted and installed. Its result is to be
// stopped, also after an error.
func start(dir, otherWeir string, only []string, progress io.Writer) (*servers, error) {
	s := &servers{}
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		if nginx, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			return s, errors.New("nginx is the upstream, and is not installed (Debian has it as nginx-light)")
		}
	}
	ports, err := freePorts(20)
	if err != nil {
		return s, err
	}
	port := func() string {
		p := ports[0]
		ports = ports[1:]
		return p
	}
	upstream := port()
	if s.upstream, err = launch("upstream", upstream, nil, nginx, "-p", dir, "-c",
		writeFile(dir, "upstream.conf",
			fmt.Sprintf(upstreamConf, dir, upstream, strings.Repeat("x", 1<<10), strings.Repeat("$kib", answerSize>>10),
				strings.Repeat("$kib", 16), strings.Repeat("$part", 64)))); err != nil {
		return s, err
	}
	rules := filepath.Join(dir, "rules")
	if err := os.Mkdir(rules, 0o700); err != nil {
		return s, err
	}
	writeFile(rules, "rules.yaml",
		"limits: [{name: per-address, per: [ip], algorithm: sliding_window, allow: 1000000000/min}]\n")
	weir := func(program string, headers string) func(string) []string {
		return func(addr string) []string {
			return []string{program, "proxy", "--upstream", "http://" + upstream, "--rules", rules, "--listen-proxy",
				addr, "--listen-admin", port(), "--headers", headers}
		}
	}
	built := filepath.Join(dir, "weir")
	h2 := map[string]string{"nginx": port(), "nginx-limit_req": port()}
	candidates := []struct {
		name    string
		env     []string
		command func(addr string) []string
	}{
		{"nginx", nil, func(addr string) []string {
			return []string{nginx, "-p", dir, "-c",
				writeFile(dir, "nginx.conf", fmt.Sprintf(nginxConf, dir, upstream, "", addr, "", h2["nginx"]))}
		}},
		{"nginx-limit_req", nil, func(addr string) []string {
			return []string{nginx, "-p", dir, "-c", writeFile(dir, "limit.conf", fmt.Sprintf(nginxConf, dir, upstream,
				"limit_req_zone $binary_remote_addr zone=a:10m rate=1000000r/s;", addr,
				"limit_req zone=a burst=100000 nodelay;", h2["nginx-limit_req"]))}
		}},
		{"caddy", []string{"XDG_CONFIG_HOME=" + dir, "XDG_DATA_HOME=" + dir}, func(addr string) []string {
			return []string{"caddy", "run", "--adapter", "caddyfile", "--config",
				writeFile(dir, "Caddyfile", fmt.Sprintf(caddyfile, addr, upstream))}
		}},
		{"bare", nil, func(addr string) []string {
			return []string{self, "bare", "-listen", addr, "-upstream",
				upstream}
		}},
		{"bare-tuned", nil, func(addr string) []string {
			return []string{self, "bare", "-listen", addr, "-upstream", upstream, "-tuned"}
		}},
		{"bare-tuned-gogc", []string{"GOGC=1600"}, func(addr string) []string {
			return []string{self, "bare", "-listen", addr, "-upstream", upstream, "-tuned"}
		}},
		{"floor-net/http", []string{"GOGC=1600"},
			func(addr string) []string { return []string{self, "bare", "-listen", addr, "-floor"} }},
		{"weir", nil, weir(built, "x-delta,draft11")},
		{"weir-headers-off", nil, weir(built, "off")},
		{"weir-other", nil, weir(otherWeir, "x-delta,draft11")},
		{"weir-other-headers-off", nil, weir(otherWeir, "off")},
	}
	if len(only) == 0 || slices.Contains(only, "weir") || slices.Contains(only, "weir-headers-off") {
		build := exec.Command("go", "build", "-o", built, "github.com/weir-rl/weir/cmd/weir")
		if out, err := build.CombinedOutput(); err != nil {
			return s, fmt.Errorf("weir cannot be built: %w\n%s", err, out)
		}
	}
	for _, c := range candidates {
		if len(only) > 0 && !slices.Contains(only, c.name) ||
			otherWeir == "" && strings.HasPrefix(c.name, "weir-other") {
			continue
		}
		addr := port()
		command := c.command(addr)
		if _, err := exec.LookPath(command[0]); err != nil {
			fmt.Fprintf(progress, "%s is left out: it is not installed\n", c.name)
			continue
		}
		r, err := launch(c.name, addr, c.env, command...)
		if err != nil {
			return s, err
		}
		if r.h2 = addr; h2[c.name] != "" {
			r.h2 = h2[c.name]
		}
		s.rivals = append(s.rivals, r)
	}
	if len(s.rivals) == 0 {
		return s, errors.New("-only names no proxy that is there")
	}
	return s, nil
}

// launch starts a server, and waits until it answers.
func launch(name, addr string, env []string, command ...string) (*rival, error) {
	r := &rival{name: name, addr: addr, cmd: exec.Command(command[0], command[1:]...), log: &bytes.Buffer{}}
	r.cmd.Env = append(os.Environ(), env...)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for deadline := time.Now().Add(15 * time.Second); ; {
		resp, err := client.Get("http://" + addr + "/")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return r, nil
			}
			err = errors.New(resp.Status)
		}
		if time.Now().After(deadline) {
			_ = r.cmd.Process.Kill()
			_ = r.cmd.Wait()
			return nil, fmt.Errorf("%s does not answer: %w\n%s", name, err, r.log)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// freePorts finds addresses that nobody listens at.
func freePorts(n int) ([]string, error) {
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out, nil
}

// writeFile panics if it cannot write: dir is ours.
func writeFile(dir, name, text string) string {
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		panic(err)
	}
	return path
}

const upstreamConf = `daemon off; pid %[1]s/upstream.pid; error_log stderr crit; worker_processes 1;
events { worker_connections 4096; }
http {
	access_log off; keepalive_requests 1000000000; client_body_buffer_size 128k; client_body_temp_path %[1]s/up_body;
	proxy_temp_path %[1]s/up_proxy; fastcgi_temp_path %[1]s/up_fastcgi; uwsgi_temp_path %[1]s/up_uwsgi; scgi_temp_path %[1]s/up_scgi;
	server {
		listen %[2]s backlog=1024;
		location / { default_type text/plain; return 200 "hello"; }
		location /events { default_type text/event-stream; return 200 "data: hello\n\n"; }
		location /16k { default_type text/plain; set $kib "%[3]s"; return 200 "%[5]s"; }
		location /1m { default_type text/plain; set $kib "%[3]s"; set $part "%[5]s"; return 200 "%[6]s"; }
		location /large { default_type text/plain; set $kib "%[3]s"; return 200 "%[4]s"; }
	}
}
`

const nginxConf = `daemon off; pid %[1]s/proxy.%[4]s.pid; error_log stderr crit; worker_processes auto;
events { worker_connections 4096; }
http {
	access_log off; keepalive_requests 1000000000; client_body_buffer_size 128k; client_body_temp_path %[1]s/proxy_body;
	proxy_temp_path %[1]s/proxy_proxy; fastcgi_temp_path %[1]s/proxy_fastcgi; uwsgi_temp_path %[1]s/proxy_uwsgi; scgi_temp_path %[1]s/proxy_scgi;
	proxy_max_temp_file_size 0;
	upstream up { server %[2]s; keepalive 512; keepalive_requests 1000000000; }
	%[3]s
	server {
		listen %[4]s backlog=1024;
		listen %[6]s http2 backlog=1024;
		location / {
			%[5]s
			proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";
			proxy_set_header Host $host; proxy_set_header X-Forwarded-For $remote_addr; proxy_set_header X-Forwarded-Host $host; proxy_set_header X-Forwarded-Proto $scheme;
		}
	}
}
`

const caddyfile = `{
	admin off
	auto_https off
	servers {
		protocols h1 h2c
	}
}
http://%s {
	reverse_proxy http://%s {
		transport http {
			keepalive_idle_conns 512
			keepalive_idle_conns_per_host 512
		}
	}
}
`
