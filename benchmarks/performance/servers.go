package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
)

// server is a process that is measured, and where it listens.
type server struct {
	name string
	cmd  *exec.Cmd
	log  bytes.Buffer
	addr string
}

func (s *server) pid() int { return s.cmd.Process.Pid }

func (s *server) stop() {
	if s == nil || s.cmd.Process == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(5*time.Second, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	late.Stop()
}

// freePort finds an address of this machine that nobody listens at.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// launch starts a server that listens at addr, and waits until it does.
func (b *bench) launch(name, addr string, env []string, command ...string) (*server, error) {
	s := &server{name: name, addr: addr, cmd: exec.CommandContext(b.ctx, command[0], command[1:]...)}
	s.cmd.Env, s.cmd.Dir = append(os.Environ(), env...), b.dir
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", addr); err == nil {
			return s, conn.Close()
		}
		if time.Now().After(deadline) || b.ctx.Err() != nil {
			s.stop()
			return nil, fmt.Errorf("%s does not listen at %s:\n%s", name, addr, s.log.Bytes())
		}
	}
}

// loadRules are wide enough that no request of a load is refused. rlsload expects a limit in the
// answer for each descriptor, which only rules in Envoy's form give.
const (
	loadRules    = "domain: bench\nlimits:\n  - { name: user, per: [user|header.x-user], allow: 1000000/day }\n"
	loadRulesRLS = "domain: bench\ndescriptors:\n  - key: user\n    rate_limit: { unit: day, requests_per_unit: 1000000 }\n"
)

// closedLoop lets requests wait in line for any time. The many callers of a closed loop, who ask
// again as soon as they are answered, always wait; in an open loop such a wait would be overload.
var closedLoop = []string{"--overload-line", "0s"}

// launchWeir starts a weir with one door that listens: http, grpc, resp or proxy.
func (b *bench) launchWeir(door string, flags ...string) (*server, error) {
	text := loadRules
	if door == "grpc" {
		text = loadRulesRLS
	}
	rules, err := b.write(filepath.Join("rules-"+door, "rules.yaml"), text)
	if err != nil {
		return nil, err
	}
	return b.launchWeirOn(filepath.Dir(rules), door, flags...)
}

// launchWeirOn is launchWeir with the rules of a folder.
func (b *bench) launchWeirOn(rules, door string, flags ...string) (*server, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	args := []string{b.weir, "serve", "--rules", rules}
	for _, d := range []string{"http", "grpc", "resp", "admin", "proxy"} {
		switch {
		case d == door:
			args = append(args, "--listen-"+d, addr)
		case d != "proxy": // which is off by itself
			args = append(args, "--listen-"+d, "off")
		}
	}
	return b.launch("Weir", addr, nil, append(args, flags...)...)
}

// write writes a temporary file.
func (b *bench) write(name, text string) (path string, err error) {
	path = filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// launchRedis starts a Redis that writes nothing to disk.
func (b *bench) launchRedis() (*server, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	return b.launch("Redis", addr, nil, "redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "",
		"--appendonly", "no")
}

// launchRateLimiter starts envoyproxy/ratelimit on a Redis.
func (b *bench) launchRateLimiter(redis *server) (*server, error) {
	var addrs [3]string
	for i := range addrs {
		var err error
		if addrs[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	if _, err := b.write(filepath.Join("ratelimit", "weir", "config", "rules.yaml"), loadRulesRLS); err != nil {
		return nil, err
	}
	port := func(addr string) string { _, port, _ := net.SplitHostPort(addr); return port }
	return b.launch("envoyproxy/ratelimit", addrs[0], []string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port(addrs[0]), "HOST=127.0.0.1", "PORT=" + port(addrs[1]),
		"DEBUG_HOST=127.0.0.1",
		"DEBUG_PORT=" + port(addrs[2]), "RUNTIME_ROOT=" + filepath.Join(b.dir, "ratelimit"),
		"RUNTIME_SUBDIRECTORY=weir",
		"RUNTIME_WATCH_ROOT=false", "USE_STATSD=false", "LOG_LEVEL=error", "REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL=" + redis.addr,
	}, b.rateLimiter)
}

// echo serves the rate limit service with grpc-go as it comes, and admits whatever it is asked:
// what such a server costs that decides nothing.
func echo(args []string) error {
	if len(args) != 1 {
		return errors.New("echo takes an address")
	}
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	rlspb.RegisterRateLimitServiceServer(s, echoServer{})
	return s.Serve(l)
}

type echoServer struct {
	rlspb.UnimplementedRateLimitServiceServer
}

// ShouldRateLimit implements rlspb.RateLimitServiceServer.
func (echoServer) ShouldRateLimit(context.Context, *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	return &rlspb.RateLimitResponse{
		OverallCode: rlspb.RateLimitResponse_OK,
		Statuses: []*rlspb.RateLimitResponse_DescriptorStatus{{
			Code: rlspb.RateLimitResponse_OK,
			CurrentLimit: &rlspb.RateLimitResponse_RateLimit{RequestsPerUnit: 1_000_000,
				Unit: rlspb.RateLimitResponse_RateLimit_MONTH},
			LimitRemaining:     999_999,
			DurationUntilReset: durationpb.New(time.Second),
		}},
	}, nil
}

func (b *bench) launchEcho() (*server, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	return b.launch("grpc-go that admits all", addr, nil, b.self, "echo", addr)
}

// installed reports whether a program is there, and prints it if not.
func (b *bench) installed(program string) bool {
	if _, err := exec.LookPath(program); err != nil {
		fmt.Fprintf(b.progress, "%s is left out: it is not installed\n", filepath.Base(program))
		return false
	}
	return true
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
